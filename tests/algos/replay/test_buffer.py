"""The stored numbers encode their timestep and environment, so that sampled sequences can be checked exactly."""

from __future__ import annotations

import copy
import gc
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.algos.replay import checkpoint, memory
from coterie.algos.replay.buffer import STEP_FIELDS, ReplayBuffer, ReplaySample
from coterie.algos.replay.checkpoint import ReplayCheckpoint
from coterie.algos.replay.spec import ReplaySpec
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from coterie.core.tree import tree_leaves, tree_map
from coterie.core.types import Action, Rollout
from coterie.ranks.ranks import Ranks
from coterie.runs.checkpoints import Checkpoints
from rank_threads import on_ranks

CPU = torch.device("cpu")
T, B = 4, 2
EPISODE = 5  # timesteps of an episode with its final one; environment 1 is two timesteps ahead of environment 0


def team_of(observation: spaces.Space | None = None, action: spaces.Space | None = None, n: int = 2) -> TeamSpec:
    role = RoleSpec(
        "agent", "agent", tuple(f"agent_{i}" for i in range(n)),
        observation or spaces.Box(-9, 9, (3,)), action or spaces.Discrete(5),
    )  # fmt: skip
    return EnvSpec("stream", (role,), {"global": 2, "other": 7}).default_teams()[0]


TEAM = team_of()


def numbers(start: int, rows: int, num_envs: int = B) -> Tensor:
    """Returns 100 * timestep + environment [rows, num_envs]."""
    return torch.arange(start, start + rows).unsqueeze(1) * 100.0 + torch.arange(num_envs)


def acted_in(start: int, rows: int) -> Tensor:
    ages = torch.arange(start, start + rows).unsqueeze(1) + torch.tensor([0, 2])
    return ages % EPISODE != EPISODE - 1


def rollout_at(start: int, rows: int = T, reborn: bool = False) -> Rollout:
    """Returns the rollout from timestep `start` of the stream on; reborn: agents appear at each timestep."""
    number, acted = numbers(start, rows + 1), acted_in(start, rows + 1)
    begins = torch.cat([~acted_in(start - 1, 1), ~acted[:-1]])
    first = (begins | reborn).unsqueeze(-1).expand(-1, -1, 2)
    ended = ~acted[1:]
    step = number[:-1]
    return Rollout(
        obs={"agent": number.view(rows + 1, B, 1, 1) + torch.zeros(2, 3)},
        action_mask={"agent": (number.long() % 3 == 0).view(rows + 1, B, 1, 1).expand(-1, -1, 2, 5)},
        state={"global": number.unsqueeze(-1).expand(-1, -1, 2), "other": torch.zeros(rows + 1, B, 7)},
        alive=torch.ones(rows + 1, B, 2, dtype=torch.bool),
        first=first,
        acted=acted,
        action={"agent": Action((step.long() % 5).view(rows, B, 1, 1).expand(-1, -1, 2, 1))},
        extras={"log_prob": torch.zeros(rows, B, 2)},
        hidden_state={"h": (step[0] + 0.25).view(B, 1, 1).expand(B, 2, 4)},
        reward=(step + 0.5).unsqueeze(-1).expand(-1, -1, 2),
        group_reward=-step.unsqueeze(-1),
        terminated=ended.unsqueeze(-1).expand(-1, -1, 2),
        truncated=torch.zeros(rows, B, 2, dtype=torch.bool),
        episode_terminated=ended,
        episode_truncated=torch.zeros(rows, B, dtype=torch.bool),
    )


def make_buffer(**changes: Any) -> ReplayBuffer:
    settings: dict[str, Any] = {
        "capacity": 5 * T * B,
        "sequence_length": 3,
        "sequence_start": "timestep",
        "states": ("global",),
        "seed": 1,
    }
    spec = {"team": TEAM, "num_envs": B, "rollout_length": T, **settings, "device": CPU, **changes}
    return ReplayBuffer(ReplaySpec(**spec))


def filled_buffer(rollouts: int, **changes: Any) -> ReplayBuffer:
    buffer = make_buffer(**changes)
    for i in range(rollouts):
        buffer.add(rollout_at(i * T))
    return buffer


def wrong_fields(sample: ReplaySample, length: int) -> list[str]:
    """Returns the fields of a sample that differ from the stream at the positions in its index."""
    rollout, wrong = sample.rollout, []
    row, num_envs = sample.index // B, sample.index % B
    rows = row + torch.arange(length + 1).unsqueeze(1)
    count = len(sample.index)
    stop = int(rows.max()) + 1
    whole = rollout_at(0, stop)
    expected = {name: getattr(whole, name) for name in vars(whole) if name not in {"extras", "hidden_state"}}
    expected["state"] = {"global": expected["state"]["global"]}
    for name, leaves in expected.items():
        found = getattr(rollout, name)
        places = rows[:length] if name in STEP_FIELDS else rows
        for a, b in zip(tree_leaves(leaves), tree_leaves(found), strict=True):
            if b.shape[:2] != (len(places), count) or a.dtype != b.dtype or not a[places, num_envs].equal(b):
                wrong.append(name)
    return wrong


def expected_starts(rollouts: int, kept: int, length: int, starts: str) -> set[int]:
    """Positions by definition, one timestep and environment at a time."""
    head, acted = rollouts * T, acted_in(0, rollouts * T)
    held = set()
    for row in range(max(0, head - kept), head - length + 1):
        for b in range(B):
            begins = {
                "timestep": acted[row, b],
                "rollout": row % T == 0,
                "episode": acted[row, b] and (row == 0 or not acted[row - 1, b]),
            }[starts]
            if begins:
                held.add(row * B + b)
    return held


# ------------------------------------------------------------------------------------------------------------ sequences


@pytest.mark.parametrize(
    ("starts", "length", "alpha"),
    [
        *(("timestep", 1, 0.0), ("timestep", 3, 0.5), ("timestep", 6, 0.0), ("rollout", 2, 0.5), ("rollout", 4, 0.0)),
        *(("rollout", 8, 0.5), ("episode", 5, 0.0), ("episode", 20, 0.5)),
    ],
)
def test_exactly_the_complete_sequences_are_sampled_and_each_equals_the_stream(starts, length, alpha):
    buffer = make_buffer(sequence_start=starts, sequence_length=length, priority_alpha=alpha)
    for rollouts in range(1, 17):
        buffer.add(rollout_at((rollouts - 1) * T))
        expected = expected_starts(rollouts, 5 * T, length, starts)
        assert buffer.num_sequences == len(expected), rollouts
        if expected:
            sample = buffer.sample(1500)
            assert set(sample.index.tolist()) == expected
            assert wrong_fields(sample, length) == []


def test_an_agent_that_appears_within_an_episode_starts_no_episode_sequence():
    buffer = make_buffer(sequence_start="episode")
    for i in range(4):
        buffer.add(rollout_at(i * T, reborn=True))
    assert set(buffer.sample(500).index.tolist()) == expected_starts(4, 5 * T, 3, "episode")


def test_only_requested_fields_are_stored():
    rollout = filled_buffer(2).sample(3).rollout
    assert rollout.extras == {}
    assert rollout.hidden_state == {}
    assert list(rollout.state) == ["global"]
    assert filled_buffer(2, states=()).sample(3).rollout.state == {}


def test_samples_are_copies():
    buffer = filled_buffer(2, sequence_length=1)
    sample = buffer.sample(100)
    tree_map(lambda x: x.zero_(), (sample.rollout.obs, sample.rollout.reward))
    assert wrong_fields(buffer.sample(100), 1) == []


def test_a_rollout_of_another_shape_is_refused():
    with pytest.raises(
        ValueError, match="3 timesteps of 2 environments in a replay buffer for 4 timesteps of 2 environments"
    ):
        make_buffer().add(rollout_at(0, 3))


def test_the_mean_age_is_that_of_the_steps_held():
    """Half of the steps held: of 12 and 20 timesteps of two environments; no more than 20 are held."""
    assert [filled_buffer(rollouts).mean_age for rollouts in (0, 3, 5, 9)] == [0, 12, 20, 20]
    buffer = make_buffer(num_envs=1)
    buffer.head = 3
    assert buffer.mean_age == 1.5


def test_steps_in_which_environments_acted_are_counted():
    buffer = make_buffer()
    added = [buffer.add(rollout_at(i * T)) for i in range(3)]
    assert added == [int(acted_in(i * T, T).sum()) for i in range(3)]
    assert 0 < added[0] < T * B, "an environment's final timestep is none"


def test_nothing_can_be_sampled_before_a_sequence_is_complete():
    buffer = filled_buffer(1, sequence_length=5)
    assert buffer.num_sequences == 0
    with pytest.raises(ValueError, match="no complete sequence yet"):
        buffer.sample(1)


def test_samples_are_uniform():
    """Chi-square over the 29 starts: below the 99.9 % quantile of 28 degrees of freedom, and not far below its mean."""
    buffer = filled_buffer(5, sequence_length=3)
    starts = sorted(expected_starts(5, 5 * T, 3, "timestep"))
    assert len(starts) == 29
    counts = torch.bincount(buffer.sample(29_000).index, minlength=starts[-1] + 1)[starts]
    statistic = ((counts - 1000.0) ** 2 / 1000).sum().item()
    assert 8 < statistic < 56.9
    half = torch.cat([counts[:14] + counts[14:28], counts[:14]])[:28]  # negative control: some twice as often
    assert ((half - half.float().mean()) ** 2 / half.float().mean()).sum() > 56.9


def test_the_seed_determines_samples_and_the_global_generator_is_unused():
    before = torch.get_rng_state()
    a, b, c = (filled_buffer(4, seed=seed).sample(50).index for seed in (1, 1, 2))
    assert a.equal(b)
    assert not a.equal(c)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_ranks_sample_the_sequences_of_one_process_and_a_masked_one_stands_in_for_none(alpha):
    """Each of two ranks holds one of the environments."""
    sizes = (6, 1, 1, 1, 1, 1)

    def samples_of(ranks: Ranks) -> list[tuple[ReplaySample, bool]]:
        buffer = make_buffer(num_envs=1, capacity=5 * T, priority_alpha=alpha, ranks=ranks)
        for i in range(3):
            own = tree_map(lambda x: x[:, ranks.rank : ranks.rank + 1], rollout_at(i * T))
            buffer.add(Rollout(**vars(own) | {"hidden_state": {}, "extras": {}}))
        return [(buffer.sample(size), ranks.stands_in) for size in sizes]

    whole = filled_buffer(3, priority_alpha=alpha)
    parts = on_ranks(2, samples_of)
    for size, first, second in zip(sizes, *parts, strict=True):
        expected = whole.sample(size)
        found = [sample for sample, stands_in in (first, second) if not stands_in]
        assert len(found) == len(set((expected.index % B).tolist()))
        index = torch.cat([sample.index for sample in found])
        assert sorted(index.tolist()) == sorted(expected.index.tolist())
        for sample in found:
            assert wrong_fields(sample, 3) == []
        for sample, stands_in in (first, second):
            assert bool(sample.rollout.acted.any()) != stands_in
            assert not stands_in or len(sample.index) == len(sample.weight) == 1


# ----------------------------------------------------------------------------------------------------------- priorities


def single(alpha: float, beta: float = 0.0, rollouts: int = 1) -> ReplayBuffer:
    """Returns a buffer of eight timesteps of one environment, without final timesteps."""
    buffer = ReplayBuffer(
        ReplaySpec(team=TEAM, num_envs=1, rollout_length=T, capacity=8, sequence_length=1, sequence_start="timestep",
        states=(), seed=3, device=CPU, priority_alpha=alpha, priority_beta=beta,)
    )  # fmt: skip
    for i in range(rollouts):
        buffer.add(alone(i * T))
    return buffer


def alone(start: int) -> Rollout:
    rollout = tree_map(lambda x: x[:, :1], rollout_at(start))
    return Rollout(
        **vars(rollout) | {"acted": torch.ones(T + 1, 1, dtype=torch.bool), "hidden_state": {}, "extras": {}}
    )


def test_importance_weights_of_literal_numbers():
    """(4 x 0.1)^-1 = 2.5, 1.25, 0.8333, 0.625 over their largest; with beta 1/2 their roots."""
    buffer = single(1.0, 1.0)
    buffer.update_priorities(torch.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    for beta, expected in ((1.0, [1.0, 0.5, 1 / 3, 0.25]), (0.5, [1.0, 0.70711, 0.57735, 0.5]), (0.0, [1.0] * 4)):
        buffer.priority_beta = beta
        sample = buffer.sample(10)
        assert sample.weight.dtype == torch.float32
        torch.testing.assert_close(sample.weight, torch.tensor(expected)[sample.index], rtol=1e-4, atol=1e-5)


def test_priorities_of_overwritten_sequences_are_ignored():
    buffer = single(1.0, rollouts=2)
    sample_before = torch.arange(4)
    buffer.add(alone(2 * T))
    buffer.update_priorities(sample_before, torch.full((4,), 1e6))
    index = buffer.sample(80).index
    assert sorted(set(index.tolist())) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert torch.bincount(index)[4:].tolist() == pytest.approx([10] * 8, abs=1)


def test_uniform_sampling_ignores_priorities():
    buffer, other = filled_buffer(3), filled_buffer(3)
    buffer.update_priorities(torch.arange(4), torch.tensor([1.0, 0.0, 1e9, 3.0]))
    sample = buffer.sample(64)
    assert sample.index.equal(other.sample(64).index)
    assert sample.weight.equal(torch.ones(64))


@pytest.mark.parametrize("kind", ["timestep", "episode", "rollout"])
def test_samples_that_are_read_at_once_are_those_drawn_one_after_another(kind, monkeypatch):
    one, other = filled_buffer(4, sequence_start=kind), filled_buffer(4, sequence_start=kind)
    per_sample = 10 * 4 * one.storage.bytes_per_timestep
    monkeypatch.setattr("coterie.algos.replay.buffer._BYTES_AT_ONCE", 3 * per_sample)  # 3, 3 and 1 samples
    together = list(one.samples(10, 7))
    assert len(together) == 7
    for found in together:
        expected = other.sample(10)
        assert all(x.equal(y) for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert one.sample(5).index.equal(other.sample(5).index)  # the generators are in the same state


def test_priorities_change_between_samples():
    buffer = single(1.0)
    drawn = buffer.samples(8, 2)
    next(drawn)
    buffer.update_priorities(torch.arange(4), torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert (next(drawn).index == 0).float().mean() > 0.8


# ------------------------------------------------------------------------------------------------------- what is stored


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_all_storages_are_equal_bit_for_bit(alpha):
    stores = [make_buffer(storage=storage, priority_alpha=alpha) for storage in ("device", "cpu", "disk")]
    for i in range(9):
        samples = []
        for buffer in stores:
            buffer.add(rollout_at(i * T))
            samples.append(buffer.sample(20))
            buffer.update_priorities(samples[-1].index, samples[-1].rollout.obs["agent"][0, :, 0, 0])
        leaves = [tree_leaves((s.rollout, s.index, s.weight)) for s in samples]
        assert all(a.equal(b) and a.equal(c) for a, b, c in zip(*leaves, strict=True))


def test_images_and_sensors_keep_their_types_and_discrete_actions_are_int64():
    sensors = spaces.Dict(camera=spaces.Box(0, 255, (3, 4, 4), dtype="uint8"), speed=spaces.Box(-1, 1, (2,)))
    team = team_of(sensors, spaces.Tuple((spaces.Discrete(300), spaces.Box(-1, 1, (2,)))))
    buffer = make_buffer(team=team, sequence_length=1, states=())
    expected = buffer.nbytes
    plain = rollout_at(0)
    camera = torch.randint(256, (T + 1, B, 2, 3, 4, 4), dtype=torch.uint8)
    choice = torch.tensor([0, 127, 128, 299]).view(T, 1, 1, 1).expand(T, B, 2, 1)
    buffer.add(
        Rollout(
            **vars(plain)
            | {
                "obs": {"agent": {"camera": camera, "speed": torch.ones(T + 1, B, 2, 2, dtype=torch.float64)}},
                "action": {"agent": Action(choice, torch.full((T, B, 2, 2), 0.5))},
                "action_mask": {"agent": torch.ones(T + 1, B, 2, 300, dtype=torch.bool)},
            }
        )
    )
    sample = buffer.sample(40)
    row, b = sample.index // B, sample.index % B
    seen, action = sample.rollout.obs["agent"], sample.rollout.action["agent"]
    assert seen["camera"].dtype == torch.uint8
    assert seen["camera"][1].equal(camera[row + 1, b])
    assert seen["speed"].dtype == torch.float32
    assert action.discrete is not None
    assert action.discrete.dtype == torch.int64
    assert action.discrete[0].equal(choice[row, b])
    assert action.continuous is not None
    assert action.continuous.unique().tolist() == [0.5]
    assert buffer.nbytes == expected


@pytest.mark.parametrize("storage", ["device", "disk"])
def test_empty_tensors_are_stored(storage):
    buffer = make_buffer(storage=storage)
    rollout = rollout_at(0)
    buffer.add(Rollout(**vars(rollout) | {"group_reward": torch.zeros(T, B, 0)}))
    assert buffer.sample(6).rollout.group_reward.shape == (3, 6, 0)


# --------------------------------------------------------------------------------------------------------------- limits


def test_buffers_that_are_not_allocated_yet_count_as_used_memory(monkeypatch):
    gc.collect()
    monkeypatch.setattr(memory, "free_bytes", lambda store, device: 400_000)
    one = make_buffer(capacity=4000)
    with pytest.raises(UserError, match="and 96 kB are free"):
        make_buffer(capacity=4000)
    on_disk = make_buffer(capacity=4000, storage="disk")
    one.add(rollout_at(0))  # now the operating system counts it
    assert make_buffer(capacity=4000).nbytes == one.nbytes == on_disk.nbytes


def test_a_buffer_without_room_for_a_batch_is_refused():
    with pytest.raises(UserError, match=r"algo.buffer_size=40: holds at most 36 sequences .* algo.batch_size=41"):
        make_buffer(min_sequences=41)


def test_the_files_of_a_buffer_on_disk_are_removed_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    buffer = filled_buffer(3, storage="disk")
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("coterie-replay-")
    assert list(folder.iterdir()) == []  # nor does a killed process leave files
    assert wrong_fields(buffer.sample(50), 3) == []
    del buffer
    gc.collect()
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------------- resume

KINDS = [("timestep", 3, 0.0), ("timestep", 1, 0.6), ("rollout", 8, 0.0), ("rollout", 2, 0.6), ("episode", 6, 0.0)]
SAVED = [(13, "many"), (5, "none"), (0, "none"), (13, "many"), (1, "many")]
"""Rollouts before the checkpoint, and whether they are in several segments, for each of them."""


def draw(buffer: ReplayBuffer) -> list[Tensor]:
    sample = buffer.sample(16)
    buffer.update_priorities(sample.index, sample.rollout.reward[0, :, 0] % 7)
    return tree_leaves((sample.rollout, sample.index, sample.weight))


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of one rollout."""
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", 1)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(
    ("starts", "length", "alpha", "rollouts", "segments"), [(*a, *b) for a, b in zip(KINDS, SAVED, strict=True)]
)
def test_a_resumed_buffer_samples_like_an_uninterrupted_one(
    tmp_path, monkeypatch, starts, length, alpha, rollouts, segments
):
    if segments == "none":
        monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    settings = {"sequence_start": starts, "sequence_length": length, "priority_alpha": alpha, "priority_beta": 0.4}
    one = filled_buffer(0, **settings)
    saved, store = ReplayCheckpoint(one), Checkpoints(tmp_path)
    for i in range(rollouts):
        one.add(rollout_at(i * T))
        if one.num_sequences:
            draw(one)
        store.save(i + 1, {"replay": saved.state_dict()}, {})
    store.save(rollouts + 1, {"replay": saved.state_dict()}, {})
    assert (tmp_path / "segments").exists() == (segments == "many" and rollouts > 1)
    found = store.latest()
    assert found is not None
    other = filled_buffer(2, **{**settings, "seed": 99})
    ReplayCheckpoint(other).load_state_dict(found.state["replay"])
    for i in range(rollouts, rollouts + 8):
        if one.num_sequences:
            assert all(a.equal(b) for a, b in zip(draw(one), draw(other), strict=True))
        one.add(rollout_at(i * T))
        other.add(rollout_at(i * T))
        assert one.num_sequences == other.num_sequences
    again = filled_buffer(0, **settings)
    ReplayCheckpoint(again).load_state_dict(copy.deepcopy(ReplayCheckpoint(other).state_dict()))
    assert all(a.equal(b) for a, b in zip(draw(one), draw(again), strict=True))


@pytest.mark.parametrize("part", ["state", "obs", "action_mask"])
def test_a_checkpoint_without_some_tensors_is_refused_at_the_next_rollout(part):
    state = copy.deepcopy(ReplayCheckpoint(filled_buffer(2)).state_dict())
    for _, piece in state["pieces"]:
        piece["timesteps"][part] = {}
    other = filled_buffer(0)
    ReplayCheckpoint(other).load_state_dict(state)
    with pytest.raises(UserError, match="does not have the tensors of a rollout"):
        other.add(rollout_at(2 * T))


@pytest.mark.parametrize(("minimum", "rollouts"), [(1.0, 1), (2.0, 2), (2.1, 3), (0.01, 1)])
def test_segments_are_whole_rollouts_of_a_minimum_size(monkeypatch, minimum, rollouts):
    """The minimum is given in rollouts; a storage of twelve has no segment above a 256th of it otherwise."""
    storage = filled_buffer(1).storage
    assert storage is not None
    nbytes = sum(leaf.nbytes for leaf in tree_leaves((storage.timesteps, storage.steps)))
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", minimum * T * nbytes / storage.size)
    assert ReplayCheckpoint(filled_buffer(1)).state_dict()["segment_length"] == rollouts * T


def test_a_large_buffer_has_at_most_256_segments(monkeypatch):
    """The storage has 520 rollouts: two and a bit are a 256th of it, so a segment has three."""
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", 1)
    buffer = filled_buffer(1, capacity=519 * T * B)
    assert buffer.storage is not None
    assert 512 * T < buffer.storage.size <= 768 * T
    assert ReplayCheckpoint(buffer).state_dict()["segment_length"] == 3 * T
    for timesteps, length in ((511, 2), (513, 3)):
        buffer = make_buffer(rollout_length=1, sequence_length=1, capacity=timesteps * B)
        buffer.add(rollout_at(0, 1))
        assert ReplayCheckpoint(buffer).state_dict()["segment_length"] == length


@pytest.mark.usefixtures("small_segments")
def test_segments_are_written_once_and_unused_ones_are_removed(tmp_path):
    def files() -> dict[str, tuple[int, int]]:
        return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (tmp_path / "segments").iterdir()}

    buffer, store, seen, most = make_buffer(), Checkpoints(tmp_path), {}, 0
    saved = ReplayCheckpoint(buffer)
    for i in range(15):
        buffer.add(rollout_at(i * T))
        store.save(i + 1, {"replay": saved.state_dict()}, {}, best=i == 3, numbered=i == 6)
        if i:
            assert all(seen.get(name, now) == now for name, now in files().items())
            seen |= files()
            most = max(most, len(files()))
    assert len(seen) == 14  # one file per rollout except the newest
    assert most <= 6  # five rollouts in the ring, and one more of the checkpoint before the last
    for found in (store.load_best(), store.load_steps(7)):
        assert found is not None
        assert found.warning is None


@pytest.mark.usefixtures("small_segments")
def test_a_state_must_be_saved_before_the_next_rollout():
    buffer = filled_buffer(5)
    state, kept = ReplayCheckpoint(buffer).state_dict(), copy.deepcopy(ReplayCheckpoint(buffer).state_dict())
    for i in range(5, 9):
        buffer.add(rollout_at(i * T))
    with pytest.raises(RuntimeError, match="before rollouts are added"):
        ReplayCheckpoint(make_buffer()).load_state_dict(state)
    other = make_buffer()
    ReplayCheckpoint(other).load_state_dict(kept)
    assert other.sample(9).index.equal(filled_buffer(5).sample(9).index)


@pytest.mark.parametrize(("rollouts", "segments"), [(3, 1), (5, 1 << 20), (7, 1), (7, 1 << 20)])
def test_a_state_has_each_timestep_once_and_nothing_after_the_newest(monkeypatch, rollouts, segments):
    monkeypatch.setattr(checkpoint, "SEGMENT_BYTES", segments)
    state = ReplayCheckpoint(filled_buffer(rollouts)).state_dict()
    held = [start + i for start, piece in state["pieces"] for i in range(len(piece["is_start"]))]
    held += [start + i for start in state["segments"] for i in range(state["segment_length"])]
    assert sorted(held) == list(range(max(0, rollouts - 5) * T, rollouts * T + 1))  # and the bootstrap timestep


def test_the_state_of_a_buffer_with_other_settings_is_refused():
    state = ReplayCheckpoint(filled_buffer(3)).state_dict()
    with pytest.raises(UserError, match=r"\[20, 2, 4, 3, 'timestep'\], this run's \[20, 2, 4, 2, 'timestep'\]"):
        ReplayCheckpoint(make_buffer(sequence_length=2)).load_state_dict(state)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("rollouts", [4, 7])
def test_environments_that_restart_truncate_all_episodes_where_the_run_stopped(rollouts):
    """The bootstrap timestep becomes a final one: no transition leads from the old episode into the new one."""
    one = filled_buffer(rollouts, sequence_length=2)
    other = make_buffer(sequence_length=2)
    ReplayCheckpoint(other).load_state_dict(copy.deepcopy(ReplayCheckpoint(one).state_dict()))
    head = rollouts * T
    foreign = rollout_at(10_000)
    other.add(foreign)
    last = acted_in(head - 1, 1)[0]
    sample = other.sample(2000)
    row, b = sample.index // B, sample.index % B
    across = row == head - 1
    assert set(b[across].tolist()) == set(last.nonzero().flatten().tolist())
    rollout = sample.rollout
    assert rollout.obs["agent"][1, across, 0, 0].equal(100.0 * head + b[across])  # the true successor
    assert not rollout.acted[1, across].any()
    ended = ~acted_in(head, 1)[0][b[across]]  # environments that terminated anyway
    assert rollout.episode_terminated[0, across].equal(ended)
    assert rollout.episode_truncated[0, across].equal(~ended)
    assert rollout.truncated[0, across].equal((~ended).unsqueeze(-1).expand(-1, 2)), "all agents of the environment"
    before = row == head - 2
    truncated = (last & acted_in(head, 1)[0])[b[before]]  # not those that were at a final timestep
    assert rollout.episode_truncated[1, before].equal(truncated)
    assert rollout.truncated[1, before].equal(truncated.unsqueeze(-1).expand(-1, 2))
    assert rollout.reward[1, across].abs().sum() == 0
    assert rollout.obs["agent"][2, across, 0, 0].equal(foreign.obs["agent"][0, b[across], 0, 0])
    assert not (row == head).any()
    assert (row == head + 1).any() == acted_in(10_000, 1).any()


@pytest.mark.parametrize("restart", [True, False])
def test_rollouts_after_a_pause_truncate_earlier_episodes_if_all_environments_start_new_ones(restart):
    """A team that paused continues with new episodes. In the negative control, timesteps do not mark new episodes and
    are taken for successors.
    """
    buffer, head = filled_buffer(4, sequence_length=2), 4 * T
    foreign = rollout_at(10_000, reborn=restart)
    buffer.add(foreign)
    sample = buffer.sample(2000)
    row, b = sample.index // B, sample.index % B
    across = row == head - 1
    assert across.any()
    shown = sample.rollout.obs["agent"][1, across, 0, 0]
    assert shown.equal(100.0 * head + b[across]) == restart
    assert shown.equal(foreign.obs["agent"][0, b[across], 0, 0]) == (not restart)


@pytest.mark.parametrize("absent", [True, False])
def test_an_agent_that_is_absent_at_the_start_of_an_episode_does_not_join_it_to_an_earlier_one(absent):
    """Agent 1 appears later in the new episodes. In the negative control, it is in an episode that continues."""
    buffer, head = filled_buffer(4, sequence_length=2), 4 * T
    foreign = rollout_at(10_000, reborn=True)
    first, alive = foreign.first.clone(), foreign.alive.clone()
    first[0, :, 1], alive[0, :, 1] = False, not absent
    buffer.add(replace(foreign, first=first, alive=alive))
    sample = buffer.sample(2000)
    across = sample.index // B == head - 1
    assert across.any()
    truncated = sample.rollout.obs["agent"][1, across, 0, 0] == 100.0 * head + sample.index[across] % B
    assert truncated.all() if absent else not truncated.any()


@pytest.mark.parametrize(("starts", "length", "alpha"), KINDS)
def test_after_a_truncation_exactly_the_sequences_of_the_stream_with_its_final_timestep_are_sampled(
    starts, length, alpha
):
    """Timestep 24 is a final one, followed by rollouts 4, 5, ... again."""
    settings = {"sequence_start": starts, "sequence_length": length, "priority_alpha": alpha}
    buffer = make_buffer(**settings)
    ReplayCheckpoint(buffer).load_state_dict(ReplayCheckpoint(filled_buffer(6, **settings)).state_dict())
    acted = torch.cat([acted_in(0, 24), torch.zeros(1, B, dtype=torch.bool), acted_in(16, 40)])
    number = torch.cat([numbers(0, 25), numbers(16, 40)])
    begins = {*range(0, 24, T), *range(25, 65, T)}
    for i in range(10):
        buffer.add(rollout_at((4 + i) * T))
        head = 25 + (i + 1) * T
        before = torch.cat([torch.zeros(1, B, dtype=torch.bool), acted[:-1]])
        marks = {
            "timestep": acted,
            "episode": acted & ~before,
            "rollout": torch.tensor([row in begins for row in range(len(acted))]).unsqueeze(1).expand(-1, B),
        }[starts]
        rows = range(head - 5 * T, head - length + 1)
        expected = {row * B + b for row in rows for b in range(B) if marks[row, b]}
        assert buffer.num_sequences == len(expected)
        if not expected:
            continue
        sample = buffer.sample(1500)
        assert set(sample.index.tolist()) == expected
        places = sample.index // B + torch.arange(length + 1).unsqueeze(1)
        inside = places < len(number)  # excludes the bootstrap timestep of the last rollout
        shown, found = (
            number[places.clamp(max=len(number) - 1), sample.index % B],
            sample.rollout.obs["agent"][..., 0, 0],
        )
        assert found[inside].equal(shown[inside])
        assert sample.rollout.acted[inside].equal(acted[places.clamp(max=len(acted) - 1), sample.index % B][inside])
        if starts == "rollout":
            assert sample.rollout.hidden_state["h"][:, 0, 0].equal(shown[0] + 0.25)
