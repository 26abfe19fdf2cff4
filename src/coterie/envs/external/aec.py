"""Turn-based PettingZoo environments (AEC) behind the interface of parallel ones: one agent acts per step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, cast, final

import numpy as np
from gymnasium import spaces

from coterie.envs.external.returned import WrongReturn, current_agents, described


@final
class TurnBasedEnv:
    """Steps an AECEnv one agent at a time. All agents observe every step; actions of waiting agents are ignored.

    Rewards are returned when they occur: the reward that an agent accumulates between two of its actions is distributed
    over the steps in between and sums to what `env.last()` would return at its next action.
    """

    agents: list[Any]
    """Agents that have not terminated. An AECEnv also lists terminated agents until they are stepped once more."""
    acting: list[Any]
    """The agent to act."""

    def __init__(self, env: Any):
        self.env = env

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], Any]:
        env = self.env
        env.reset(seed=seed)
        self._update_agents(self._by_agent("terminations"), self._by_agent("truncations"))
        return {agent: env.observe(agent) for agent in self.agents}, self._infos()

    def step(self, actions: dict[Any, Any]) -> tuple[Any, ...]:
        """Steps the environment like a parallel one; `actions` holds the actions of all agents.

        Raises:
            WrongReturn: If an attribute of the environment that holds a result is no dict by agent.
        """
        env = self.env  # attribute access passes through all wrappers, so each is read once
        before = dict(self._by_agent("_cumulative_rewards"))
        before[self._mover] = 0  # the accumulated reward of an agent is reset when it acts
        env.step(actions[self._mover])
        rewards = {
            agent: total - before.get(agent, 0) for agent, total in self._by_agent("_cumulative_rewards").items()
        }
        terminations, truncations = dict(self._by_agent("terminations")), dict(self._by_agent("truncations"))
        infos = self._infos()
        present = self._update_agents(terminations, truncations)
        observations = {}
        if len(self.agents) < len(present):
            ended = [agent for agent in present if agent not in self.agents]
            observations = {agent: env.observe(agent) for agent in ended}  # their last timestep before they are removed
            infos = dict(infos)
            for _ in ended:
                if self._mover in self.agents or not env.agents:
                    break
                env.step(None)
                self._update_agents(terminations, truncations)
            infos |= self._infos()
        observations |= {agent: env.observe(agent) for agent in self.agents}
        return observations, rewards, terminations, truncations, infos

    def _by_agent(self, name: str) -> dict[Any, Any]:
        """An attribute of the environment that is a dict by agent. WrongReturn if it is none."""
        value = getattr(self.env, name, None)
        if type(value) is dict or isinstance(value, Mapping):
            return cast("dict[Any, Any]", value)
        raise WrongReturn("step-return", f"`{name}` is {described(value)}, expected a dict by agent", name)

    def _infos(self) -> dict[Any, Any]:
        return {} if getattr(self.env, "infos", None) is None else self._by_agent("infos")

    def _update_agents(self, terminations: dict[Any, bool], truncations: dict[Any, bool]) -> list[Any]:
        """Updates the agents and the agent to act, and returns all agents that the environment lists."""
        present = list(current_agents(self.env))
        self.agents = [agent for agent in present if not (terminations.get(agent) or truncations.get(agent))]
        self._mover = getattr(self.env, "agent_selection", None)
        self.acting = [self._mover]
        if self.agents and not (isinstance(self._mover, Hashable) and self._mover in present):
            message = f"`agent_selection` is {described(self._mover)}, expected one of {present}"
            raise WrongReturn("agents-unknown", message, "agent_selection")
        return present

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def with_waiting(space: spaces.Space) -> spaces.Space:
    """The action space with a wait action appended to every discrete component."""
    if isinstance(space, spaces.Discrete):
        kind: dict[str, Any] = {} if space.dtype == np.int64 else {"dtype": np.dtype(space.dtype).type}
        return spaces.Discrete(int(space.n) + 1, start=int(space.start), **kind)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec + 1, dtype=np.dtype(space.dtype).type, start=space.start)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(space.shape, 3), dtype=np.dtype(space.dtype).type)
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([with_waiting(part) for part in space.spaces])
    if isinstance(space, spaces.Dict):
        return spaces.Dict(OrderedDict((key, with_waiting(part)) for key, part in space.spaces.items()))
    return space
