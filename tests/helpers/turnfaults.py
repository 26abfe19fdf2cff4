"""A turn-based game (AEC) and vectorized environments with one seeded fault each; see `gymnasium_faults`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from contract_worlds import Pond, Wrapped
from faults import FAULTS
from gymnasium_faults import Table


class Nim(AECEnv):
    """A correct game: two players take one or two pieces from a heap in turn; who takes the last one wins."""

    metadata = {"name": "nim", "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.possible_agents = ["player_0", "player_1"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict(observation=spaces.Box(0, 12, (1,)), action_mask=spaces.Box(0, 1, (2,), np.int8))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.heap = int(np.random.default_rng(seed).integers(5, 12))
        self.agents, self.agent_selection = list(self.possible_agents), "player_0"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: Any = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        return {"observation": np.array([self.heap], np.float32), "action_mask": np.array([1, self.heap > 1], np.int8)}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0
        self._clear_rewards()
        self.heap -= int(action) + 1
        assert self.heap >= 0, "not enough pieces"
        other = self.agents[1 - self.agents.index(agent)]
        if self.heap == 0:
            self.rewards.update({agent: 1.0, other: -1.0})
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self._accumulate_rewards()

    def render(self) -> Any:
        return np.zeros((40, 40, 3), np.uint8)

    def close(self) -> None:
        pass


def nim(**changes: Any) -> type[Nim]:
    return type("Changed", (Nim,), changes)


def masking(mask: Any) -> type[Nim]:
    def observe(self, agent):
        return {"observation": np.array([self.heap], np.float32), "action_mask": mask}

    return nim(observe=observe)


class Ended(Nim):
    """Has no `truncations`."""

    def reset(self, seed=None, options=None):
        super().reset(seed)
        del self.truncations


TURNS: Table = {
    "an_illegal_move_is_allowed": (
        "raises",
        "step() raised AssertionError: not enough pieces",
        masking([1, 1]),
    ),
    "mask_too_short": ("mask-size", "has 1 entries, expected 2", masking([1])),
    "no_truncations": ("step-return", "`truncations` is None, expected a dict by agent", Ended),
}


def game(fault: str = "") -> Any:
    """Returns a correct game without a fault."""
    return TURNS[fault][2]() if fault else Nim()


BATCH = {name.replace(" ", "_").replace("'", ""): rule_and_class for name, rule_and_class in FAULTS.items()}


def batch(num_envs: int, seed: int, device: Any, fault: str = "") -> Any:
    """A vectorized pond with one of the faults of `faults.py`."""
    return (BATCH[fault][1] if fault else Wrapped)(Pond(), num_envs, seed)
