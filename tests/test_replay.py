"""Streams whose every number names its row and copy, so that whatever a replay gives back can be read off."""

from __future__ import annotations

import copy
import errno
import gc
import os
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import coterie.replay
import coterie.ring
from coterie.checkpoint import Checkpoints
from coterie.errors import UserError
from coterie.replay import Replay, Sample, unfilled
from coterie.types import Action, EnvSpec, RoleSpec, TeamSpec, Window, tree_leaves, tree_map

CPU = torch.device("cpu")
T, B = 4, 2
EPISODE = 5  # rows of an episode, the closing one counted; copy 1 is two rows ahead of copy 0


def team_of(observation: spaces.Space | None = None, action: spaces.Space | None = None, n: int = 2) -> TeamSpec:
    role = RoleSpec(
        "agent", "agent", tuple(f"agent_{i}" for i in range(n)),
        observation or spaces.Box(-9, 9, (3,)), action or spaces.Discrete(5),
    )  # fmt: skip
    return EnvSpec("stream", (role,), {"global": 2, "other": 7}).default_teams()[0]


TEAM = team_of()


def numbers(start: int, rows: int, copies: int = B) -> Tensor:
    """100 x row + copy, [rows, copies]."""
    return torch.arange(start, start + rows).unsqueeze(1) * 100.0 + torch.arange(copies)


def acted_in(start: int, rows: int) -> Tensor:
    ages = torch.arange(start, start + rows).unsqueeze(1) + torch.tensor([0, 2])
    return ages % EPISODE != EPISODE - 1


def window_at(start: int, rows: int = T, reborn: bool = False) -> Window:
    """The window of the rows `start`, ... of the stream; reborn: agents begin a life at each row."""
    number, acted = numbers(start, rows + 1), acted_in(start, rows + 1)
    begins = torch.cat([~acted_in(start - 1, 1), ~acted[:-1]])
    first = (begins | reborn).unsqueeze(-1).expand(-1, -1, 2)
    ended = ~acted[1:]
    step = number[:-1]
    return Window(
        obs={"agent": number.view(rows + 1, B, 1, 1) + torch.zeros(2, 3)},
        action_mask={"agent": (number.long() % 3 == 0).view(rows + 1, B, 1, 1).expand(-1, -1, 2, 5)},
        state={"global": number.unsqueeze(-1).expand(-1, -1, 2), "other": torch.zeros(rows + 1, B, 7)},
        alive=torch.ones(rows + 1, B, 2, dtype=torch.bool),
        first=first,
        acted=acted,
        action={"agent": Action((step.long() % 5).view(rows, B, 1, 1).expand(-1, -1, 2, 1))},
        record={"log_prob": torch.zeros(rows, B, 2)},
        carry={"memory": (step[0] + 0.25).view(B, 1, 1).expand(B, 2, 4)},
        reward=(step + 0.5).unsqueeze(-1).expand(-1, -1, 2),
        group_reward=-step.unsqueeze(-1),
        terminated=ended.unsqueeze(-1).expand(-1, -1, 2),
        truncated=torch.zeros(rows, B, 2, dtype=torch.bool),
        episode_terminated=ended,
        episode_truncated=torch.zeros(rows, B, dtype=torch.bool),
    )


def replay_of(**changes: Any) -> Replay:
    settings: dict[str, Any] = {"capacity": 5 * T * B, "length": 3, "starts": "row", "states": ("global",), "seed": 1}
    return Replay(TEAM, B, T, **{**settings, "device": CPU, **changes})


def filled(windows: int, **changes: Any) -> Replay:
    replay = replay_of(**changes)
    for i in range(windows):
        replay.add(window_at(i * T))
    return replay


def wrong_places(sample: Sample, length: int) -> list[str]:
    """Leaves of a sample that are not the stream's rows from the start that its index names."""
    window, wrong = sample.window, []
    row, copies = sample.index // B, sample.index % B
    rows = row + torch.arange(length + 1).unsqueeze(1)
    count = len(sample.index)
    stop = int(rows.max()) + 1
    whole = window_at(0, stop)
    expected = {name: getattr(whole, name) for name in vars(whole) if name not in {"record", "carry"}}
    expected["state"] = {"global": expected["state"]["global"]}
    for name, leaves in expected.items():
        found = getattr(window, name)
        places = rows[:length] if name in coterie.ring.STEPS else rows
        for a, b in zip(tree_leaves(leaves), tree_leaves(found), strict=True):
            if b.shape[:2] != (len(places), count) or a.dtype != b.dtype or not a[places, copies].equal(b):
                wrong.append(name)
    return wrong


def expected_starts(windows: int, kept: int, length: int, starts: str) -> set[int]:
    """By the definition, one row and copy after the other."""
    head, acted = windows * T, acted_in(0, windows * T)
    held = set()
    for row in range(max(0, head - kept), head - length + 1):
        for b in range(B):
            begins = {
                "row": acted[row, b],
                "window": row % T == 0,
                "episode": acted[row, b] and (row == 0 or not acted[row - 1, b]),
            }[starts]
            if begins:
                held.add(row * B + b)
    return held


# ------------------------------------------------------------------------------------------------------------ sequences


@pytest.mark.parametrize(
    ("starts", "length"),
    [
        ("row", 1),
        ("row", 3),
        ("row", 6),
        ("window", 2),
        ("window", 4),
        ("window", 6),
        ("window", 8),
        ("episode", 5),
        ("episode", 20),
    ],
)
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_exactly_the_whole_sequences_in_the_ring_are_drawn_and_each_is_the_stream(starts, length, alpha):
    replay = replay_of(starts=starts, length=length, priority_exponent=alpha)
    for windows in range(1, 17):
        replay.add(window_at((windows - 1) * T))
        expected = expected_starts(windows, 5 * T, length, starts)
        assert replay.starts_held == len(expected), windows
        assert replay.ready(len(expected))
        assert not replay.ready(len(expected) + 1)
        if expected:
            sample = replay.sample(1500)
            assert set(sample.index.tolist()) == expected
            assert wrong_places(sample, length) == []


def test_a_sequence_across_the_seam_would_be_noticed():
    """The control of the test above: the oldest rows lie behind the newest, and are no continuation of them."""
    replay = filled(7)
    held, newest = replay._held, 7 * T - 1
    assert held is not None
    places = (torch.tensor([newest * B]) + torch.arange(4).unsqueeze(1) * B) % (held.ring.size * B)
    rows, steps = held.ring.take(places, 3)
    window = coterie.ring.join(rows, steps, {}, CPU)
    assert "obs" in wrong_places(Sample(window, torch.tensor([newest * B]), torch.ones(1)), 3)


def test_a_ring_without_a_place_for_the_row_to_look_ahead_would_be_noticed(monkeypatch):
    """The control of the wrap-around: the row to look ahead then lies on the oldest row."""
    make = coterie.ring.Ring.__init__
    monkeypatch.setattr(coterie.ring.Ring, "__init__", lambda self, size, *rest: make(self, size - 1, *rest))
    replay = filled(7)
    assert "obs" in wrong_places(replay.sample(500), 3)


def test_the_newest_row_has_its_successor_before_the_next_window_comes():
    replay = filled(1, length=1)
    sample = replay.sample(200)
    newest = sample.index // B == T - 1
    assert newest.any()
    assert sample.window.obs["agent"][1, newest, 0, 0].unique().tolist() == [100.0 * T, 100.0 * T + 1]
    assert sample.window.acted[1, newest].tolist() == acted_in(T, 1)[0][sample.index[newest] % B].tolist()


def test_closing_rows_are_inside_sequences_but_begin_none():
    sample = filled(4, length=4).sample(500)
    assert sample.window.acted[0].all()
    assert not sample.window.acted.all()
    ends = sample.window.episode_terminated[:-1] & sample.window.acted[:-2]
    assert ends.any()
    assert not sample.window.acted[1:-1][ends].any()


def test_a_life_that_begins_within_an_episode_begins_no_sequence_of_episodes():
    replay = replay_of(starts="episode")
    for i in range(4):
        replay.add(window_at(i * T, reborn=True))
    assert set(replay.sample(500).index.tolist()) == expected_starts(4, 5 * T, 3, "episode")


def test_windows_bring_the_memory_that_was_stored_for_them():
    replay = filled(13, starts="window", length=8)
    sample = replay.sample(300)
    memory = sample.window.carry["memory"]
    assert memory.shape == (300, 2, 4)
    number = (sample.index // B * 100 + sample.index % B).float() + 0.25
    assert memory.equal(number.view(-1, 1, 1).expand(-1, 2, 4))


def test_only_what_learning_asks_for_is_stored():
    window = filled(2).sample(3).window
    assert window.record == {}
    assert window.carry == {}
    assert list(window.state) == ["global"]
    assert filled(2, states=()).sample(3).window.state == {}


def test_what_was_drawn_is_a_copy():
    replay = filled(2, length=1)
    sample = replay.sample(100)
    tree_map(lambda x: x.zero_(), (sample.window.obs, sample.window.reward))
    assert wrong_places(replay.sample(100), 1) == []


def test_a_window_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="3 rows and 2 copies in a replay of windows of 4 rows and 2 copies"):
        replay_of().add(window_at(0, 3))


def test_nothing_can_be_drawn_before_a_sequence_is_complete():
    replay = filled(1, length=5)
    assert (replay.starts_held, replay.ready(1)) == (0, False)
    with pytest.raises(ValueError, match="nothing can be drawn"):
        replay.sample(1)


def test_capacity_counts_steps_and_is_rounded_up_to_whole_windows():
    assert filled(9, capacity=17, length=1).description.startswith("replay of 24 steps: ")
    assert expected_starts(9, 12, 1, "row") == set(filled(9, capacity=17, length=1).sample(800).index.tolist())


def test_draws_are_uniform():
    """Chi-square over the 29 starts: below the 99.9 % quantile of 28 degrees of freedom, and not far below its mean."""
    replay = filled(5, length=3)
    starts = sorted(expected_starts(5, 5 * T, 3, "row"))
    assert len(starts) == 29
    counts = torch.bincount(replay.sample(29_000).index, minlength=starts[-1] + 1)[starts]
    statistic = ((counts - 1000.0) ** 2 / 1000).sum().item()
    assert 8 < statistic < 56.9
    half = torch.cat([counts[:14] + counts[14:28], counts[:14]])[:28]  # the control: some twice as often
    assert ((half - half.float().mean()) ** 2 / half.float().mean()).sum() > 56.9


def test_seeds_choose_the_draws_and_nothing_touches_the_global_generator():
    before = torch.get_rng_state()
    a, b, c = (filled(4, seed=seed).sample(50).index for seed in (1, 1, 2))
    assert a.equal(b)
    assert not a.equal(c)
    assert torch.get_rng_state().equal(before)


# ----------------------------------------------------------------------------------------------------------- priorities


def single(alpha: float, beta: float = 0.0, windows: int = 1) -> Replay:
    """A replay of eight rows, one copy and no closing rows."""
    replay = Replay(
        TEAM, 1, T, capacity=8, length=1, starts="row", states=(), seed=3, device=CPU,
        priority_exponent=alpha, importance_exponent=beta,
    )  # fmt: skip
    for i in range(windows):
        replay.add(alone(i * T))
    return replay


def alone(start: int) -> Window:
    window = tree_map(lambda x: x[:, :1], window_at(start))
    return Window(**vars(window) | {"acted": torch.ones(T + 1, 1, dtype=torch.bool), "carry": {}, "record": {}})


def test_draws_are_in_proportion_to_priorities_one_from_each_equal_part():
    """Errors 1, 2, 3, 4 and ten draws: the parts of a tenth lie whole within one priority each."""
    replay = single(1.0)
    replay.reprioritise(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    for _ in range(20):
        assert torch.bincount(replay.sample(10).index).tolist() == [1, 2, 3, 4]


def test_the_exponent_flattens_the_proportions():
    replay = single(0.5)
    replay.reprioritise(torch.arange(4), torch.tensor([1.0, 4.0, 9.0, 16.0]))
    assert torch.bincount(replay.sample(10).index).tolist() == [1, 2, 3, 4]


def test_importance_weights_have_their_literal_values():
    """(4 x 0.1)^-1 = 2.5, 1.25, 0.8333, 0.625 over their largest; with beta 1/2 their roots."""
    replay = single(1.0, 1.0)
    replay.reprioritise(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    for beta, expected in ((1.0, [1.0, 0.5, 1 / 3, 0.25]), (0.5, [1.0, 0.70711, 0.57735, 0.5]), (0.0, [1.0] * 4)):
        replay.importance_exponent = beta
        sample = replay.sample(10)
        assert sample.weight.dtype == torch.float32
        torch.testing.assert_close(sample.weight, torch.tensor(expected)[sample.index], rtol=1e-4, atol=1e-5)


def test_new_sequences_get_the_highest_priority_so_far():
    replay = single(1.0)
    replay.reprioritise(torch.arange(4), torch.tensor([1.0, 0.5, 6.0, 0.5]))
    replay.add(alone(T))  # 8 in the old rows, 24 in the new ones
    assert torch.bincount(replay.sample(32).index).tolist() == pytest.approx([1, 0.5, 6, 0.5, 6, 6, 6, 6], abs=1)


def test_an_overwritten_sequence_is_passed_over_and_its_successor_keeps_its_priority():
    replay = single(1.0, windows=2)
    sample_before = torch.arange(4)
    replay.add(alone(2 * T))
    replay.reprioritise(sample_before, torch.full((4,), 1e6))
    index = replay.sample(80).index
    assert sorted(set(index.tolist())) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert torch.bincount(index)[4:].tolist() == pytest.approx([10] * 8, abs=1)


def test_a_sequence_without_error_is_drawn_again_some_day():
    replay = single(1.0)
    replay.reprioritise(torch.arange(4), torch.zeros(4))
    assert set(replay.sample(8).index.tolist()) == {0, 1, 2, 3}


def test_uniform_replay_takes_no_priorities():
    replay, other = filled(3), filled(3)
    replay.reprioritise(torch.arange(4), torch.tensor([1.0, 0.0, 1e9, 3.0]))
    sample = replay.sample(64)
    assert sample.index.equal(other.sample(64).index)
    assert sample.weight.equal(torch.ones(64))


# ------------------------------------------------------------------------------------------------------- what is stored


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_stores_agree_bit_for_bit(alpha):
    stores = [replay_of(store=store, priority_exponent=alpha) for store in ("device", "cpu", "disk")]
    for i in range(9):
        samples = []
        for replay in stores:
            replay.add(window_at(i * T))
            samples.append(replay.sample(20))
            replay.reprioritise(samples[-1].index, samples[-1].window.obs["agent"][0, :, 0, 0])
        leaves = [tree_leaves((s.window, s.index, s.weight)) for s in samples]
        assert all(a.equal(b) and a.equal(c) for a, b, c in zip(*leaves, strict=True))


def test_images_and_sensors_keep_their_types_and_choices_come_back_as_integers():
    sensors = spaces.Dict(camera=spaces.Box(0, 255, (3, 4, 4), dtype="uint8"), speed=spaces.Box(-1, 1, (2,)))
    team = team_of(sensors, spaces.Tuple((spaces.Discrete(300), spaces.Box(-1, 1, (2,)))))
    replay = Replay(team, B, T, capacity=40, length=1, starts="row", states=(), seed=0, device=CPU)
    expected = replay.nbytes
    plain = window_at(0)
    camera = torch.randint(256, (T + 1, B, 2, 3, 4, 4), dtype=torch.uint8)
    choice = torch.tensor([0, 127, 128, 299]).view(T, 1, 1, 1).expand(T, B, 2, 1)
    replay.add(
        Window(
            **vars(plain)
            | {
                "obs": {"agent": {"camera": camera, "speed": torch.ones(T + 1, B, 2, 2, dtype=torch.float64)}},
                "action": {"agent": Action(choice, torch.full((T, B, 2, 2), 0.5))},
                "action_mask": {"agent": torch.ones(T + 1, B, 2, 300, dtype=torch.bool)},
            }
        )
    )
    sample = replay.sample(40)
    row, b = sample.index // B, sample.index % B
    seen, action = sample.window.obs["agent"], sample.window.action["agent"]
    assert seen["camera"].dtype == torch.uint8
    assert seen["camera"][1].equal(camera[row + 1, b])
    assert seen["speed"].dtype == torch.float32
    assert action.discrete is not None
    assert action.discrete.dtype == torch.int64
    assert action.discrete[0].equal(choice[row, b])
    assert action.continuous is not None
    assert action.continuous.unique().tolist() == [0.5]
    assert replay.nbytes == expected


def test_the_size_is_known_before_anything_is_stored():
    """A row of a copy: obs 2 x 3 x 4, mask 2 x 5, state 2 x 4, flags 5, choices 2 x 1, rewards 2 x 4 + 4, ends 6; a
    mark and eight bytes in the queue; 21 rows of 2 copies, the last without a place in the queue.
    """
    replay = replay_of()
    assert replay.nbytes == 42 * (24 + 10 + 8 + 5 + 2 + 12 + 6 + 1) + 40 * 8
    assert replay.description == "replay of 40 steps: 3.2 kB in memory"
    replay.add(window_at(0))
    assert replay.nbytes == 42 * 68 + 40 * 8
    assert replay_of(store="disk").description == "replay of 40 steps: 3.2 kB on disk"
    carry = {"memory": torch.zeros(B, 2, 4)}
    stored = 42 * 68 + 12 * 8 + 6 * B * 2 * 4 * 4
    assert replay_of(starts="window", carry=carry).nbytes == filled(1, starts="window").nbytes == stored


@pytest.mark.parametrize("store", ["device", "disk"])
def test_leaves_without_entries_are_carried_along(store):
    replay = replay_of(store=store)
    window = window_at(0)
    replay.add(Window(**vars(window) | {"group_reward": torch.zeros(T, B, 0)}))
    assert replay.sample(6).window.group_reward.shape == (3, 6, 0)


# --------------------------------------------------------------------------------------------------------------- limits


def test_a_replay_that_cannot_fit_is_refused_with_what_is_free_and_the_mend(monkeypatch):
    gc.collect()
    for disk, mend in ((10**9, ""), (200_000, " with TMPDIR=a folder on a larger disk")):
        free = {"device": 200_000, "disk": disk}
        monkeypatch.setattr(coterie.replay, "free_bytes", lambda store, device, free=free: free[store])
        with pytest.raises(UserError) as caught:
            replay_of(capacity=4000)
        assert str(caught.value) == (
            "algo.replay=4000 does not fit: a replay of 4,000 steps takes 304 kB of memory, and 200 kB are free; "
            f"give algo.replay=2600 or algo.replay_store=disk{mend}"
        )
    with pytest.raises(UserError, match=r"of the temporary folder's disk, and .* or TMPDIR=a folder on a larger disk"):
        replay_of(capacity=4000, store="disk")
    assert replay_of(capacity=2600).nbytes <= 200_000
    with unfilled():
        assert replay_of(capacity=4000).starts_held == 0


def test_replays_that_are_not_filled_yet_count_as_taken(monkeypatch):
    gc.collect()
    monkeypatch.setattr(coterie.replay, "free_bytes", lambda store, device: 400_000)
    one = replay_of(capacity=4000)
    with pytest.raises(UserError, match="and 96 kB are free"):
        replay_of(capacity=4000)
    on_disk = replay_of(capacity=4000, store="disk")
    one.add(window_at(0))  # from now on the system itself knows
    assert replay_of(capacity=4000).nbytes == one.nbytes == on_disk.nbytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 8, "length": 5}, "algo.replay=8 holds 4 rows of 2 copies, .* give at least algo.replay=10"),
        ({"capacity": 0}, "algo.replay=0 and sequences of 3 steps: expected at least 1 of both"),
        ({"least": 41}, "algo.replay=40 holds at most 36 sequences of 3 steps, less than algo.batch=41"),
        ({"starts": "window", "least": 11}, "holds at most 10 sequences of 3 steps, less than algo.batch=11"),
    ],
)
def test_a_replay_that_can_hold_no_sequence_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        replay_of(**changes)


def test_the_files_of_a_replay_on_disk_go_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    replay = filled(3, store="disk")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("coterie-replay-")
    assert list(folder.iterdir()) == []  # a killed process leaves nothing behind either
    assert wrong_places(replay.sample(50), 3) == []
    del replay
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_one_clear_line(monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(
        UserError, match=r"^cannot write the replay in the temporary folder .*: No space left on device"
    ):
        filled(1, store="disk")


# --------------------------------------------------------------------------------------------------------------- resume

KINDS = [("row", 3, 0.0), ("row", 1, 0.6), ("window", 8, 0.0), ("window", 2, 0.6), ("episode", 6, 0.0)]


def draw(replay: Replay) -> list[Tensor]:
    sample = replay.sample(16)
    replay.reprioritise(sample.index, sample.window.reward[0, :, 0] % 7)
    return tree_leaves((sample.window, sample.index, sample.weight))


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of one window."""
    monkeypatch.setattr(coterie.replay, "_SEGMENT_BYTES", 1)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(("starts", "length", "alpha"), KINDS)
@pytest.mark.parametrize("windows", [0, 1, 3, 5, 12, 13])
@pytest.mark.parametrize("segments", ["many", "none"])
def test_a_resumed_replay_draws_what_an_uninterrupted_one_draws(
    tmp_path, monkeypatch, starts, length, alpha, windows, segments
):
    if segments == "none":
        monkeypatch.setattr(coterie.replay, "_SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    settings = {"starts": starts, "length": length, "priority_exponent": alpha, "importance_exponent": 0.4}
    one = filled(0, **settings)
    store = Checkpoints(tmp_path)
    for i in range(windows):
        one.add(window_at(i * T))
        if one.starts_held:
            draw(one)
        store.save(i + 1, {"replay": one.state_dict()}, {})
    store.save(windows + 1, {"replay": one.state_dict()}, {})
    assert (tmp_path / "segments").exists() == (segments == "many" and windows > 1)
    found = store.latest()
    assert found is not None
    other = filled(2, **{**settings, "seed": 99})
    other.load_state_dict(found.state["replay"])
    for i in range(windows, windows + 8):
        if one.starts_held:
            assert all(a.equal(b) for a, b in zip(draw(one), draw(other), strict=True))
        one.add(window_at(i * T))
        other.add(window_at(i * T))
        assert one.starts_held == other.starts_held
    again = filled(0, **settings)
    again.load_state_dict(copy.deepcopy(other.state_dict()))
    assert all(a.equal(b) for a, b in zip(draw(one), draw(again), strict=True))


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("entry", ["generator", "priority"])
def test_a_state_without_generator_or_priorities_would_be_noticed(entry):
    one, other = filled(6, priority_exponent=0.6), filled(6, priority_exponent=0.6)
    draw(one)
    state = copy.deepcopy(one.state_dict())
    if entry == "generator":
        state["generator"] = other.state_dict()["generator"]
    else:
        state["starts"]["priority"] = other.state_dict()["starts"]["priority"]
    other.load_state_dict(state)
    assert not all(a.equal(b) for a, b in zip(draw(one), draw(other), strict=True))


@pytest.mark.usefixtures("small_segments")
def test_segments_are_written_once_and_those_that_nothing_names_are_removed(tmp_path):
    def files() -> dict[str, tuple[int, int]]:
        return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "segments").iterdir()}

    replay, store, seen, most = replay_of(), Checkpoints(tmp_path), {}, 0
    for i in range(15):
        replay.add(window_at(i * T))
        store.save(i + 1, {"replay": replay.state_dict()}, {}, best=i == 3, numbered=i == 6)
        if i:
            assert all(seen.get(name, now) == now for name, now in files().items())
            seen |= files()
            most = max(most, len(files()))
    assert len(seen) == 14  # every window but the newest, each in one file for good
    assert most <= 6  # the ring holds five windows, and the checkpoint before last one that it has lost since
    for found in (store.load_best(), store.load_steps(7)):
        assert found is not None
        assert found.warning is None


@pytest.mark.usefixtures("small_segments")
def test_a_state_is_saved_before_its_replay_goes_on():
    replay = filled(5)
    state, kept = replay.state_dict(), copy.deepcopy(replay.state_dict())
    for i in range(5, 9):
        replay.add(window_at(i * T))
    with pytest.raises(RuntimeError, match="before windows are added"):
        replay_of().load_state_dict(state)
    other = replay_of()
    other.load_state_dict(kept)
    assert other.sample(9).index.equal(filled(5).sample(9).index)


def test_the_state_of_another_replay_is_refused():
    state = filled(3).state_dict()
    with pytest.raises(UserError, match=r"\[20, 2, 4, 3, 'row'\], this run's \[20, 2, 4, 2, 'row'\]"):
        replay_of(length=2).load_state_dict(state)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("windows", [4, 7])
def test_an_environment_that_begins_anew_cuts_every_episode_where_the_run_stopped(windows):
    """The row that was to come stays as a closing row: no transition leads from the old episode into the new one."""
    one = filled(windows, length=2)
    other = replay_of(length=2)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    head = windows * T
    foreign = window_at(10_000)
    other.add(foreign)
    last = acted_in(head - 1, 1)[0]
    sample = other.sample(2000)
    row, b = sample.index // B, sample.index % B
    across = row == head - 1
    assert set(b[across].tolist()) == set(last.nonzero().flatten().tolist())
    window = sample.window
    assert window.obs["agent"][1, across, 0, 0].equal(100.0 * head + b[across])  # the true successor
    assert not window.acted[1, across].any()
    ended = ~acted_in(head, 1)[0][b[across]]  # those of the copies whose task was over anyway
    assert window.episode_terminated[0, across].equal(ended)
    assert window.episode_truncated[0, across].equal(~ended)
    assert window.truncated[0, across, 0].equal(~ended)
    assert window.reward[1, across].abs().sum() == 0
    assert window.obs["agent"][2, across, 0, 0].equal(foreign.obs["agent"][0, b[across], 0, 0])
    assert not (row == head).any()
    assert (row == head + 1).any() == acted_in(10_000, 1).any()


@pytest.mark.parametrize("anew", [True, False])
def test_windows_after_a_pause_cut_the_episodes_before_if_every_copy_begins_anew(anew):
    """A team that did not learn for a while comes back with new episodes. Negative control: rows that do not say so
    would be taken for the successors of those before.
    """
    replay, head = filled(4, length=2), 4 * T
    foreign = window_at(10_000, reborn=anew)
    replay.add(foreign)
    sample = replay.sample(2000)
    row, b = sample.index // B, sample.index % B
    across = row == head - 1
    assert across.any()
    shown = sample.window.obs["agent"][1, across, 0, 0]
    assert shown.equal(100.0 * head + b[across]) == anew
    assert shown.equal(foreign.obs["agent"][0, b[across], 0, 0]) == (not anew)


@pytest.mark.parametrize(("starts", "length", "alpha"), KINDS)
def test_after_a_cut_exactly_the_sequences_of_the_stream_with_its_closing_row_are_drawn(starts, length, alpha):
    """Rows 24 on are the closing row and then windows 4, 5, ... again, which a stream begins with `acted` as there."""
    settings = {"starts": starts, "length": length, "priority_exponent": alpha}
    replay = replay_of(**settings)
    replay.load_state_dict(filled(6, **settings).state_dict())
    acted = torch.cat([acted_in(0, 24), torch.zeros(1, B, dtype=torch.bool), acted_in(16, 40)])
    number = torch.cat([numbers(0, 25), numbers(16, 40)])
    begins = {*range(0, 24, T), *range(25, 65, T)}
    for i in range(10):
        replay.add(window_at((4 + i) * T))
        head = 25 + (i + 1) * T
        before = torch.cat([torch.zeros(1, B, dtype=torch.bool), acted[:-1]])
        marks = {
            "row": acted,
            "episode": acted & ~before,
            "window": torch.tensor([row in begins for row in range(len(acted))]).unsqueeze(1).expand(-1, B),
        }[starts]
        rows = range(head - 5 * T, head - length + 1)
        expected = {row * B + b for row in rows for b in range(B) if marks[row, b]}
        assert replay.starts_held == len(expected)
        if not expected:
            continue
        sample = replay.sample(1500)
        assert set(sample.index.tolist()) == expected
        places = sample.index // B + torch.arange(length + 1).unsqueeze(1)
        inside = places < len(number)  # the row to look ahead of the last window is past what is written out here
        shown, found = (
            number[places.clamp(max=len(number) - 1), sample.index % B],
            sample.window.obs["agent"][..., 0, 0],
        )
        assert found[inside].equal(shown[inside])
        assert sample.window.acted[inside].equal(acted[places.clamp(max=len(acted) - 1), sample.index % B][inside])
        if starts == "window":
            assert sample.window.carry["memory"][:, 0, 0].equal(shown[0] + 0.25)


def test_an_environment_that_goes_on_is_not_cut():
    one, other = filled(4, length=2), replay_of(length=2)
    other.load_state_dict(one.state_dict())
    other.add(window_at(4 * T))
    assert wrong_places(other.sample(500), 2) == []
