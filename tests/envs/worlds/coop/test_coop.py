"""All cooperative worlds: walls, observations, settings and rendering."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coopplay import env_of, placed, step, world_state
from coterie.core.errors import UserError
from coterie.envs.make import make
from coterie.envs.worlds.coop.rooms import MOVES, Scene, Sprite, draw, grid


def test_moves_into_walls_are_masked_and_change_nothing():
    env = env_of("escape")
    row = placed(env, agents=0)  # the corner at the lower left
    assert row.action_mask["agent"][0, 0].tolist() == [True, False, True, False, True]
    row = placed(env, agents=24)
    assert row.action_mask["agent"][0, 0].tolist() == [True, True, False, True, False]
    placed(env, agents=0)
    step(env, "left", "down", "left")
    assert world_state(env)["agents"][0, 0] == 0


def test_moves_reach_their_targets_and_shortest_paths_reach_the_goal():
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


def test_observation_is_own_position_then_items_then_teammates():
    row = placed(env_of("pushblock", agents=2, size=5, weights=[1, 2], sight=None), agents=[[0, 24]], blocks=[[12, 7]])
    own, other = [-1.0, -1.0], [1.0, 1.0]
    assert row.obs["agent"][0, 0].tolist() == [*own, 0.5, 0.5, 1.0, 0.5, 0.25, 1.0, 1.0, 1.0, 1.0]
    assert row.obs["agent"][0, 1].tolist() == [*other, -0.5, -0.5, 1.0, -0.5, -0.75, 1.0, -1.0, -1.0, 1.0]
    assert row.state["global"][0].tolist() == [*own, 1.0, *other, 1.0, 0.0, 0.0, 1.0, 0.0, -0.5, 1.0]
    assert make("coop/pushblock").spec.state_sizes == {}


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("baton", {"agents": 3, "runners": 3}, "leaves no empty slot"),
        ("pushblock", {"agents": 2}, "a block of weight 3 cannot be moved by agents=2"),
        ("pushblock", {"size": 5, "weights": [1] * 6}, "6 weights do not fit in size=5"),
    ],
)
def test_invalid_settings_give_a_one_line_error(name: str, params: dict[str, Any], said: str):
    with pytest.raises(UserError, match=said) as error:
        make(f"coop/{name}", params)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------- pictures


def test_a_sprite_is_drawn_on_its_square():
    empty = draw(Scene("", (4, 4), ()), 100).astype(int)
    drawn = draw(Scene("", (4, 4), (Sprite("agent", 3),)), 100).astype(int)
    rows, columns = np.nonzero(np.abs(drawn - empty).sum(-1))
    side = 100 / 4.7  # a margin of 0.35 squares on each side; square 3 is the one at the lower right
    assert rows.mean() == pytest.approx(3.85 * side, abs=2)
    assert columns.mean() == pytest.approx(3.85 * side, abs=2)
    assert rows.max() - rows.min() < side + 1


def test_agents_on_one_square_are_drawn_next_to_each_other():
    alone = draw(Scene("", (4, 4), (Sprite("agent", 5, 0),)), 200).astype(int)
    both = draw(Scene("", (4, 4), (Sprite("agent", 5, 0), Sprite("agent", 5, 1))), 200).astype(int)
    blue, orange = (0, 114, 178), (230, 159, 0)
    like = [(np.abs(picture - color).sum(-1) < 60).sum() for picture in (alone, both) for color in (blue, orange)]
    assert like[0] > 0
    assert like[1] == 0
    assert like[2] > 0
    assert like[3] > 0


def test_larger_images_show_the_score_above_the_room():
    shown = draw(Scene("room", (3, 3), (), {"taken": 1.0}), 240)
    other = draw(Scene("room", (3, 3), (), {"taken": 2.0}), 240)
    rows = np.nonzero((shown != other).any((1, 2)))[0]
    assert len(rows) > 0
    assert rows.max() < 40
