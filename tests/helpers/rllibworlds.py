"""Environments of RLlib's interface, in which agents act at some timesteps only."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 12
BOX, CHOICE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


class MultiAgentEnv(gymnasium.Env):
    """Stands for RLlib's base class, whose package needs many others."""

    __module__ = "ray.rllib.env.multi_agent_env"


class Rota(MultiAgentEnv):
    """Agent k acts in every (k + 1)-th step, and is rewarded for repeating the bit that it sees.

    The reward of an action arrives in the next step, also for agents that are not observed then. `acted` records the
    actions of every step.
    """

    def __init__(self, agents: int = 3, simultaneous: bool = False):
        self.possible_agents = [f"worker_{k}" for k in range(agents)]
        self.observation_spaces = {agent: spaces.Box(0, 1, (2,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(2) for agent in self.possible_agents}
        self.simultaneous = simultaneous
        self.acted: list[dict[str, Any]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.bits = 0, {}
        self.owed: dict[str, float] = {}
        return self._observe(), {}

    def _observe(self) -> dict[str, Any]:
        due = [a for k, a in enumerate(self.possible_agents) if self.simultaneous or self.time % (k + 1) == 0]
        found = {}
        for agent in due:
            self.bits[agent] = int(self.np_random.integers(2))
            found[agent] = np.array([self.bits[agent], self.time / LENGTH], np.float32)
        self.due = due
        return found

    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert list(action_dict) == self.due, (action_dict, self.due)
        assert all(action in (0, 1) for action in action_dict.values())
        self.acted.append(dict(action_dict))
        rewards, self.owed = self.owed, {a: float(x == self.bits[a]) for a, x in action_dict.items()}
        self.time += 1
        over = self.time == LENGTH
        if over:
            rewards = {agent: rewards.get(agent, 0.0) + self.owed.get(agent, 0.0) for agent in self.possible_agents}
        observed = {} if over else self._observe()
        return observed, rewards, {"__all__": False}, {"__all__": over}, {}


class Game(MultiAgentEnv):
    """Two agents.

    Args:
        form: Where the spaces are.
        ends: Flags that each step returns, terminated and truncated; none later.
        observed: Agents that are observed after the reset and each step; the last entry counts for all later steps.
    """

    def __init__(self, form: str = "spaces", ends: Any = (), observed: Any = (("a", "b"),)):
        self.ends, self.observed = ends, observed
        if form != "agents":
            self.possible_agents = ["a", "b"]
        by_agent = {"a": BOX, "b": BOX}, {"a": CHOICE, "b": CHOICE}
        if form in ("spaces", "agents"):
            self.observation_spaces, self.action_spaces = by_agent
        elif form == "dict":
            self.observation_space, self.action_space = spaces.Dict(by_agent[0]), spaces.Dict(by_agent[1])
        elif form == "shared":
            self.observation_space, self.action_space = BOX, CHOICE
        elif form == "methods":
            self.get_observation_space, self.get_action_space = lambda agent: BOX, lambda agent: CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return self._observe(), {}

    def _observe(self) -> dict[str, Any]:
        seen = self.observed[min(self.time, len(self.observed) - 1)]
        return {agent: np.full(2, min(self.time / 100, 1), np.float32) for agent in seen}

    def step(self, actions: dict[str, Any]) -> Any:
        terminated, truncated = self.ends[self.time] if self.time < len(self.ends) else ({}, {})
        self.time += 1
        return self._observe(), dict.fromkeys(actions, 1.0), terminated, truncated, {}


class Duck(gymnasium.Env):
    """RLlib's interface without its class."""

    possible_agents = ("a", "b")
    observation_space, action_space = spaces.Dict(a=BOX, b=BOX), spaces.Dict(a=CHOICE, b=CHOICE)
    reset, step, _observe = Game.reset, Game.step, Game._observe
    ends: Any = ()
    observed: Any = (("a", "b"),)


class Flock:
    """RLlib's interface without its class, without `possible_agents` and without `close`."""

    observation_spaces = dict.fromkeys("ab", BOX)
    action_spaces = dict.fromkeys("ab", CHOICE)
    ends: Any = ()
    observed: Any = (("a", "b"),)
    reset, step, _observe = Game.reset, Game.step, Game._observe
