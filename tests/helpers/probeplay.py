"""Probes, steps and whole episodes for their tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.types import Action, Step
from coterie.envs.contract.traces import random_actions
from coterie.envs.make import make
from coterie.envs.worlds.probe.probe import ProbeAction, ProbeWorld
from coterie.envs.worlds.world import WorldEnv

GAMMA = 0.9


def make_env(name: str, num_envs: int = 1, with_state: bool = False, **params: Any) -> WorldEnv:
    env = make(f"probe/{name}", params, num_envs, seed=0, with_state=with_state)
    assert isinstance(env, WorldEnv)
    env.reset(0)
    return env


def probe_of(env: WorldEnv) -> ProbeWorld:
    assert isinstance(env.world, ProbeWorld)
    return env.world


def step_discrete(env: WorldEnv, *choice: int) -> Step:
    """Steps with these choices of the agents, equal in all environments."""
    return env.step({"agent": Action(torch.tensor([[[c] for c in choice]] * env.num_envs))})[0]


def step_continuous(env: WorldEnv, *number: float) -> Step:
    world = probe_of(env)
    taken = ProbeAction(torch.zeros(1, len(number), 0, dtype=torch.int64), torch.tensor([[[x] for x in number]]))
    return env.step(encoded(world, taken))[0]


def encoded(world: ProbeWorld, action: ProbeAction) -> dict[str, Action]:
    """Returns an action in the environment's format, with continuous actions in [-1, 1]."""
    spec = world.spec.roles[0].action
    low, high = torch.tensor(spec.low), torch.tensor(spec.high)
    scaled = 2 * (action.continuous - low) / (high - low) - 1 if spec.continuous else None
    return {"agent": Action(action.discrete if spec.choices else None, scaled)}


def world_state(env: WorldEnv) -> dict[str, Tensor]:
    return env.state_dict()["state"]


def play_episodes(env: WorldEnv, best: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Plays one episode per environment.

    Returns:
        Returns, discounted returns, and the known values of the first timestep, [B] each.
    """
    world, generator = probe_of(env), torch.Generator().manual_seed(5)
    timestep = env.reset(1)
    value = world.best_value(world_state(env), GAMMA)
    total = discounted = torch.zeros(env.num_envs, dtype=torch.float64)
    for t in range(world.probe.episode_length):
        actions = (
            encoded(world, world.best_action(world_state(env)))
            if best
            else random_actions(env.spec, timestep, generator)
        )
        step, timestep = env.step(actions)
        reward = (step.reward.sum(1) + step.group_reward.sum(1)).double()
        total, discounted = total + reward, discounted + GAMMA**t * reward
    assert not timestep.acted.any()
    return total, discounted, value


def is_close_to(samples: Tensor, mean: float) -> bool:
    """True if the mean of the samples is as expected, within four standard errors and rounding."""
    return abs(float(samples.mean()) - mean) <= 4 * float(samples.std()) / len(samples) ** 0.5 + 1e-6
