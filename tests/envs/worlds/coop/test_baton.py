"""baton: taking, delivering, leaving and entering."""

from __future__ import annotations

from typing import Any

import pytest

from coopplay import env_of, episodes, placed, step, world_state
from coterie.core.types import Action, Timestep
from episodeplay import by_script

BATON_BY_TURNS = by_script("coop", "baton_by_turns")

# Squares of the room of 5 x 5: the bell is at the right end of the lowest row, the gate at its left end.
BELL, GATE, BATON = 4, 0, 12


def scene(env: Any, **entries: Any) -> Timestep:
    n = env.spec.n
    begin = {"agents": [[11, 23] + [0] * (n - 2)], "baton": BATON, "bell": BELL, "gate": GATE}
    return placed(env, **(begin | entries))


def test_taking_a_baton_earns_a_group_reward_and_moves_the_next_one():
    env = env_of("baton")
    row = scene(env)
    assert row.alive.tolist() == [[True, True, False]]
    result, row = step(env, "right", "stay", "stay")
    assert result.group_reward.tolist() == [[1]]
    assert (result.reward == 0).all()
    assert world_state(env)["carries"].tolist() == [[True, False, False]]
    assert world_state(env)["baton"] != BATON
    assert row.obs["agent"][0, 0, 2] == 1
    assert row.obs["agent"][0, 1, 2] == 0


def test_a_runner_takes_only_one_baton():
    env = env_of("baton")
    scene(env, carries=[[True, False, False]])
    result, _ = step(env, "right", "stay", "stay")
    assert result.group_reward == 0
    assert world_state(env)["baton"] == BATON


def test_two_runners_on_a_square_take_one_baton():
    env = env_of("baton")
    scene(env, agents=[[11, 13, 0]])
    result, _ = step(env, "right", "left", "stay")
    assert result.group_reward == 1
    assert world_state(env)["carries"].tolist() == [[True, False, False]]


def test_delivering_a_baton_removes_the_runner_and_a_new_one_enters_at_the_gate():
    env = env_of("baton")
    scene(env, agents=[[3, 23, 0]], carries=[[True, False, False]])
    result, row = step(env, "right", "stay", "stay")
    assert result.terminated.tolist() == [[True, False, False]]
    assert result.group_reward == 0
    assert not result.episode_terminated.any()
    assert row.alive.tolist() == [[False, True, True]]
    assert row.first.tolist() == [[False, False, True]]
    assert world_state(env)["agents"][0, 2] == GATE
    assert world_state(env)["carries"].tolist() == [[False, False, False]]
    assert (row.obs["agent"][0, 0] == 0).all()


def test_the_bell_has_no_effect_without_a_baton():
    env = env_of("baton")
    scene(env, agents=[[3, 23, 0]])
    result, row = step(env, "right", "stay", "stay")
    assert not result.terminated.any()
    assert row.alive.tolist() == [[True, True, False]]


def test_a_terminated_slot_stays_empty_for_one_timestep():
    env = env_of("baton")
    scene(env, agents=[[3, 9, 0]], carries=[[True, True, False]])
    result, row = step(env, "right", "down", "stay")
    assert result.terminated.tolist() == [[True, True, False]]
    assert row.alive.tolist() == [[False, False, True]]
    assert world_state(env)["waiting"].tolist() == [1]
    result, row = step(env, "stay", "stay", "stay")
    assert not result.terminated.any()
    assert row.alive.tolist() == [[True, False, True]]
    assert row.first.tolist() == [[True, False, False]]
    assert world_state(env)["waiting"].tolist() == [0]


def test_the_last_baton_terminates_the_episode():
    env = env_of("baton", batons=1)
    scene(env)
    result, row = step(env, "right", "stay", "stay")
    assert result.episode_terminated.all()
    assert result.terminated.tolist() == [[True, True, False]]
    assert {name: float(value) for name, value in result.metrics.items()} == {"taken": 1, "passed": 0, "done": 1}
    assert not row.acted.any()


def test_the_number_of_runners_is_constant():
    env = env_of("baton", 64, agents=5, runners=3)
    row = env.reset(0)
    world = env.world
    for _ in range(80):
        _, row = env.step(BATON_BY_TURNS(world, world_state(env)))
        assert (row.alive.sum(1) + world_state(env)["waiting"] == 3).all()
    assert env.spec.n == 5


@pytest.mark.slow
def test_script_takes_nearly_all_batons_and_only_two_without_leaving():
    total, metrics = episodes("baton", 512, BATON_BY_TURNS)
    assert float(total.mean()) == pytest.approx(10, abs=0.03)
    assert metrics["done"] > 0.98

    def stay_on(world: Any, state: Any) -> Any:
        move = BATON_BY_TURNS(world, state)["agent"].discrete
        assert move is not None
        return {"agent": Action(move.masked_fill(state["carries"][..., None], 0))}

    total, metrics = episodes("baton", 512, stay_on)
    assert float(total.mean()) == pytest.approx(2, abs=0.02)
    assert metrics["passed"] == 0
