"""Turn-based environments of PettingZoo (AEC) behind the calls of its parallel ones: a step is one agent's turn."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from gymnasium import spaces


@final
class Turns:
    """An AECEnv, one agent's turn a step. Everybody observes in every step; the others' actions are not looked at.

    Rewards are paid when they arrive: what an agent got between two of its turns is spread over the steps in between,
    and adds up to what `env.last()` would say at its next turn.
    """

    agents: list[Any]
    """Who is there and has not ended; an AECEnv holds those who ended until they were stepped once more."""
    mover: Any
    """Whose turn it is."""

    def __init__(self, env: Any):
        self.env = env

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        env = self.env
        env.reset(seed=seed)
        self._look(env.terminations, env.truncations)
        return {agent: env.observe(agent) for agent in self.agents}, env.infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """actions: of all; returns what a parallel environment's step does."""
        env = self.env  # every attribute goes through all of its wrappers, so none is read twice
        before = dict(env._cumulative_rewards)
        before[self.mover] = 0  # what it had gathered is forgotten when it acts
        env.step(actions[self.mover])
        rewards = {agent: total - before.get(agent, 0) for agent, total in env._cumulative_rewards.items()}
        terminations, truncations, infos = dict(env.terminations), dict(env.truncations), env.infos
        present = self._look(terminations, truncations)
        observations = {}
        if len(self.agents) < len(present):
            ended = [agent for agent in present if agent not in self.agents]
            observations = {agent: env.observe(agent) for agent in ended}  # their last, before they are taken out
            infos = dict(infos)
            for _ in ended:
                if self.mover in self.agents or not env.agents:
                    break
                env.step(None)
                self._look(terminations, truncations)
            infos |= env.infos
        observations |= {agent: env.observe(agent) for agent in self.agents}
        return observations, rewards, terminations, truncations, infos

    def _look(self, terminations: dict[Any, bool], truncations: dict[Any, bool]) -> list[Any]:
        """Who is there now, and whose turn it is. Returns all whom the environment holds."""
        present = list(self.env.agents)
        self.agents = [agent for agent in present if not (terminations.get(agent) or truncations.get(agent))]
        self.mover = self.env.agent_selection
        return present

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


def with_waiting(space: spaces.Space) -> spaces.Space:
    """The action space with one more choice in every discrete component, the last: to wait."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n) + 1, start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec + 1, dtype=np.dtype(space.dtype).type, start=space.start)
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([with_waiting(part) for part in space.spaces])
    return space
