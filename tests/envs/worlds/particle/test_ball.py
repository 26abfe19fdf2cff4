"""particle/simple_ball: goals, rewards, walls, symmetry of the sides, and the scripted side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from coterie.assembly.resolve import resolve
from coterie.commands.evaluate import evaluate_baseline
from coterie.core.types import Action
from coterie.envs.worlds.particle.ball import SimpleBall, SimpleBallConfig

STAY, BACK, FORWARD, DOWN, UP = range(5)


def make_world(**settings: Any) -> SimpleBall:
    return SimpleBall(SimpleBallConfig(**settings))


def state_with(
    world: SimpleBall, *positions: tuple[float, float], vel: Sequence[tuple[float, float]] = ()
) -> dict[str, Any]:
    """Returns one game with players and ball (last) at these positions, at rest or with these velocities."""
    state = world.reset(torch.rand(1, world.reset_noise_size, generator=torch.Generator().manual_seed(0)))
    moving = torch.tensor(positions).T.unsqueeze(-1)
    speed = torch.tensor(vel or [(0.0, 0.0)] * len(positions)).T.unsqueeze(-1)
    return world.with_parts(state, moving=moving, vel=speed)


def actions(left: Sequence[int], right: Sequence[int]) -> dict[str, Action]:
    sides = {"left": left, "right": right}
    return {side: Action(torch.tensor(moves).view(1, -1, 1)) for side, moves in sides.items()}


def ball_position_and_velocity(world: SimpleBall, state: dict[str, Any]) -> list[float]:
    parts = world.physics.layout.split(state["flat"].T)
    return [*parts["moving"][:, -1, 0].tolist(), *parts["vel"][:, -1, 0].tolist()]


def test_a_goal_gives_plus_one_to_the_scoring_side_and_minus_one_to_the_other():
    world = make_world(agents=2, shaping=0, approach=0)
    players = [(-0.5, 0.5), (-0.5, -0.5), (0.5, 0.5), (0.5, -0.5)]
    rolling = [(0.0, 0.0)] * 4 + [(1.0, 0.0)]
    _, outcome = world.step(state_with(world, *players, (0.65, 0.0), vel=rolling), actions([0, 0], [0, 0]), None)
    assert outcome.reward.tolist() == [[1, 1, -1, -1]]  # 0.75 is within 0.3 of (1, 0)
    assert bool(outcome.terminated)
    assert callable(outcome.metrics)
    assert {name: float(x) for name, x in outcome.metrics().items()} == {"left_won": 1, "right_won": 0}
    off_target = state_with(world, *players, (0.65, 0.25), vel=rolling)  # (0.75, 0.25) is 0.354 away
    _, outcome = world.step(off_target, actions([0, 0], [0, 0]), None)
    assert outcome.reward.tolist() == [[0, 0, 0, 0]]
    assert not bool(outcome.terminated)


def test_a_side_is_rewarded_for_progress_of_the_ball():
    world = make_world(agents=1, shaping=0.5, approach=0)
    state = state_with(world, (-0.5, 0.8), (0.5, 0.8), (0.0, 0.0), vel=[(0.0, 0.0), (0.0, 0.0), (-2.0, 0.0)])
    _, outcome = world.step(state, actions([STAY], [STAY]), None)
    assert outcome.reward.tolist() == [[pytest.approx(-0.1), pytest.approx(0.1)]]  # 0.2 toward the left goal


def test_a_side_is_rewarded_when_its_nearest_player_approaches_the_ball():
    world = make_world(agents=2, shaping=0, approach=0.5)
    velocities = [(1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    state = state_with(world, (-0.6, 0.0), (-0.9, 0.5), (0.6, 0.0), (0.9, 0.5), (0.0, 0.0), vel=velocities)
    _, outcome = world.step(state, actions([STAY] * 2, [STAY] * 2), None)
    assert outcome.reward[0].tolist() == pytest.approx([0.05, 0.05, -0.05, -0.05])  # 0.1 nearer
    velocities[:2] = reversed(velocities[:2])
    state = state_with(world, (-0.6, 0.0), (-0.9, 0.5), (0.6, 0.0), (0.9, 0.5), (0.0, 0.0), vel=velocities)
    _, outcome = world.step(state, actions([STAY] * 2, [STAY] * 2), None)
    assert outcome.reward[0].tolist() == [0, 0, 0, 0]  # the other teammate is nearer


def test_the_ball_bounces_off_a_wall_with_four_fifths_of_its_speed_and_a_player_stops():
    world = make_world(agents=1)
    state = state_with(world, (-0.5, 0.9), (0.5, 0.0), (0.0, -0.85), vel=[(0.0, 1.0), (0.0, 0.0), (0.4, -1.0)])
    state, _ = world.step(state, actions([UP], [STAY]), None)
    x, y, vx, vy = ball_position_and_velocity(world, state)
    assert (x, y) == pytest.approx((0.04, -0.9))
    assert (vx, vy) == pytest.approx((0.3, 0.6))  # 0.75 of (0.4, -1), reflected with 0.8
    parts = world.physics.layout.split(state["flat"].T)
    assert parts["moving"][1, 0, 0] == pytest.approx(1 - 0.075)
    assert parts["vel"][1, 0, 0] == 0


def mirrored(world: SimpleBall, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the game with the sides exchanged and x mirrored."""
    parts = world.physics.layout.split(state["flat"].T.contiguous())
    n = world.config.agents
    order = [*range(n, 2 * n), *range(n), 2 * n]
    mirror = torch.tensor([-1.0, 1.0]).view(2, 1, 1)
    return world.with_parts(state, moving=parts["moving"][:, order] * mirror, vel=parts["vel"][:, order] * mirror)


def test_mirrored_sides_have_mirrored_observations_and_rewards():
    world = make_world(agents=2)
    generator = torch.Generator().manual_seed(3)
    state = world.reset(torch.rand(16, world.reset_noise_size, generator=generator))
    mirrored_state = mirrored(world, state)
    for _ in range(40):
        left, right = (Action(torch.randint(5, (16, 2, 1), generator=generator)) for _ in range(2))
        obs, mirrored_obs = world.observe(state).obs, world.observe(mirrored_state).obs
        assert torch.allclose(obs["left"], mirrored_obs["right"], atol=1e-4)
        assert torch.allclose(obs["right"], mirrored_obs["left"], atol=1e-4)
        state, outcome = world.step(state, {"left": left, "right": right}, None)
        mirrored_state, mirrored_outcome = world.step(mirrored_state, {"left": right, "right": left}, None)
        assert torch.allclose(outcome.reward, mirrored_outcome.reward[:, [2, 3, 0, 1]], atol=1e-4)
        assert torch.allclose(outcome.reward.sum(1), torch.zeros(16), atol=1e-5)
    assert not torch.allclose(world.observe(state).obs["left"], world.observe(state).obs["right"], atol=0.1)


def test_a_move_forward_is_toward_the_opponents_goal_for_either_side():
    world = make_world(agents=1)
    state = state_with(world, (-0.5, 0.5), (0.5, 0.5), (0.0, 0.0))
    state, _ = world.step(state, actions([FORWARD], [FORWARD]), None)
    vel = world.physics.layout.split(state["flat"].T)["vel"][0, :2, 0]
    assert vel.tolist() == pytest.approx([0.4, -0.4])
    names = [role.choice_names[0] for role in world.spec.roles]
    assert (names[0][FORWARD], names[1][FORWARD]) == ("right", "left")  # as shown in pictures


@pytest.mark.slow
def test_the_scripted_side_beats_a_random_one():
    base = ["env=particle/simple_ball", "algo=random", "threads=1", "device=cpu", "progress=off"]
    metrics = evaluate_baseline(resolve([*base, "teams.right.algo=scripted"]), 200)["metrics"]
    assert metrics["right_won"] > 0.65
    assert metrics["left_won"] < 0.05
    both = evaluate_baseline(resolve(base), 200)["metrics"]
    assert max(both["left_won"], both["right_won"]) < 0.12
