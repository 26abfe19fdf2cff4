"""Tiny worlds with known answers, and one with everything at once: roles, masks, death, group rewards, all actions."""

from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces

from coterie.envs.world import Outcome, View, World, WorldEnv
from coterie.types import EnvSpec, RoleSpec


class Probe(World):
    """One role of `n` agents; what is seen and paid are functions, so that a probe is a few words where it is used.

    start(noise [B, 4]) -> number x [B]; see(x, age [B]) -> [B, n, D];
    pay(x, age, discrete [B, n], continuous [B, n, C]) -> [B, n]. The task
    ends after `length` steps, or is cut there (`limit`).
    """

    restart_noise = 4

    def __init__(self, see, pay, *, n=1, size=1, actions=None, length=1, limit=False, mask=None, start=None):
        self._see, self._pay, self._length, self._mask = see, pay, length, mask
        self._start = start or (lambda noise: (noise[:, 0] > 0.5).float())
        self._ends = not limit
        role = RoleSpec(
            "agent",
            "agent",
            tuple(f"agent_{i}" for i in range(n)),
            spaces.Box(-9, 9, (size,)),
            actions or spaces.Discrete(2),
        )
        self.spec = EnvSpec("probe", (role,), {}, episode_limit=None if self._ends else length)
        self._n = n

    def restart(self, noise):
        return {"x": self._start(noise), "age": torch.zeros(len(noise))}

    def step(self, state, action, noise):
        act = action["agent"]
        discrete = None if act.discrete is None else act.discrete[..., 0]
        reward = self._pay(state["x"], state["age"], discrete, act.continuous)
        age = state["age"] + 1
        ended = age >= self._length if self._ends else None
        return {"x": state["x"], "age": age}, Outcome(reward.expand(-1, self._n).contiguous(), ended=ended)

    def view(self, state):
        masks = {} if self._mask is None else {"agent": self._mask.expand(len(state["x"]), self._n, -1)}
        return View({"agent": self._see(state["x"], state["age"]).expand(-1, self._n, -1)}, masks)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


class Everything(World):
    """Two roles with different spaces; agents die and leave NaN behind; choices are masked; groups are paid.

    kind: of the first role's actions; dead: what stands in a dead agent's observation and reward.
    """

    KINDS: ClassVar = {
        "discrete": spaces.Discrete(3),
        "multi_discrete": spaces.MultiDiscrete([3, 2]),
        "continuous": spaces.Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32)),
        "hybrid": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,))]),
    }
    restart_noise = 5
    step_noise = 3

    def __init__(self, kind="discrete", dead=float("nan"), alike=False):
        space, self._dead = self.KINDS[kind], dead
        big, small = spaces.Box(-9, 9, (5,)), spaces.Box(-9, 9, (3,))
        roles = (
            RoleSpec("guard", "all", ("guard_0", "guard_1"), big, space),
            RoleSpec("scout", "all", ("scout_0",), big if alike else small, space if alike else spaces.Discrete(4)),
        )
        self._width = 5 if alike else 3
        self.spec = EnvSpec("everything", roles, {"global": 5}, mortal=True, paid_by_group=True, episode_limit=7)

    def restart(self, noise):
        return {"x": noise, "lives": torch.ones(len(noise), 3, dtype=torch.bool)}

    def step(self, state, action, noise):
        dies = (noise < 0.1) & state["lives"]
        x = (state["x"] + 0.1).fmod(1.0)
        lives = state["lives"] & ~dies
        push = torch.zeros(len(x), 3)
        for at, role in ((slice(0, 2), "guard"), (slice(2, 3), "scout")):
            act = action[role]
            if act.discrete is not None:
                push[:, at] += act.discrete[..., 0].float()
            if act.continuous is not None:
                push[:, at] += act.continuous[..., 0]
        reward = torch.where(state["lives"], push * x[:, :1], self._dead)
        return {"x": x, "lives": lives}, Outcome(reward, group_reward=x[:, 1:2], ended=~lives.any(-1), agent_ended=dies)

    def view(self, state):
        x, lives = state["x"], state["lives"]
        seen = torch.where(lives[..., None], x.unsqueeze(1) + torch.arange(3.0)[:, None], self._dead)
        masks = {}
        for at, role in ((slice(0, 2), self.spec.roles[0]), (slice(2, 3), self.spec.roles[1])):
            if role.action.choices:
                mask = torch.ones(len(x), role.n, role.action.mask_size, dtype=torch.bool)
                mask[..., 0] = (x[:, :1] > 0.3) | ~lives[:, at]
                masks[role.name] = mask
        obs = {"guard": seen[:, :2], "scout": seen[:, 2:, : self._width]}
        return View(obs, masks, {"global": x}, lives)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


def env_of(world, copies=16, seed=0):
    return WorldEnv(world, copies, seed)
