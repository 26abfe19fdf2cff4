"""escape: deaths, rewards, random play and the script."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coopplay import env_of, episodes, placed, step, world_state
from coterie.core.types import Action, Timestep
from episodeplay import by_script

ESCAPE_BY_ONE = by_script("coop", "escape_by_one")

# Squares of the room of 5 x 5: y * 5 + x. The dragon is in the middle of the top row, its portal below it.
DRAGON, PORTAL, DOOR = 22, 2, 20


def scene(env: Any, **entries: Any) -> Timestep:
    begin = {"agents": [[17, 0, 4]], "dragon": DRAGON, "portal": PORTAL, "door": DOOR, "pace": 64}
    return placed(env, **(begin | entries))


def test_an_agent_that_meets_the_dragon_terminates_and_the_others_continue():
    env = env_of("escape")
    scene(env)
    result, row = step(env, "up", "stay", "stay")
    assert result.terminated.tolist() == [[True, False, False]]
    assert not result.episode_terminated.any()
    assert row.alive.tolist() == [[False, True, True]]
    assert row.acted.all()
    assert not row.first.any()
    assert (row.obs["agent"][0, 0] == 0).all()
    assert row.state["global"][0, 1:5].tolist() == [0, 0, 0, 0]
    assert row.state["global"][0, 5:9].tolist() == [-1, -1, 1, 0]
    assert row.action_mask["agent"][0, 0].all()
    result, row = step(env, "up", "stay", "stay")
    assert not result.terminated.any()
    assert world_state(env)["agents"][0, 0] == DRAGON


def test_group_reward_is_earned_long_after_the_sacrifice():
    env = env_of("escape")
    scene(env, agents=[[17, 21, 4]])
    paid = []
    for moves in (("up", "stay", "stay"), ("stay", "right", "stay"), ("stay", "left", "stay"), ("up", "left", "stay")):
        result, row = step(env, *moves)
        assert (result.reward == 0).all()
        paid.append(float(result.group_reward))
    assert paid == [0, 0, 0, 1]
    assert result.episode_terminated.all()
    assert result.terminated.tolist() == [[False, True, True]]
    assert {name: float(value) for name, value in result.metrics.items()} == {"escaped": 1, "slain": 1, "fallen": 1}
    assert not row.acted.any()


def test_the_door_does_not_open_without_the_key():
    env = env_of("escape")
    scene(env, agents=[[17, 21, 4]])
    result, _ = step(env, "stay", "left", "stay")
    assert world_state(env)["agents"][0, 1] == DOOR
    assert result.group_reward == 0
    assert not result.episode_terminated.any()


@pytest.mark.parametrize(("cost", "paid"), [(0.0, 0.0), (0.5, -0.5)])
def test_dying_costs_only_the_agent_itself(cost: float, paid: float):
    env = env_of("escape", cost=cost)
    scene(env)
    result, _ = step(env, "up", "stay", "stay")
    assert result.reward.tolist() == [[paid, 0, 0]]
    assert result.group_reward == 0


def test_all_agents_that_meet_the_dragon_die_and_the_episode_ends_without_survivors():
    env = env_of("escape")
    scene(env, agents=[[17, 21, 23]])
    result, row = step(env, "up", "right", "stay")
    assert result.terminated.tolist() == [[True, True, False]]
    assert not result.episode_terminated.any()
    assert row.alive.tolist() == [[False, False, True]]
    scene(env, agents=[[17, 21, 23]])
    result, row = step(env, "up", "right", "left")
    assert result.terminated.all()
    assert result.episode_terminated.all()
    assert result.group_reward == 0
    assert not row.alive.any()


def test_the_dragon_moves_at_its_pace_which_is_observable():
    env = env_of("escape")
    row = scene(env, agents=[[0, 5, 4]], pace=2)
    dragon_moves_next, places = [float(row.obs["agent"][0, 0, 3])], []
    for _ in range(4):
        _, row = step(env, "stay", "stay", "stay")
        places.append(int(world_state(env)["dragon"]))
        dragon_moves_next.append(float(row.obs["agent"][0, 0, 3]))
    assert places == [22, 17, 17, 12]
    assert dragon_moves_next == [0, 1, 0, 1, 0]


def test_the_dragon_kills_agents_in_its_way_and_agents_that_cross_it():
    env = env_of("escape")
    scene(env, agents=[[17, 0, 4]], pace=1)
    assert step(env, "stay", "stay", "stay")[0].terminated.tolist() == [[True, False, False]]
    scene(env, agents=[[17, 0, 4]], pace=1)
    assert step(env, "up", "stay", "stay")[0].terminated.tolist() == [[True, False, False]]
    scene(env, agents=[[17, 0, 4]], pace=1)
    assert not step(env, "left", "stay", "stay")[0].terminated.any()


def test_the_dragon_reaching_its_portal_ends_the_episode_without_reward():
    env = env_of("escape")
    scene(env, dragon=7, agents=[[0, 0, 4]], pace=1)
    result, _ = step(env, "stay", "stay", "stay")
    assert result.episode_terminated.all()
    assert result.terminated.all()
    assert result.group_reward == 0
    assert result.metrics["escaped"] == 0
    # An agent on the portal stops it there.
    scene(env, dragon=7, agents=[[PORTAL, 0, 4]], pace=1)
    result, _ = step(env, "stay", "stay", "stay")
    assert not result.episode_terminated.any()
    assert result.terminated.tolist() == [[True, False, False]]


def test_the_first_agent_at_the_key_takes_it_visibly():
    env = env_of("escape")
    scene(env, agents=[[17, 21, 23]])
    step(env, "up", "stay", "stay")
    _, row = step(env, "stay", "right", "left")
    assert world_state(env)["holder"].tolist() == [1]
    seen = row.obs["agent"][0]
    assert seen[1, 2] == 1
    assert seen[2, 2] == 0
    assert seen[2, -1] == 1  # the last mark of the last mate that agent 2 sees, which is agent 1
    # dragon and key are observed by offset and presence: both are gone
    assert seen[1, 4:10].tolist() == [0] * 6


def test_initial_states_are_solvable():
    env = env_of("escape", 512)
    env.reset(0)
    state = world_state(env)
    assert (state["dragon"] // 5 == 4).all()
    assert (state["door"] // 5 == 4).all()
    assert (state["portal"] // 5 == 0).all()
    assert (state["dragon"] != state["door"]).all()
    assert ((state["agents"] // 5 >= 1) & (state["agents"] // 5 <= 3)).all()
    for name in ("dragon", "door", "portal"):
        assert len(state[name].unique()) == 5
    assert len(state["agents"].unique()) == 15


def test_script_always_escapes_with_one_sacrifice():
    total, metrics = episodes("escape", 512, ESCAPE_BY_ONE)
    assert (total == 1).all()
    assert metrics == {"escaped": 1, "slain": 1, "fallen": pytest.approx(1, abs=0.01)}


def test_the_reward_requires_a_sacrifice():
    def keep_off(world: Any, state: Any) -> Any:
        move = ESCAPE_BY_ONE(world, state)["agent"].discrete
        assert move is not None
        target = world.grid(state["agents"]).moved(state["agents"], move[..., 0])
        meets = (target == state["dragon"][:, None]) & ~state["slain"][:, None]
        return {"agent": Action(move.masked_fill(meets.unsqueeze(-1), 0))}

    total, metrics = episodes("escape", 256, keep_off, pace=64)
    assert (total == 0).all()
    assert metrics["fallen"] == 0
    assert torch.isfinite(total).all()
