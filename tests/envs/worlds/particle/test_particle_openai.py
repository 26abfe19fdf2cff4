"""The `openai` variant: comparison with an independent NumPy simulation, and with published baselines."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.types import Action
from coterie.envs.worlds.particle import SCENARIOS
from coterie.envs.worlds.particle.particle_world import ParticleWorld
from coterie.envs.worlds.particle.scripts import follow_speaker, spread_greedily
from coterie.envs.worlds.world import WorldEnv

SCENARIO_NAMES = ["simple_spread", "simple_tag", "simple_push", "simple_adversary", "simple_speaker_listener"]
DIRECTIONS = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float64)


def make_world(scenario: str, **config: Any) -> ParticleWorld:
    module, name = SCENARIOS[scenario].split(":")
    world = getattr(importlib.import_module(module), name)
    return world(world.Config(**config))


class Original:
    """One environment of the original implementation: accelerate, then move. Bodies are agents, then landmarks."""

    def __init__(self, pos: np.ndarray, sizes: list[float], agents: int, collide: list[bool]):
        self.pos, self.vel = pos, np.zeros((agents, 2))
        self.sizes, self.collide = sizes, collide

    def touches(self, i: int, j: int) -> bool:
        return bool(np.linalg.norm(self.pos[i] - self.pos[j]) < self.sizes[i] + self.sizes[j])

    def step(self, force: np.ndarray, max_speed: list[float | None]) -> None:
        force = force.copy()
        for i in range(len(self.vel)):
            for j in range(len(self.pos)):
                if i != j and self.collide[i] and self.collide[j]:
                    delta = self.pos[i] - self.pos[j]
                    distance = np.sqrt((delta**2).sum())
                    depth = 1e-3 * np.logaddexp(0, -(distance - self.sizes[i] - self.sizes[j]) / 1e-3)
                    force[i] += 100 * depth * delta / distance
        for i, limit in enumerate(max_speed):
            self.vel[i] = 0.75 * self.vel[i] + 0.1 * force[i]
            speed = np.sqrt((self.vel[i] ** 2).sum())
            if limit is not None and speed > limit:
                self.vel[i] *= limit / speed
            self.pos[i] += 0.1 * self.vel[i]


def boundary_penalty(x: float) -> float:
    if x < 0.9:
        return 0.0
    return (x - 0.9) * 10 if x < 1 else min(np.exp(2 * x - 2), 10.0)


def original_reward(scenario: str, world: Original, goal: int) -> list[float]:
    """Returns the rewards of the original implementation in the order of our agents."""

    def distance(i: int, j: int) -> float:
        return float(np.linalg.norm(world.pos[i] - world.pos[j]))

    if scenario == "simple_spread":
        cover = sum(min(distance(i, mark) for i in range(3)) for mark in range(3, 6))
        touched = sum(world.touches(i, j) for i in range(3) for j in range(3))  # includes each with itself
        return [-3 * cover - touched] * 3
    if scenario == "simple_tag":
        touched = sum(world.touches(i, 3) for i in range(3))
        return [10.0 * touched] * 3 + [-10.0 * touched - sum(boundary_penalty(abs(x)) for x in world.pos[3])]
    if scenario == "simple_push":
        return [distance(1, 2 + goal) - distance(0, 2 + goal), -distance(1, 2 + goal)]
    if scenario == "simple_adversary":
        good = distance(0, 3 + goal) - min(distance(1, 3 + goal), distance(2, 3 + goal))
        return [-(distance(0, 3 + goal) ** 2), good, good]
    return [-2 * distance(0, 2 + goal) ** 2] * 2


FORCES = {
    "simple_spread": [5.0] * 3,
    "simple_tag": [3.0, 3.0, 3.0, 4.0],
    "simple_push": [5.0] * 2,
    "simple_adversary": [5.0] * 3,
    "simple_speaker_listener": [5.0],
}


@pytest.mark.parametrize(
    ("scenario", "crowded", "actions"),
    [
        (name, (k + j) % 2 == 0, ("discrete", "continuous")[j])
        for k, name in enumerate(SCENARIO_NAMES)
        for j in range(2)
    ],
)
def test_openai_variant_matches_an_independent_simulation(scenario: str, crowded: bool, actions: str) -> None:
    torch.manual_seed(5)
    world = make_world(scenario, variant="openai", actions=actions)
    state = world.reset(torch.rand(1, world.reset_noise_size, dtype=torch.float64))
    parts = world.physics.layout.split(state["flat"].T.contiguous())
    if crowded:
        state = world.with_parts(state, moving=parts["moving"] * 0.2)
        parts = world.physics.layout.split(state["flat"].T.contiguous())
    collides = scenario in ("simple_spread", "simple_tag", "simple_push")
    movers = parts["moving"].shape[1]
    bodies = world.scenario.bodies
    pos = world.physics.positions(parts)[..., 0].T.numpy().copy()
    agents_collide = [collides and (i < movers or scenario == "simple_tag") for i in range(len(pos))]
    simulation = Original(pos, [body.size for body in bodies], movers, agents_collide)
    limits = [1.0, 1.0, 1.0, 1.3] if scenario == "simple_tag" else [None] * movers
    goal = int(parts["goal"][:, 0].argmax()) if "goal" in parts else 0
    for _ in range(25):
        action, moves = {}, []
        for role in world.spec.roles:
            if actions == "discrete":
                choice = torch.randint(role.action.choices[0], (1, role.n, 1))
                action[role.name] = Action(discrete=choice)
                if role.name != "speaker":
                    moves.append(DIRECTIONS[choice[0, :, 0].numpy()])
            else:
                numbers = torch.rand(1, role.n, role.action.continuous, dtype=torch.float64)
                action[role.name] = Action(continuous=numbers * 2 - 1)
                if role.name != "speaker":
                    moves.append(numbers[0].numpy() @ DIRECTIONS)
        simulation.step(np.concatenate(moves) * np.array(FORCES[scenario])[:, None], limits)
        state, outcome = world.step(state, action, None)
        parts = world.physics.layout.split(state["flat"].T.contiguous())
        np.testing.assert_allclose(parts["moving"][..., 0].T.numpy(), simulation.pos[:movers], atol=1e-9)
        np.testing.assert_allclose(parts["vel"][..., 0].T.numpy(), simulation.vel, atol=1e-8)
        expected = original_reward(scenario, simulation, goal)
        np.testing.assert_allclose(outcome.reward[0].numpy(), expected, atol=1e-8)


# ---------------------------------------------------------------------------------------------------- baselines

Policy = Callable[[WorldEnv, dict[str, torch.Tensor], torch.Generator], dict[str, Action]]


def at_random(env: WorldEnv, obs: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, Action]:
    return {
        role.name: Action(torch.randint(role.action.choices[0], (env.num_envs, role.n, 1), generator=generator))
        for role in env.spec.roles
    }


def stay(env: WorldEnv, obs: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, Action]:
    return {role.name: Action(torch.zeros(env.num_envs, role.n, 1, dtype=torch.long)) for role in env.spec.roles}


def greedy_openai(env: WorldEnv, obs: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, Action]:
    return spread_greedily(obs, "openai")


def greedy_mpe2(env: WorldEnv, obs: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, Action]:
    return spread_greedily(obs)


def follow(env: WorldEnv, obs: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, Action]:
    return follow_speaker(obs, "openai")


OPENAI = {"variant": "openai"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "config", "policy", "expected", "tolerance"),
    [
        ("simple_spread", {}, at_random, -79.0 / 3, 0.7 / 3),
        ("simple_spread", {}, greedy_mpe2, -23.9 / 3, 0.2),
        ("simple_spread", OPENAI, at_random, -231.5, 2),
        ("simple_spread", {**OPENAI, "episode_limit": 50}, at_random, -490.5, 2),
        ("simple_spread", OPENAI, stay, -218.3, 2),
        ("simple_spread", OPENAI, greedy_openai, -114.4, 2),
        ("simple_speaker_listener", OPENAI, at_random, -80.1, 1.5),
        ("simple_speaker_listener", OPENAI, stay, -65.4, 1.5),
        ("simple_speaker_listener", OPENAI, follow, -12.1, 0.3),
    ],
)
def test_baselines_reach_published_returns(
    scenario: str, config: dict[str, Any], policy: Policy, expected: float, tolerance: float
) -> None:
    """The mean return over 10,000 episodes and over agents."""
    env = WorldEnv(make_world(scenario, **config), 10_000, seed=1)
    generator = torch.Generator().manual_seed(1)
    timestep = env.reset()
    total = torch.zeros(env.num_envs, env.spec.n)
    for _ in range(env.spec.episode_limit or 0):
        step, timestep = env.step(policy(env, timestep.obs, generator))
        total += step.reward
    assert bool(step.episode_truncated.all())
    assert abs(float(total.mean()) - expected) < tolerance
