"""Turn-based PettingZoo environments (AEC) behind the interface of parallel ones: one agent acts per step."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from gymnasium import spaces


@final
class TurnBasedEnv:
    """Steps an AECEnv one agent at a time. All agents observe every step; actions of waiting agents are ignored.

    Rewards are returned when they occur: the reward that an agent accumulates between two of its actions is distributed
    over the steps in between and sums to what `env.last()` would return at its next action.
    """

    agents: list[Any]
    """Agents that have not terminated. An AECEnv also lists terminated agents until they are stepped once more."""
    mover: Any
    """The agent to act."""

    def __init__(self, env: Any):
        self.env = env

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        env = self.env
        env.reset(seed=seed)
        self._update_agents(env.terminations, env.truncations)
        return {agent: env.observe(agent) for agent in self.agents}, env.infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Steps the environment like a parallel one; `actions` holds the actions of all agents."""
        env = self.env  # attribute access passes through all wrappers, so each is read once
        before = dict(env._cumulative_rewards)
        before[self.mover] = 0  # the accumulated reward of an agent is reset when it acts
        env.step(actions[self.mover])
        rewards = {agent: total - before.get(agent, 0) for agent, total in env._cumulative_rewards.items()}
        terminations, truncations, infos = dict(env.terminations), dict(env.truncations), env.infos
        present = self._update_agents(terminations, truncations)
        observations = {}
        if len(self.agents) < len(present):
            ended = [agent for agent in present if agent not in self.agents]
            observations = {agent: env.observe(agent) for agent in ended}  # their last timestep before they are removed
            infos = dict(infos)
            for _ in ended:
                if self.mover in self.agents or not env.agents:
                    break
                env.step(None)
                self._update_agents(terminations, truncations)
            infos |= env.infos
        observations |= {agent: env.observe(agent) for agent in self.agents}
        return observations, rewards, terminations, truncations, infos

    def _update_agents(self, terminations: dict[Any, bool], truncations: dict[Any, bool]) -> list[Any]:
        """Updates the agents and the agent to act, and returns all agents that the environment lists."""
        present = list(self.env.agents)
        self.agents = [agent for agent in present if not (terminations.get(agent) or truncations.get(agent))]
        self.mover = self.env.agent_selection
        return present

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def with_waiting(space: spaces.Space) -> spaces.Space:
    """The action space with a wait action appended to every discrete component."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n) + 1, start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec + 1, dtype=np.dtype(space.dtype).type, start=space.start)
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([with_waiting(part) for part in space.spaces])
    return space
