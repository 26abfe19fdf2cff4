"""All battles: SMAC's sizes, masks, observations, rewards, termination, seeds and rendering."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.envs.make import make
from coterie.envs.worlds.skirmish.render import Fighter, Scene, draw
from coterie.envs.worlds.skirmish.scripts import hit_and_run
from episodeplay import by_script
from skirmishplay import GONE, act, env_of, episodes, placed, row_of, step, world_of

NEAREST, WEAKEST = (by_script("skirmish", f"attack_{whom}") for whom in ("nearest", "weakest"))
SIZES = {
    "3m": (30, 48, 9, 60),
    "8m": (80, 168, 14, 120),
    "25m": (250, 950, 31, 150),
    "5m_vs_6m": (55, 98, 12, 70),
    "27m_vs_30m": (285, 1170, 36, 180),
    "2s3z": (80, 120, 11, 120),
    "3s5z": (128, 216, 14, 150),
    "3s_vs_5z": (48, 68, 11, 250),
    "2m_vs_1z": (16, 26, 7, 150),
    "MMM": (160, 290, 16, 150),
    "MMM2": (176, 322, 18, 180),
    "corridor": (156, 282, 30, 400),
    "2c_vs_64zg": (332, 342, 70, 400),
}
"""Sizes of observation and state, number of actions and step limit in SMAC."""


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_limits_match_smac(name: str):
    spec = make(f"skirmish/{name}", with_state=True).spec
    role = spec.roles[0]
    shown = (role.observation_space.shape, spec.state_sizes["global"], role.action.choices, spec.episode_limit)
    obs, state, choices, limit = SIZES[name]
    assert shown == ((obs,), state, (choices,), limit)


# ------------------------------------------------------------------------------------------------- masks and views


def test_targets_are_available_within_six_units_while_alive():
    env = env_of("3m")
    timestep = placed(env, [(10.0, 16.0), GONE, GONE, (16.0, 16.0), (10.0, 22.01), GONE])
    assert timestep.action_mask["ally"][0, 0].tolist() == [False, True, True, True, True, True, True, False, False]


def test_moves_out_of_the_field_are_masked():
    env = env_of("3m")
    timestep = placed(env, [(0.5, 0.5), (31.5, 31.5), (1.5, 30.5), (20.0, 16.0), GONE, GONE])
    north_south_east_west = timestep.action_mask["ally"][0, :, 2:6].tolist()
    assert north_south_east_west == [[True, False, True, False], [False, True, False, True], [True] * 4]


def test_dead_agents_observe_zeros_have_all_actions_and_do_nothing():
    env = env_of("3m", num_envs=2)
    timestep = placed(env, [(10.0, 16.0), GONE, GONE, (14.0, 16.0), GONE, GONE])
    assert timestep.alive[0].tolist() == [True, False, False]
    assert timestep.action_mask["ally"][0, 1].all()
    assert (timestep.obs["ally"][:, 1:] == 0).all()
    assert (timestep.obs["ally"][:, 0] != 0).any()
    both = torch.stack((act(0, "stop", "stop")["ally"].discrete[0], act(0, "east", 2)["ally"].discrete[0]))
    chosen = act(0, "stop", "stop", num_envs=2)
    chosen["ally"].discrete.copy_(both)
    _, timestep = env.step(chosen)
    assert torch.equal(timestep.obs["ally"][0], timestep.obs["ally"][1])
    assert torch.equal(timestep.state["global"][0], timestep.state["global"][1])


def test_healers_target_ground_teammates_only():
    env = env_of("MMM")
    places: list[tuple[float, float] | str] = [GONE] * 20
    places[0], places[2], places[9], places[12], places[19] = (8.0, 16.0), (14.0, 16.0), (9.0, 16.0), (10.0, 16.0), GONE
    timestep = placed(env, places)
    mask = timestep.action_mask["ally"][0]
    assert mask[9, 6:].tolist() == [True, False, True, *[False] * 7][:10]
    assert mask[2, 6:].nonzero().flatten().tolist() == [2]  # the enemy's marine
    # Marauders cannot target flying units.
    places[19] = (10.0, 17.0)
    timestep = placed(env, places)
    assert timestep.action_mask["ally"][0, 0, 6:].nonzero().flatten().tolist() == [2]
    assert timestep.action_mask["ally"][0, 2, 6:].nonzero().flatten().tolist() == [2, 9]


def test_observation_is_moves_then_enemies_then_allies_then_own_features():
    env = env_of("3m")
    here = [(10.0, 16.0), (13.0, 20.0), (10.0, 25.1), (16.0, 16.0), (18.1, 16.0), (20.0, 16.0)]
    timestep = placed(env, here, health=[9, 18, 45, 36, 27, 45])
    ninth = 1 / 9
    assert timestep.obs["ally"][0, 0].tolist() == pytest.approx(
        [1, 1, 1, 1]
        + [1, 6 * ninth, 6 * ninth, 0, 0.8]  # it can be chosen
        + [0, 8.1 * ninth, 8.1 * ninth, 0, 0.6]  # it is seen only
        + [0] * 5  # out of sight
        + [1, 5 * ninth, 3 * ninth, 4 * ninth, 0.4]
        + [0] * 5
        + [0.2]
    )


def test_unit_types_and_shields_are_observed_where_present():
    env = env_of("2s3z")
    places: list[tuple[float, float] | str] = [GONE] * 10
    places[0], places[2], places[7] = (10.0, 16.0), (10.0, 19.0), (13.0, 16.0)
    shield = [40.0, 0, 25, 0, 0, 0, 0, 50, 0, 0]
    seen = placed(env, places, shield=shield).obs["ally"][0, 0]
    third = 1 / 3
    assert seen[4 + 2 * 8 : 4 + 3 * 8].tolist() == pytest.approx([1, third, third, 0, 1, 1, 0, 1])
    assert seen[44 + 8 : 44 + 16].tolist() == pytest.approx([1, third, 0, third, 1, 0.5, 0, 1])
    assert seen[-4:].tolist() == [1, 0.5, 1, 0]


def test_state_contains_all_units_and_the_last_actions():
    env = env_of("3m")
    places = [(8.0, 16.0), (24.0, 24.0), GONE, (16.0, 16.0), GONE, GONE]
    timestep = placed(env, places, cooldown=[6.832, 0, 0, 5, 0, 0])
    allies = [1, 0.5, -0.25, 0, 1, 0, 0.25, 0.25] + [0] * 4
    assert timestep.state["global"][0].tolist() == pytest.approx(allies + [1, 0, 0] + [0] * 6 + [0] * 27)
    _, timestep = step(env, "north", 0, 2)
    assert timestep.state["global"][0, 21:].view(3, 9).nonzero().tolist() == [[0, 2], [1, 6], [2, 0]]


# ------------------------------------------------------------------------------------------------ rewards and ends


def test_a_won_battle_earns_twenty():
    returns, metrics = episodes("3m", 8, WEAKEST, enemy_damage=0)
    assert (metrics["won"] == 1).all()
    assert (metrics["enemies_dead"] == 3).all()
    assert (metrics["allies_dead"] == 0).all()
    assert returns.tolist() == pytest.approx([20.0] * 8, abs=1e-4)


def test_a_won_battle_earns_twenty_despite_shield_regeneration():
    # Undisturbed zealots regenerate shields; without subtracting that the total reward would exceed 20.
    env = env_of("3s_vs_3z", enemy_damage=0)
    places = [(10.0, 16.0), GONE, GONE, (14.0, 16.0), GONE, GONE]
    placed(env, places, shield=[80, 0, 0, 10, 0, 0], calm=[0, 0, 0, 500, 0, 0])
    earned = []
    for _ in range(4):
        result, _ = step(env, "west", "stop", "stop")
        earned.append(float(result.group_reward))
    points = 3 * 150 + 3 * 10 + 200
    assert earned == pytest.approx([-8 * 2 / 22.4 * 20 / points] * 4)
    returns, metrics = episodes("3s_vs_3z", 8, hit_and_run)
    assert returns[metrics["won"] == 1].tolist() == pytest.approx([20.0] * int(metrics["won"].sum()), abs=1e-3)
    assert metrics["won"].sum() > 4


def test_the_shaped_reward_counts_points_kills_and_the_win():
    env = env_of("3m", enemy_damage=0)
    points = 3 * 45 + 3 * 10 + 200
    placed(env, [(10.0, 16.0), (10.0, 17.0), GONE, (14.0, 16.0), (14.0, 17.0), GONE], health=[45, 45, 0, 45, 4, 0])
    result, _ = step(env, 0, 1, "stop")
    assert float(result.group_reward) == pytest.approx((6 + 4 + 10) * 20 / points)
    assert (result.reward == 0).all()
    placed(env, [(10.0, 16.0), GONE, GONE, (14.0, 16.0), GONE, GONE], health=[45, 0, 0, 6, 0, 0])
    result, _ = step(env, 0, "stop", "stop")
    assert float(result.group_reward) == pytest.approx((6 + 10 + 200) * 20 / points)


def test_the_sparse_reward_is_one_for_a_win_and_minus_one_for_a_loss():
    won, _ = episodes("3m", 4, WEAKEST, enemy_damage=0, reward="sparse")
    lost, metrics = episodes("3m", 4, reward="sparse", enemy_damage=100)
    assert won.tolist() == [1] * 4
    assert lost.tolist() == [-1] * 4
    assert (metrics["won"] == 0).all()


def test_battles_end_when_decided_and_agents_terminate_when_killed():
    env = env_of("3m")
    placed(env, [(10.0, 16.0), (3.0, 3.0), GONE, (14.0, 16.0), GONE, GONE], health=[6, 45, 0, 45, 0, 0])
    result, timestep = step(env, "stop", "stop", "stop")
    assert result.terminated[0].tolist() == [True, False, False]
    assert not result.episode_terminated.any()
    assert timestep.alive[0].tolist() == [False, True, False]
    placed(env, [(10.0, 16.0), GONE, GONE, (14.0, 16.0), GONE, GONE], health=[6, 0, 0, 45, 0, 0])
    result, timestep = step(env, "stop", "stop", "stop")
    assert result.episode_terminated.all()
    assert not timestep.acted.any()
    placed(env, [(10.0, 16.0), GONE, GONE, (14.0, 16.0), GONE, GONE], health=[45, 0, 0, 6, 0, 0])
    result, timestep = step(env, 0, "stop", "stop")
    assert result.episode_terminated.all()
    assert result.terminated[0].tolist() == [True, False, False]
    assert result.metrics["won"].all()


@pytest.mark.parametrize("ends", [False, True], ids=["cut", "ended"])
def test_the_step_limit_truncates_or_terminates_a_battle_as_configured(ends: bool):
    env = env_of("3m", episode_limit=2, terminate_at_limit=ends)
    env.reset(0)
    first, _ = step(env, "stop", "stop", "stop")
    last, timestep = step(env, "stop", "stop", "stop")
    assert not (first.episode_terminated | first.episode_truncated).any()
    assert bool(last.episode_terminated) == ends
    assert bool(last.episode_truncated) != ends
    assert last.metrics["won"] == 0
    assert not timestep.acted.any()


# ------------------------------------------------------------------------------------------------- players and seeds


@pytest.mark.slow
def test_scripts_win_battles_that_random_play_loses():
    won = {"random": episodes("3m", 256)[1]["won"].mean()}
    for name, player in (("nearest", NEAREST), ("weakest", WEAKEST), ("hit_and_run", hit_and_run)):
        won[name] = episodes("3m", 256, player)[1]["won"].mean()
    assert won["random"] == 0
    assert 0.1 < won["nearest"] < 0.4
    assert 0.35 < won["weakest"] < 0.7
    assert 0.5 < won["hit_and_run"] < 0.9


@pytest.mark.slow
def test_stalkers_beat_zealots_only_by_kiting():
    assert episodes("3s_vs_5z", 64, hit_and_run)[1]["won"].mean() > 0.85
    assert episodes("3s_vs_5z", 64, WEAKEST)[1]["won"].mean() < 0.05


def test_an_enemy_that_targets_the_weakest_is_harder():
    easy, hard = (episodes("3m", 256, WEAKEST, enemy_focus=focus)[1]["won"] for focus in ("nearest", "weakest"))
    assert hard.mean() < easy.mean() - 0.1


def test_step_does_not_modify_its_input_state():
    env = env_of("MMM", 2)
    env.reset(0)
    world, state = world_of(env), env.state_dict()["state"]
    before = {name: value.clone() for name, value in state.items()}
    for _ in range(20):
        after, _ = world.step(state, act(*["east"] * 10, num_envs=2), None)
        assert all(torch.equal(state[name], before[name]) for name in before)
        state, before = after, {name: value.clone() for name, value in after.items()}


# ---------------------------------------------------------------------------------------------------------- pictures


def test_rendering_shows_health_positions_and_attacks():
    def seen(health: float, x: float = 10.0, target: int | None = None) -> np.ndarray:
        fighters = (Fighter("marine", 0, x, 16.0, 0.375, health, None, target), Fighter("marine", 1, 14, 16, 0.375, 1))
        return draw(Scene("", fighters), 200).astype(int)

    whole = seen(1.0)
    assert (whole == seen(1.0)).all()
    for other in (seen(0.5), seen(1.0, x=10.5), seen(1.0, target=1), seen(0.0)):
        assert (whole != other).any()
    assert (np.abs(whole - (0, 114, 178)).sum(-1) < 30).any()
    assert not (np.abs(seen(0.0) - (0, 114, 178)).sum(-1) < 30).any()


def test_rendering_shows_attackers_of_the_last_step():
    env = env_of("3m", enemy_damage=0)
    placed(env, [(10.0, 16.0), GONE, GONE, (14.0, 16.0), GONE, GONE])
    world = world_of(env)
    assert world.scene(env.state_dict()["state"]).fighters[0].target is None
    step(env, 0, "stop", "stop")
    assert world.scene(env.state_dict()["state"]).fighters[0].target == 3
    step(env, "west", "stop", "stop")
    assert world.scene(env.state_dict()["state"]).fighters[0].target is None
    assert row_of(env, "order")[0] == 5
