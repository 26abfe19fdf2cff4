"""Worlds of two teams, and learners of the first team against a random second one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.worlds.world import Observation, Outcome, World
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector

CPU = torch.device("cpu")


class Hidden(World):
    """Games of one step, in which team `near` receives (2 x - 1) + (2 a - 1).

    The other team, `far`, observes x in {0, 1} and chooses a in {0, 1}; `near` observes zeros, and its choices have no
    effect. Its value is 2 x - 1 before `far` acts, and the reward itself after that.
    """

    reset_noise_size = 1

    def __init__(self, actions: spaces.Space | None = None):
        box = spaces.Box(-9, 9, (1,))
        roles = (
            RoleSpec("near", "near", ("near_0", "near_1"), box, actions or spaces.Discrete(2)),
            RoleSpec("far", "far", ("far_0",), box, spaces.Discrete(2)),
        )
        self.spec = EnvSpec("hidden", roles, {})

    def reset(self, noise):
        return {"x": (noise[:, 0] > 0.5).float()}

    def step(self, state, action, noise):
        x, far = state["x"], action["far"]
        a = (far.continuous[:, 0, 0] > 0).float() if far.discrete is None else far.discrete[:, 0, 0].float()
        reward = (2 * x - 1 + 2 * a - 1).unsqueeze(-1) * torch.tensor([1.0, 1.0, 0.0])
        return state, Outcome(reward, terminated=torch.ones(len(x), dtype=torch.bool))

    def observe(self, state):
        x = state["x"].view(-1, 1, 1)
        return Observation({"near": torch.zeros(len(x), 2, 1), "far": x}, {})

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


class TwoSides(Everything):
    """The guards and the scout of `Everything` as two teams, with masks, deaths and group rewards."""

    def __init__(self, kind="discrete", dead=float("nan")):
        super().__init__(kind, dead)
        roles = tuple(replace(role, group=role.name) for role in self.spec.roles)
        self.spec = replace(self.spec, roles=roles)

    def step(self, state, action, noise):
        state, outcome = super().step(state, action, noise)
        return state, replace(outcome, group_reward=outcome.group_reward.expand(-1, 2))


def against_random(cls, config, world, *, num_envs=16, seed=0):
    """Returns a learner of the world's first team, and a collector in which the second team acts at random."""
    env = env_of(world, num_envs)
    team, other = env.spec.default_teams()
    learner = cls(config, AlgorithmContext(team=team, num_envs=num_envs, seed=seed, device=CPU))
    policies = {team.name: learner.policy, other.name: RandomPolicy(other, CPU)}
    readers = [team.name] if learner.others.roles else []
    return learner, Collector(env, policies, seed=0, readers=readers)
