"""Probe environments with known solutions, and a world with masks, deaths and all action spaces."""

from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.worlds.world import Observation, Outcome, World, WorldEnv


class Probe(World):
    """One role of `n` agents whose observations and rewards are functions of a number x and the age of the episode.

    start(noise [B, 4]) -> x [B]; observation(x, age [B]) -> [B, n, D];
    reward(x, age, discrete [B, n], continuous [B, n, C]) -> [B, n]. Episodes terminate after `length` steps, or are
    truncated there (`limit`).
    """

    reset_noise_size = 4

    def __init__(self, observation, reward, *, n=1, size=1, actions=None, length=1, limit=False, mask=None, start=None):
        self._observation, self._reward, self._length, self._mask = observation, reward, length, mask
        self._start = start or (lambda noise: (noise[:, 0] > 0.5).float())
        self._terminates = not limit
        role = RoleSpec(
            "agent",
            "agent",
            tuple(f"agent_{i}" for i in range(n)),
            spaces.Box(-9, 9, (size,)),
            actions or spaces.Discrete(2),
        )
        self.spec = EnvSpec("probe", (role,), {}, episode_limit=None if self._terminates else length)
        self._n = n

    def reset(self, noise):
        return {"x": self._start(noise), "age": torch.zeros(len(noise))}

    def step(self, state, action, noise):
        act = action["agent"]
        discrete = None if act.discrete is None else act.discrete[..., 0]
        reward = self._reward(state["x"], state["age"], discrete, act.continuous)
        age = state["age"] + 1
        terminated = age >= self._length if self._terminates else None
        return {"x": state["x"], "age": age}, Outcome(reward.expand(-1, self._n).contiguous(), terminated=terminated)

    def observe(self, state):
        masks = {} if self._mask is None else {"agent": self._mask.expand(len(state["x"]), self._n, -1)}
        return Observation({"agent": self._observation(state["x"], state["age"]).expand(-1, self._n, -1)}, masks)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


class Everything(World):
    """Two roles with different spaces, masked choices, group rewards, and agents that die.

    kind: action space of the first role; dead: number in the observation and the reward of dead agents; equal_roles:
    both roles have the same spaces; scouts: there is a second role; groups: there are group rewards.
    """

    KINDS: ClassVar = {
        "discrete": spaces.Discrete(3),
        "multi_discrete": spaces.MultiDiscrete([3, 2]),
        "continuous": spaces.Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32)),
        "hybrid": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,))]),
    }
    reset_noise_size = 5
    step_noise_size = 3

    def __init__(self, kind="discrete", dead=float("nan"), equal_roles=False, scouts=True, groups=True):
        space, self._dead, self._groups = self.KINDS[kind], dead, groups
        big, small = spaces.Box(-9, 9, (5,)), spaces.Box(-9, 9, (3,))
        roles = (
            RoleSpec("guard", "all", ("guard_0", "guard_1"), big, space),
            RoleSpec(
                "scout",
                "all",
                ("scout_0",),
                big if equal_roles else small,
                space if equal_roles else spaces.Discrete(4),
            ),
        )
        roles = roles if scouts else roles[:1]
        self._places = [(slice(0, 2), roles[0]), *([(slice(2, 3), roles[1])] if scouts else [])]
        self._n, self._width = 3 if scouts else 2, 5 if equal_roles else 3
        self.spec = EnvSpec(
            "everything", roles, {"global": 5}, agents_can_die=True, has_group_reward=groups, episode_limit=7
        )

    def reset(self, noise):
        return {"x": noise, "alive": torch.ones(len(noise), self._n, dtype=torch.bool, device=noise.device)}

    def step(self, state, action, noise):
        dies = (noise[:, : self._n] < 0.1) & state["alive"]
        x = (state["x"] + 0.1).fmod(1.0)
        alive = state["alive"] & ~dies
        total = torch.zeros(len(x), self._n, device=x.device)
        for at, role in self._places:
            act = action[role.name]
            if act.discrete is not None:
                total[:, at] += act.discrete[..., 0].float()
            if act.continuous is not None:
                total[:, at] += act.continuous[..., 0]
        reward = torch.where(state["alive"], total * x[:, :1], self._dead)
        return {"x": x, "alive": alive}, Outcome(
            reward, group_reward=x[:, 1:2] * self._groups, terminated=~alive.any(-1), agent_terminated=dies
        )

    def observe(self, state):
        x, alive = state["x"], state["alive"]
        visible = torch.where(
            alive[..., None], x.unsqueeze(1) + torch.arange(float(self._n), device=x.device)[:, None], self._dead
        )
        masks = {}
        for at, role in self._places:
            if role.action.choices:
                mask = torch.ones(len(x), role.n, role.action.mask_size, dtype=torch.bool, device=x.device)
                mask[..., 0] = (x[:, :1] > 0.3) | ~alive[:, at]
                masks[role.name] = mask
        obs = {"guard": visible[:, :2], "scout": visible[:, 2:, : self._width]}
        obs = {role.name: obs[role.name] for _, role in self._places}
        return Observation(obs, masks, {"global": x}, alive)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


def env_of(world, num_envs=16, seed=0, device="cpu"):
    return WorldEnv(world, num_envs, seed, device)


def observe_zeros(x, age):
    return torch.zeros(len(x), 1, 1)


def observe_ones(x, age):
    return torch.ones(len(x), 1, 1)


def observe_x(x, age):
    return x.view(-1, 1, 1)


def observe_age(x, age):
    return age.view(-1, 1, 1)


def zero_reward(x, age, discrete, continuous):
    return torch.zeros(len(x), 1)


def unit_reward(x, age, discrete, continuous):
    return torch.ones(len(x), 1)
