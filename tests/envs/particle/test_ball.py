"""particle/simple_ball: goals and what they pay, walls, the equality of the sides, and a side that plays by a rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
import torch

from coterie.config import resolve
from coterie.envs.check import check
from coterie.envs.make import make
from coterie.envs.particle.ball import SimpleBall, SimpleBallConfig
from coterie.run import evaluate_baseline
from coterie.types import Action

STAY, BACK, FORWARD, DOWN, UP = range(5)


def world_of(**settings: Any) -> SimpleBall:
    return SimpleBall(SimpleBallConfig(**settings))


def placed(world: SimpleBall, *places: tuple[float, float], vel: Sequence[tuple[float, float]] = ()) -> dict[str, Any]:
    """One game with movers at those places (left, right, the ball last), at rest or with those velocities."""
    state = world.restart(torch.rand(1, world.restart_noise, generator=torch.Generator().manual_seed(0)))
    moving = torch.tensor(places).T.unsqueeze(-1)
    speed = torch.tensor(vel or [(0.0, 0.0)] * len(places)).T.unsqueeze(-1)
    return world.arranged(state, moving=moving, vel=speed)


def moved(left: Sequence[int], right: Sequence[int]) -> dict[str, Action]:
    sides = {"left": left, "right": right}
    return {side: Action(torch.tensor(moves).view(1, -1, 1)) for side, moves in sides.items()}


def ball_of(world: SimpleBall, state: dict[str, Any]) -> list[float]:
    parts = world.physics.rows.split(state["rows"].T)
    return [*parts["moving"][:, -1, 0].tolist(), *parts["vel"][:, -1, 0].tolist()]


def test_a_goal_pays_one_to_each_of_a_side_and_costs_the_others_one():
    world = world_of(agents=2, shaping=0, approach=0)
    players = [(-0.5, 0.5), (-0.5, -0.5), (0.5, 0.5), (0.5, -0.5)]
    rolling = [(0.0, 0.0)] * 4 + [(1.0, 0.0)]
    _, outcome = world.step(placed(world, *players, (0.65, 0.0), vel=rolling), moved([0, 0], [0, 0]), None)
    assert outcome.reward.tolist() == [[1, 1, -1, -1]]  # 0.75 is within 0.3 of (1, 0)
    assert bool(outcome.ended)
    assert callable(outcome.metrics)
    assert {name: float(x) for name, x in outcome.metrics().items()} == {"left_won": 1, "right_won": 0}
    wide = placed(world, *players, (0.65, 0.25), vel=rolling)  # (0.75, 0.25) is 0.354 away
    _, outcome = world.step(wide, moved([0, 0], [0, 0]), None)
    assert outcome.reward.tolist() == [[0, 0, 0, 0]]
    assert not bool(outcome.ended)


def test_on_the_way_a_side_is_paid_for_what_the_ball_advances():
    world = world_of(agents=1, shaping=0.5, approach=0)
    state = placed(world, (-0.5, 0.8), (0.5, 0.8), (0.0, 0.0), vel=[(0.0, 0.0), (0.0, 0.0), (-2.0, 0.0)])
    _, outcome = world.step(state, moved([STAY], [STAY]), None)
    assert outcome.reward.tolist() == [[pytest.approx(-0.1), pytest.approx(0.1)]]  # 0.2 towards left's goal


def test_the_nearest_of_a_side_is_paid_for_coming_nearer_than_the_other_sides():
    world = world_of(agents=2, shaping=0, approach=0.5)
    runs = [(1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    state = placed(world, (-0.6, 0.0), (-0.9, 0.5), (0.6, 0.0), (0.9, 0.5), (0.0, 0.0), vel=runs)
    _, outcome = world.step(state, moved([STAY] * 2, [STAY] * 2), None)
    assert outcome.reward[0].tolist() == pytest.approx([0.05, 0.05, -0.05, -0.05])  # 0.1 nearer
    state = placed(
        world, (-0.6, 0.0), (-0.9, 0.5), (0.6, 0.0), (0.9, 0.5), (0.0, 0.0), vel=[*runs[1:2], *runs[:1], *runs[2:]]
    )
    _, outcome = world.step(state, moved([STAY] * 2, [STAY] * 2), None)
    assert outcome.reward[0].tolist() == [0, 0, 0, 0]  # the other mate is nearer still


def test_the_ball_turns_round_at_a_wall_with_four_fifths_of_its_speed_and_a_player_stops():
    world = world_of(agents=1)
    state = placed(world, (-0.5, 0.9), (0.5, 0.0), (0.0, -0.85), vel=[(0.0, 1.0), (0.0, 0.0), (0.4, -1.0)])
    state, _ = world.step(state, moved([UP], [STAY]), None)
    x, y, vx, vy = ball_of(world, state)
    assert (x, y) == pytest.approx((0.04, -0.9))
    assert (vx, vy) == pytest.approx((0.3, 0.6))  # 0.75 of (0.4, -1), and 0.8 of that turned round
    parts = world.physics.rows.split(state["rows"].T)
    assert parts["moving"][1, 0, 0] == pytest.approx(1 - 0.075)
    assert parts["vel"][1, 0, 0] == 0


def test_a_player_that_runs_into_the_ball_pushes_it():
    world = world_of(agents=1)
    state = placed(world, (-0.2, 0.0), (0.8, 0.8), (0.0, 0.0))
    for _ in range(8):
        state, _ = world.step(state, moved([FORWARD], [STAY]), None)
    assert ball_of(world, state)[0] > 0.2


def mirrored(world: SimpleBall, state: dict[str, Any]) -> dict[str, Any]:
    """The game with the sides exchanged and x turned round."""
    parts = world.physics.rows.split(state["rows"].T.contiguous())
    n = world.config.agents
    order = [*range(n, 2 * n), *range(n), 2 * n]
    turn = torch.tensor([-1.0, 1.0]).view(2, 1, 1)
    return world.arranged(state, moving=parts["moving"][:, order] * turn, vel=parts["vel"][:, order] * turn)


def test_exchanged_sides_see_and_earn_what_the_others_did():
    world = world_of(agents=2)
    draws = torch.Generator().manual_seed(3)
    one = world.restart(torch.rand(16, world.restart_noise, generator=draws))
    other = mirrored(world, one)
    for _ in range(40):
        left, right = (Action(torch.randint(5, (16, 2, 1), generator=draws)) for _ in range(2))
        seen, theirs = world.view(one).obs, world.view(other).obs
        assert torch.allclose(seen["left"], theirs["right"], atol=1e-4)
        assert torch.allclose(seen["right"], theirs["left"], atol=1e-4)
        one, paid = world.step(one, {"left": left, "right": right}, None)
        other, earned = world.step(other, {"left": right, "right": left}, None)
        assert torch.allclose(paid.reward, earned.reward[:, [2, 3, 0, 1]], atol=1e-4)
        assert torch.allclose(paid.reward.sum(1), torch.zeros(16), atol=1e-5)
    assert not torch.allclose(world.view(one).obs["left"], world.view(one).obs["right"], atol=0.1)


def test_a_move_forward_is_to_the_other_goal_for_either_side():
    world = world_of(agents=1)
    state = placed(world, (-0.5, 0.5), (0.5, 0.5), (0.0, 0.0))
    state, _ = world.step(state, moved([FORWARD], [FORWARD]), None)
    vel = world.physics.rows.split(state["rows"].T)["vel"][0, :2, 0]
    assert vel.tolist() == pytest.approx([0.4, -0.4])
    names = [role.choice_names[0] for role in world.spec.roles]
    assert (names[0][FORWARD], names[1][FORWARD]) == ("right", "left")  # as a picture shows them


def test_a_side_that_pushes_the_ball_beats_one_that_moves_at_random():
    base = ["env=particle/simple_ball", "algo=random", "threads=1", "device=cpu", "progress=off"]
    won = evaluate_baseline(resolve([*base, "teams.right.algo=scripted"]), 200)["metrics"]
    assert won["right_won"] > 0.65
    assert won["left_won"] < 0.05
    both = evaluate_baseline(resolve(base), 200)["metrics"]
    assert max(both["left_won"], both["right_won"]) < 0.12


@pytest.mark.parametrize("agents", [1, 5])
def test_the_contract_holds_for_sides_of_any_size(agents: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("coterie.envs.trials.perf_counter", lambda ticks=count(): next(ticks) * 1e-4)
    params = {"agents": agents, "episode_limit": 12}
    report = check(lambda n, seed: make("particle/simple_ball", params, n, seed), steps=20, copies=4)
    assert report.findings == (), report.render()


def test_the_picture_shows_the_field():
    env = make("particle/simple_ball", None, 1)
    env.reset(0)
    picture = env.render(0, 240)
    assert picture.shape == (240, 240, 3)
    assert picture.std() > 20
