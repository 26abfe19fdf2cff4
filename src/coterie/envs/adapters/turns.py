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

    def __init__(self, env: Any):
        self.env = env

    @property
    def agents(self) -> list[Any]:
        """Who is there and has not ended; an AECEnv holds those who ended until they were stepped once more."""
        env = self.env
        return [agent for agent in env.agents if not (env.terminations[agent] or env.truncations[agent])]

    @property
    def mover(self) -> Any:
        """Whose turn it is."""
        return self.env.agent_selection

    def reset(self, seed: int | None = None) -> tuple[dict[Any, Any], dict[Any, Any]]:
        env = self.env
        env.reset(seed=seed)
        return {agent: env.observe(agent) for agent in env.agents}, env.infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """actions: of all; returns what a parallel environment's step does."""
        env, mover = self.env, self.env.agent_selection
        before = dict(env._cumulative_rewards)
        before[mover] = 0  # what it had gathered is forgotten when it acts
        env.step(actions[mover])
        rewards = {agent: total - before.get(agent, 0) for agent, total in env._cumulative_rewards.items()}
        terminations, truncations = dict(env.terminations), dict(env.truncations)
        ended = [agent for agent in env.agents if terminations[agent] or truncations[agent]]
        observations = {agent: env.observe(agent) for agent in ended}  # their last, before they are taken out
        infos = dict(env.infos)
        for _ in ended:
            selected = env.agent_selection
            if not env.agents or not (env.terminations[selected] or env.truncations[selected]):
                break
            env.step(None)
        observations |= {agent: env.observe(agent) for agent in env.agents if agent not in observations}
        return observations, rewards, terminations, truncations, infos | env.infos

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
