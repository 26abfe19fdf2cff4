"""Groups whose members leave, or are only partly present."""

import numpy as np
import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.worlds.world import Observation, Outcome, World


class Sacrifice(World):
    """Two agents, three steps. At the first step, agent 0 can leave (1) or stay for a small reward (0). If it left, the
    group has a reward of one at the end.
    """

    reset_noise_size = 1

    def __init__(self):
        role = RoleSpec("agent", "agent", ("agent_0", "agent_1"), spaces.Box(-9, 9, (2,)), spaces.Discrete(2))
        self.spec = EnvSpec("sacrifice", (role,), {}, agents_can_die=True, has_group_reward=True)

    def reset(self, noise):
        return {"age": torch.zeros(len(noise)), "left": torch.zeros(len(noise), dtype=torch.bool)}

    def step(self, state, action, noise):
        start = state["age"] == 0
        leaves = start & (action["agent"].discrete[:, 0, 0] == 1)
        left, age = state["left"] | leaves, state["age"] + 1
        reward = torch.stack([0.2 * (start & ~leaves), torch.zeros(len(age))], 1)
        died = torch.stack([leaves, torch.zeros_like(leaves)], 1)
        group_reward = ((age == 3) & left).float().unsqueeze(1)
        return {"age": age, "left": left}, Outcome(reward, group_reward, terminated=age == 3, agent_terminated=died)

    def observe(self, state):
        alive = torch.stack([~state["left"], torch.ones_like(state["left"])], 1)
        obs = torch.stack([state["age"], state["left"].float()], 1).unsqueeze(1).expand(-1, 2, -1)
        return Observation({"agent": obs * alive.unsqueeze(-1)}, {}, {}, alive)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


class Crowd(World):
    """Some of three agents are alive for one step, with a reward of one each and equal observations."""

    reset_noise_size = 3

    def __init__(self):
        names = ("agent_0", "agent_1", "agent_2")
        role = RoleSpec("agent", "agent", names, spaces.Box(-9, 9, (1,)), spaces.Discrete(2))
        self.spec = EnvSpec("crowd", (role,), {}, agents_can_die=True)

    def reset(self, noise):
        alive = noise > 0.5
        alive[:, 0] |= ~alive.any(1)
        return {"alive": alive}

    def step(self, state, action, noise):
        terminated = torch.ones(len(state["alive"]), dtype=torch.bool)
        return state, Outcome(state["alive"].float(), terminated=terminated)

    def observe(self, state):
        return Observation({"agent": state["alive"].float().unsqueeze(-1)}, {}, {}, state["alive"])

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


class Shifts(World):
    """Two slots for seven steps, with a reward of 10 and of 1 per step that an agent is there; agents observe the time.

    The second slot is used by three agents, at times 0 and 1, 3 and 4, 5 and 6. The first one's agent stays to the end,
    or leaves after time 2, so that nobody of those who were there is left when others come (`leaves`).
    """

    reset_noise_size = 1
    LENGTH = 7

    def __init__(self, leaves=False):
        role = RoleSpec("agent", "agent", ("long", "short"), spaces.Box(0, 9, (1,)), spaces.Discrete(2))
        self.spec = EnvSpec("shifts", (role,), {}, agents_can_die=True)
        self._last = 2 if leaves else self.LENGTH

    def reset(self, noise):
        return {"age": torch.zeros(len(noise))}

    def step(self, state, action, noise):
        age = state["age"]
        gone = torch.stack([age == self._last, (age == 1) | (age == 4)], 1)
        reward = self._alive(age) * torch.tensor([10.0, 1.0])
        return {"age": age + 1}, Outcome(reward, terminated=age == self.LENGTH - 1, agent_terminated=gone)

    def observe(self, state):
        age, alive = state["age"], self._alive(state["age"])
        return Observation({"agent": (age.unsqueeze(1) * alive).unsqueeze(-1)}, {}, {}, alive)

    def _alive(self, age):
        return torch.stack([age <= self._last, age != 2], 1)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)
