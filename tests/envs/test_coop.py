"""What all cooperative worlds keep: the contract, walls, limits, restarts, determinism, and their pictures."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coopplay import env_of, placed, state_of, step
from episodeplay import at_random

from coterie import registry
from coterie.envs.check import check
from coterie.envs.coop import SCENARIOS
from coterie.envs.coop.grid import MOVES, grid
from coterie.envs.coop.render import Scene, Sprite, draw
from coterie.envs.make import make
from coterie.errors import UserError

NAMES = sorted(SCENARIOS)
SIZES = {"baton": 5, "escape": 5, "pushblock": 5}
AGENTS = {"baton": {"agents": 5, "runners": 3}, "escape": {"agents": 5}, "pushblock": {"agents": 5}}


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch):
    """The checker tells speed by a clock that ticks evenly, so that no test depends on the machine."""
    monkeypatch.setattr("coterie.envs.trials.perf_counter", lambda ticks=count(): next(ticks) * 1e-4)


@pytest.mark.parametrize("large", [False, True], ids=["default", "large"])
@pytest.mark.parametrize("name", NAMES)
def test_the_world_keeps_the_contract(name: str, large: bool, steady_clock: None):
    params: dict[str, Any] = {"size": 7, **AGENTS[name]} if large else {}
    report = check(lambda copies, seed: env_of(name, copies, seed, **params), steps=120)
    assert not report.findings, report
    assert report.facts["resume"] == "to the bit"


@pytest.mark.parametrize("name", NAMES)
def test_moves_into_walls_are_masked_and_change_nothing(name: str):
    env = env_of(name)
    row = placed(env, agents=0)  # the corner at the lower left
    assert row.action_mask["agent"][0, 0].tolist() == [True, False, True, False, True]
    corner = SIZES[name] ** 2 - 1
    row = placed(env, agents=corner)
    assert row.action_mask["agent"][0, 0].tolist() == [True, True, False, True, False]
    placed(env, agents=0)
    step(env, "left", "down", "left")
    assert state_of(env)["agents"][0, 0] == 0


def test_every_move_leads_where_it_says_and_shortest_ways_arrive():
    room = grid(4, 3, torch.device("cpu"))
    middle = torch.tensor(room.square(1, 1))
    led = [int(room.moved(middle, torch.tensor(move))) for move in range(5)]
    assert led == [5, 4, 6, 1, 9]
    assert MOVES == ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
    start, goal = torch.arange(12).repeat_interleave(12), torch.arange(12).repeat(12)
    at = start
    for _ in range(2 + 3):
        at = room.moved(at, room.way(at, goal))
    assert torch.equal(at, goal)
    assert int(room.distance[0, 11]) == 5
    assert int(room.way(torch.tensor(7), torch.tensor(7))) == 0
    assert room.place[0].tolist() == [-1, -1]
    assert room.place[11].tolist() == [1, 1]


@pytest.mark.parametrize("ends", [False, True], ids=["cut", "ended"])
@pytest.mark.parametrize("name", NAMES)
def test_the_limit_cuts_an_episode_or_ends_it_as_it_is_told(name: str, ends: bool):
    env = env_of(name, episode_limit=2, limit_ends=ends, **({"pace": 64} if name == "escape" else {}))
    env.reset(0)
    first, _ = step(env, "stay", "stay", "stay")
    last, row = step(env, "stay", "stay", "stay")
    assert not first.episode_terminated.any()
    assert not first.episode_truncated.any()
    assert bool(last.episode_terminated) == ends
    assert bool(last.episode_truncated) != ends
    assert torch.equal(last.truncated, row.alive & (not ends))
    assert not row.acted.any()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_and_moves_give_the_same_rows_and_another_seed_does_not(name: str):
    def played(seed: int) -> torch.Tensor:
        env = env_of(name, 4, seed)
        row, generator, seen = env.reset(), torch.Generator().manual_seed(5), []
        for _ in range(60):
            result, row = env.step(at_random(row, generator))
            seen.append(torch.cat((row.obs["agent"].flatten(), result.group_reward.flatten())))
        return torch.stack(seen)

    assert torch.equal(played(3), played(3))
    assert not torch.equal(played(3), played(4))


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_restarts_while_the_others_play_on(name: str):
    env = env_of(name, 2, episode_limit=6)
    env.reset(0)
    shown = env.state_dict()
    env.load_state_dict(shown | {"age": torch.tensor([3, 0])})
    for _ in range(2):
        step(env, "stay", "stay", "stay")
    before = state_of(env)["agents"].clone()
    result, row = step(env, "stay", "stay", "stay")
    assert result.episode_truncated.tolist() == [True, False]
    assert row.acted.tolist() == [False, True]
    result, row = step(env, "stay", "stay", "stay")
    assert row.first[0].equal(row.alive[0])
    assert not row.first[1].any()
    assert result.group_reward[0] == 0
    assert not result.terminated[0].any()
    assert state_of(env)["agents"][1].equal(before[1])


def test_what_is_seen_is_own_place_then_things_then_mates_and_the_state_holds_all():
    row = placed(env_of("pushblock", agents=2, size=5, weights=[1, 2], sight=None), agents=[[0, 24]], blocks=[[12, 7]])
    own, other = [-1.0, -1.0], [1.0, 1.0]
    assert row.obs["agent"][0, 0].tolist() == [*own, 0.5, 0.5, 1.0, 0.5, 0.25, 1.0, 1.0, 1.0, 1.0]
    assert row.obs["agent"][0, 1].tolist() == [*other, -0.5, -0.5, 1.0, -0.5, -0.75, 1.0, -1.0, -1.0, 1.0]
    assert row.state["global"][0].tolist() == [*own, 1.0, *other, 1.0, 0.0, 0.0, 1.0, 0.0, -0.5, 1.0]
    assert make("coop/pushblock").spec.state_sizes == {}


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("baton", {"agents": 3, "runners": 3}, "leaves no slot empty"),
        ("pushblock", {"agents": 2}, "a weight of 3 cannot be moved by agents=2"),
        ("pushblock", {"size": 5, "weights": [1] * 6}, "6 weights do not fit in size=5"),
        ("escape", {"size": 3}, "size"),
        ("escape", {"agent": 3}, "env.agents"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(name: str, params: dict[str, Any], said: str):
    with pytest.raises(UserError, match=said) as error:
        make(f"coop/{name}", params)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [64, 120, 333])
def test_a_picture_is_a_square_of_bytes_at_any_size(name: str, size: int):
    env = env_of(name)
    env.reset(0)
    picture = env.render(0, size)
    assert picture.shape == (size, size, 3)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_changes_with_what_happens_and_is_the_same_for_the_same_state(name: str):
    env = env_of(name)
    placed(env, agents=6)
    before = env.render(0, 100)
    assert (before == env.render(0, 100)).all()
    step(env, "up", "stay", "stay")
    assert (before != env.render(0, 100)).any()


def test_a_sprite_stands_on_its_square():
    empty = draw(Scene("", (4, 4), ()), 100).astype(int)
    drawn = draw(Scene("", (4, 4), (Sprite("agent", 3),)), 100).astype(int)
    rows, columns = np.nonzero(np.abs(drawn - empty).sum(-1))
    side = 100 / 4.7  # a margin of 0.35 squares on each side; square 3 is the one at the lower right
    assert rows.mean() == pytest.approx(3.85 * side, abs=2)
    assert columns.mean() == pytest.approx(3.85 * side, abs=2)
    assert rows.max() - rows.min() < side + 1


def test_agents_on_one_square_stand_beside_each_other():
    alone = draw(Scene("", (4, 4), (Sprite("agent", 5, 0),)), 200).astype(int)
    both = draw(Scene("", (4, 4), (Sprite("agent", 5, 0), Sprite("agent", 5, 1))), 200).astype(int)
    blue, orange = (0, 114, 178), (230, 159, 0)
    like = [(np.abs(picture - color).sum(-1) < 60).sum() for picture in (alone, both) for color in (blue, orange)]
    assert like[0] > 0
    assert like[1] == 0
    assert like[2] > 0
    assert like[3] > 0


def test_the_score_stands_above_the_room_of_larger_pictures():
    shown = draw(Scene("room", (3, 3), (), {"taken": 1.0}), 240)
    other = draw(Scene("room", (3, 3), (), {"taken": 2.0}), 240)
    rows = np.nonzero((shown != other).any((1, 2)))[0]
    assert len(rows) > 0
    assert rows.max() < 40


@pytest.mark.parametrize("name", NAMES)
def test_the_page_tells_every_key_as_the_code_has_it(name: str):
    page = (Path(__file__).parents[2] / "docs" / "environments" / "coop.md").read_text(encoding="utf-8")
    section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    config = registry.environment(f"coop/{name}").Config
    for key, field in config.model_fields.items():
        default = json.dumps(field.default).replace(" ", "")
        meaning = " ".join((field.description or "").split())
        assert re.search(rf"\| `env\.{key}` \| `{re.escape(default)}` \| .* \| {re.escape(meaning)} \|", section), key
