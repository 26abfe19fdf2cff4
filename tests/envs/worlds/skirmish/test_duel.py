"""Battles between two teams: damage and rewards, symmetry of the sides, termination, states, and scripted teams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from coterie.assembly.resolve import resolve
from coterie.commands.evaluate import evaluate_baseline
from coterie.core.types import Action
from coterie.envs.make import make
from coterie.envs.worlds.skirmish import DUELS, ROSTERS
from coterie.envs.worlds.skirmish.duel import Duel
from coterie.envs.worlds.skirmish.units import PARK
from coterie.envs.worlds.world import WorldEnv

NOOP, STOP, NORTH, SOUTH, EAST, WEST, FIRST = range(7)
SCALE = 20 / (3 * 45 + 3 * 10 + 200)
"""Values of a battle with three marines per side."""


def world_of(name: str = "3m_duel", **settings: Any) -> Duel:
    env = make(f"skirmish/{name}", settings, 1, with_state=True)
    assert isinstance(env, WorldEnv)
    assert isinstance(env.world, Duel)
    return env.world


def placed(world: Duel, *places: tuple[float, float] | None, **rows: Sequence[float]) -> dict[str, Any]:
    """Battle with units at the given positions (None: dead); rows: other features by name, one number per unit."""
    state = world.reset(torch.full((1, world.reset_noise_size), 0.5))
    units = state["units"].clone()
    for name, values in rows.items():
        units[0, world.layout.place[name]] = torch.tensor(values)
    for i, place in enumerate(places):
        if place is None:
            units[:, world.layout.points, i] = 0
        units[0, :2, i] = torch.tensor(place or (PARK, PARK - 50 * i))
    return {"units": units}


def orders(left: Sequence[int], right: Sequence[int]) -> dict[str, Action]:
    return {side: Action(torch.tensor(chosen).view(1, -1, 1)) for side, chosen in (("left", left), ("right", right))}


def row_of(world: Duel, state: dict[str, Any], name: str) -> list[float]:
    return state["units"][0, world.layout.place[name]].tolist()


def test_duels_exist_exactly_for_symmetric_maps():
    assert set(DUELS) == {"3m_duel", "8m_duel", "25m_duel", "MMM_duel", "2s3z_duel", "3s5z_duel"}
    spec = make("skirmish/8m_duel").spec
    assert spec.symmetric
    assert spec.episode_limit == ROSTERS["8m"].limit
    assert [(role.name, role.group, role.n) for role in spec.roles] == [("left", "left", 8), ("right", "right", 8)]


def test_reward_is_damage_dealt_minus_damage_taken():
    world = world_of()
    state = placed(world, (12, 16), (1, 1), (1, 31), (16, 16), (31, 1), (31, 31))
    hit, outcome = world.step(state, orders([FIRST, STOP, STOP], [STOP] * 3), None)
    assert row_of(world, hit, "health") == [45, 45, 45, 39, 45, 45]
    assert outcome.group_reward is not None
    assert outcome.group_reward[0].tolist() == pytest.approx([6 * SCALE, -6 * SCALE])
    both, outcome = world.step(state, orders([FIRST, STOP, STOP], [FIRST, STOP, STOP]), None)
    assert row_of(world, both, "health") == [39, 45, 45, 39, 45, 45]
    assert outcome.group_reward is not None
    assert outcome.group_reward[0].tolist() == [0, 0]


def test_east_is_forward_for_both_sides():
    world = world_of()
    state = placed(world, (10, 16), (1, 1), (1, 31), (22, 20), (31, 1), (31, 31))
    after, _ = world.step(state, orders([EAST, STOP, STOP], [EAST, STOP, STOP]), None)
    x = row_of(world, after, "x")
    assert x[0] - 10 == pytest.approx(22 - x[3])
    assert x[0] == pytest.approx(10 + 3.15 / 22.4 * 8)
    names = [role.choice_names[0] for role in world.spec.roles]
    assert (names[0][EAST], names[1][EAST]) == ("east", "west")  # as a picture shows them


@pytest.mark.parametrize(("reward", "paid"), [("shaped", (6 + 10 + 200) * SCALE), ("sparse", 1.0)])
def test_losing_the_last_unit_loses_the_battle(reward: str, paid: float):
    world = world_of(reward=reward)
    state = placed(world, (12, 16), None, None, (16, 16), None, None, health=[45, 0, 0, 6, 0, 0])
    _, outcome = world.step(state, orders([FIRST, NOOP, NOOP], [STOP, NOOP, NOOP]), None)
    assert bool(outcome.terminated)
    assert outcome.group_reward is not None
    assert outcome.group_reward[0].tolist() == pytest.approx([paid, -paid])
    assert callable(outcome.metrics)
    found = {name: float(x) for name, x in outcome.metrics().items()}
    assert found == {"left_won": 1, "right_won": 0, "left_dead": 2, "right_dead": 3}


def test_a_double_knockout_is_a_draw():
    world = world_of(reward="sparse")
    state = placed(world, (12, 16), None, None, (16, 16), None, None, health=[6, 0, 0, 6, 0, 0])
    _, outcome = world.step(state, orders([FIRST, NOOP, NOOP], [FIRST, NOOP, NOOP]), None)
    assert bool(outcome.terminated)
    assert outcome.group_reward is not None
    assert outcome.group_reward.tolist() == [[0, 0]]
    assert callable(outcome.metrics)
    assert outcome.metrics()["left_won"] == outcome.metrics()["right_won"] == 0


def test_mirrored_battles_are_equal():
    """Swapping the sides swaps observations and rewards; without mirroring, observations differ."""
    world = world_of("2s3z_duel")
    draws = torch.Generator().manual_seed(5)
    one = world.reset(torch.rand(8, world.reset_noise_size, generator=draws))
    other = {"units": world._mirrored(one["units"].permute(1, 2, 0)).permute(2, 0, 1)}
    paid_at_all = 0.0
    for _ in range(40):
        seen, theirs = world.observe(one), world.observe(other)
        for part, like in ((seen.obs, theirs.obs), (seen.state, theirs.state)):
            assert torch.allclose(part["left"], like["right"], atol=1e-3)
            assert torch.allclose(part["right"], like["left"], atol=1e-3)
        assert torch.equal(seen.action_mask["left"], theirs.action_mask["right"])
        left, right = (
            Action(_drawn(seen.action_mask[side], draws, ahead=True).unsqueeze(-1)) for side in ("left", "right")
        )
        one, paid = world.step(one, {"left": left, "right": right}, None)
        other, earned = world.step(other, {"left": right, "right": left}, None)
        assert paid.group_reward is not None
        assert earned.group_reward is not None
        assert torch.allclose(paid.group_reward, earned.group_reward.flip(1), atol=1e-4)
        assert torch.equal(paid.group_reward.sum(1), torch.zeros(8))
        paid_at_all += float(paid.group_reward.abs().sum())
    assert paid_at_all > 1
    assert not torch.allclose(world.observe(one).obs["left"], world.observe(one).obs["right"], atol=0.1)


def _drawn(mask: torch.Tensor, draws: torch.Generator, ahead: bool) -> torch.Tensor:
    """Random legal actions [B, n], preferring targets and forward moves."""
    weight = mask.float()
    weight[..., FIRST:] *= 20
    weight[..., EAST] *= 4 if ahead else 1
    return torch.multinomial(weight.flatten(0, 1), 1, generator=draws).view(mask.shape[:2])


def test_a_scripted_side_beats_random_play_and_ties_with_itself():
    words = ["env=skirmish/3m_duel", "algo=scripted", "threads=1", "device=cpu", "progress=off"]
    against = evaluate_baseline(resolve([*words, "teams.left.algo=random"]), 100)["metrics"]
    assert against["right_won"] > 0.97
    equal = evaluate_baseline(resolve(words), 400)["metrics"]
    assert abs(equal["left_won"] - equal["right_won"]) < 0.1
    assert min(equal["left_won"], equal["right_won"]) > 0.2
