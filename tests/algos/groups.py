"""Groups whose members leave, or are not all there."""

import numpy as np
import torch
from gymnasium import spaces

from coterie.envs.world import Outcome, View, World
from coterie.types import EnvSpec, RoleSpec


class Sacrifice(World):
    """Two agents, three steps. The first can leave at once (1) or stay for a small pay (0); if it left, the group earns
    one at the end.
    """

    restart_noise = 1

    def __init__(self):
        role = RoleSpec("agent", "agent", ("agent_0", "agent_1"), spaces.Box(-9, 9, (2,)), spaces.Discrete(2))
        self.spec = EnvSpec("sacrifice", (role,), {}, mortal=True, paid_by_group=True)

    def restart(self, noise):
        return {"age": torch.zeros(len(noise)), "left": torch.zeros(len(noise), dtype=torch.bool)}

    def step(self, state, action, noise):
        start = state["age"] == 0
        leaves = start & (action["agent"].discrete[:, 0, 0] == 1)
        left, age = state["left"] | leaves, state["age"] + 1
        own = torch.stack([0.2 * (start & ~leaves), torch.zeros(len(age))], 1)
        gone = torch.stack([leaves, torch.zeros_like(leaves)], 1)
        paid = ((age == 3) & left).float().unsqueeze(1)
        return {"age": age, "left": left}, Outcome(own, paid, ended=age == 3, agent_ended=gone)

    def view(self, state):
        alive = torch.stack([~state["left"], torch.ones_like(state["left"])], 1)
        seen = torch.stack([state["age"], state["left"].float()], 1).unsqueeze(1).expand(-1, 2, -1)
        return View({"agent": seen * alive.unsqueeze(-1)}, {}, {}, alive)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


class Crowd(World):
    """Some of three agents are there for one step and are paid one each; all see the same."""

    restart_noise = 3

    def __init__(self):
        names = ("agent_0", "agent_1", "agent_2")
        role = RoleSpec("agent", "agent", names, spaces.Box(-9, 9, (1,)), spaces.Discrete(2))
        self.spec = EnvSpec("crowd", (role,), {}, mortal=True)

    def restart(self, noise):
        alive = noise > 0.5
        alive[:, 0] |= ~alive.any(1)
        return {"alive": alive}

    def step(self, state, action, noise):
        ended = torch.ones(len(state["alive"]), dtype=torch.bool)
        return state, Outcome(state["alive"].float(), ended=ended)

    def view(self, state):
        return View({"agent": state["alive"].float().unsqueeze(-1)}, {}, {}, state["alive"])

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)
