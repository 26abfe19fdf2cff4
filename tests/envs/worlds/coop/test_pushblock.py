"""pushblock: weights, moves of blocks, and rewards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coopplay import env_of, placed, step, world_state
from coterie.core.types import Timestep
from coterie.envs.worlds.coop.scripts import pushblock_heaviest_first
from episodeplay import play_episodes

# Squares of the room of 6 x 6: y * 6 + x. Blocks of weight 1, 2 and 3 stand in the column x = 3, in rows 0, 2 and 4.
ONE, TWO, THREE = 3, 15, 27


def scene(env: Any, *agents: int, **entries: Any) -> Timestep:
    return placed(env, **({"agents": [list(agents)], "blocks": [[ONE, TWO, THREE]]} | entries))


def blocks(env: Any) -> list[int]:
    return world_state(env)["blocks"][0].tolist()


def agents(env: Any) -> list[int]:
    return world_state(env)["agents"][0].tolist()


def test_one_agent_moves_a_block_of_weight_one_and_follows_it():
    env = env_of("pushblock", size=6)
    scene(env, ONE - 1, 30, 30)
    step(env, "right", "stay", "stay")
    assert blocks(env) == [ONE + 1, TWO, THREE]
    assert agents(env) == [ONE, 30, 30]


@pytest.mark.parametrize(
    ("block", "pushers", "moves"),
    [(1, 1, False), (1, 2, True), (1, 3, True), (2, 1, False), (2, 2, False), (2, 3, True)],
)
def test_a_block_needs_as_many_agents_as_its_weight(block: int, pushers: int, moves: bool):
    env, square = env_of("pushblock", size=6), (ONE, TWO, THREE)[block]
    scene(env, *[square - 1] * 3)
    step(env, *["right"] * pushers, *["stay"] * (3 - pushers))
    assert blocks(env)[block] == square + moves
    assert agents(env)[0] == square - 1 + moves


def test_agents_push_together_only_from_one_side():
    env = env_of("pushblock", size=6)
    scene(env, TWO - 1, TWO + 6, 30)
    step(env, "right", "down", "stay")
    assert blocks(env)[1] == TWO
    # Nothing moves when it is pushed from two sides, each with enough strength.
    scene(env, ONE - 1, ONE + 6, 30)
    step(env, "right", "down", "stay")
    assert blocks(env)[0] == ONE
    assert agents(env)[:2] == [ONE - 1, ONE + 6]


def test_blocks_are_stopped_by_walls_blocks_agents_and_the_leftmost_column():
    env = env_of("pushblock", size=6)
    scene(env, 33 - 6, 30, 30, blocks=[[33, TWO, 0]], present=[[True, True, False]])
    step(env, "up", "stay", "stay")
    assert blocks(env)[0] == 33
    scene(env, TWO - 2, 30, 30, blocks=[[TWO - 1, TWO, THREE]])
    step(env, "right", "stay", "stay")
    assert blocks(env)[0] == TWO - 1
    scene(env, ONE - 1, ONE + 1, 30)
    step(env, "right", "stay", "stay")
    assert blocks(env)[0] == ONE
    scene(env, 2, 30, 30, blocks=[[1, TWO, THREE]])
    step(env, "left", "stay", "stay")
    assert blocks(env)[0] == 1
    assert agents(env)[0] == 2
    # Control: with free space behind it, the same push moves it.
    scene(env, 3, 30, 30, blocks=[[2, TWO, THREE]])
    step(env, "left", "stay", "stay")
    assert blocks(env)[0] == 1


def test_two_blocks_cannot_enter_one_square():
    env = env_of("pushblock", size=6, weights=[1, 1])
    scene(env, 13, 17, 30, blocks=[[14, 16]])
    step(env, "right", "left", "stay")
    assert blocks(env) == [15, 16]
    assert agents(env) == [14, 17, 30]


def test_agents_never_share_a_square_with_a_block():
    env = env_of("pushblock", size=6)
    scene(env, ONE - 1, ONE + 7, 30)
    step(env, "right", "down", "stay")
    assert blocks(env)[0] == ONE + 1
    assert agents(env) == [ONE, ONE + 7, 30]


def test_a_delivered_block_earns_its_weight_minus_the_step_cost_and_disappears():
    env = env_of("pushblock", size=6, step_cost=0.25, push=0)
    scene(env, 16 - 1, 16 - 1, 30, blocks=[[ONE, 16, THREE]])
    result, row = step(env, "right", "right", "stay")
    assert result.group_reward.tolist() == [[1.75]]
    assert (result.reward == 0).all()
    assert world_state(env)["present"].tolist() == [[True, False, True]]
    assert row.obs["agent"][0, 0, 5:8].tolist() == [0, 0, 0]
    result, _ = step(env, "right", "stay", "stay")
    assert result.group_reward == -0.25
    assert agents(env)[0] == 17


def test_the_last_block_ends_the_episode():
    env = env_of("pushblock", size=6, step_cost=0, push=0)
    scene(env, 4 - 1, 30, 30, blocks=[[4, TWO, THREE]], present=[[True, False, False]])
    result, row = step(env, "right", "stay", "stay")
    assert result.group_reward == 1
    assert result.episode_terminated.all()
    assert {name: float(value) for name, value in result.metrics.items()} == {"delivered": 3, "value": 6, "done": 1}
    assert not row.acted.any()


@pytest.mark.parametrize(
    ("push", "move", "start", "paid"),
    [
        (0.125, "right", TWO - 1, 0.25),  # one square nearer, times the weight
        (0.125, "left", TWO + 1, -0.25),  # and one back, so that to and fro earns nothing
        (0.125, "up", TWO - 6, 0.0),
        (0.0, "right", TWO - 1, 0.0),
    ],
)
def test_shaping_is_symmetric(push: float, move: str, start: int, paid: float):
    env = env_of("pushblock", size=6, step_cost=0, push=push)
    scene(env, start, start, 30)
    result, _ = step(env, move, move, "stay")
    assert blocks(env)[1] != TWO
    assert result.group_reward.tolist() == [[paid]]


def test_the_push_into_the_goal_earns_shaping_and_weight():
    env = env_of("pushblock", size=6, step_cost=0, push=0.125)
    scene(env, 16 - 1, 16 - 1, 30, blocks=[[ONE, 16, THREE]], present=[[False, True, True]])
    result, _ = step(env, "right", "right", "stay")
    assert result.group_reward.tolist() == [[2.25]]  # a block that is gone pays nothing on


def test_blocks_start_in_separate_rows_where_they_can_be_pushed():
    env = env_of("pushblock", 512, size=6)
    env.reset(0)
    state = world_state(env)
    rows = (state["blocks"] // 6).sort(1).values
    assert (rows.diff(dim=1) > 0).all()
    assert set((state["blocks"] % 6).unique().tolist()) == {2, 3, 4}
    assert set((state["agents"] % 6).unique().tolist()) == {0, 1}


def test_sight_limits_observations_but_not_the_state():
    far, near = env_of("pushblock", size=6, sight=None), env_of("pushblock", size=6, sight=2)
    everything, little = scene(far, 13, 16, 0), scene(near, 13, 16, 0)
    # Agent 0 is two columns from the block of weight 2 in its row, and three from agent 1.
    assert everything.obs["agent"][0, 0, [4, 7, 10, 13, 16]].tolist() == [1, 1, 1, 1, 1]
    assert little.obs["agent"][0, 0, [4, 7, 10, 13, 16]].tolist() == [1, 1, 1, 0, 1]
    assert little.obs["agent"][0, 0, 11:14].tolist() == [0, 0, 0]
    assert little.state["global"].equal(everything.state["global"])
    one_step, row = step(near, "right", "stay", "stay")
    assert row.obs["agent"][0, 0, 13] == 1
    assert one_step.group_reward == pytest.approx(-0.01)


def test_by_default_agents_see_the_room_and_only_deliveries_are_rewarded():
    env = env_of("pushblock")
    row = scene(env, TWO - 1, TWO - 1, 35)
    # All three blocks and both other agents, at any distance.
    assert row.obs["agent"][0, :, [4, 7, 10, 13, 16]].eq(1).all()
    result, _ = step(env, "right", "right", "stay")
    assert blocks(env)[1] == TWO + 1
    limit = env.world.config.episode_limit
    assert result.group_reward.item() == pytest.approx(-0.5 / limit)  # half a point per full episode, as in ML-Agents


@pytest.mark.slow
def test_script_delivers_everything_and_earns_every_push():
    plain, rewarded = (env_of("pushblock", 64, size=6, push=reward) for reward in (0.0, 0.25))
    total, metrics = play_episodes(plain, pushblock_heaviest_first)
    assert metrics["done"].all()
    assert float(total.mean()) == pytest.approx(SCRIPTED, abs=0.02)
    plain.reset(0)  # the start of the episodes
    squares = 5 - world_state(plain)["blocks"] % 6  # from each block to the goal, the last column
    expected = total + 0.25 * (squares * torch.tensor([1, 2, 3])).sum(1)
    assert torch.allclose(play_episodes(rewarded, pushblock_heaviest_first)[0], expected, atol=1e-4)


SCRIPTED = 5.85
