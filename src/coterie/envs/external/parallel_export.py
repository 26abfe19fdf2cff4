"""Exposes any environment as a `ParallelEnv` of PettingZoo, which has to be installed (extra `pettingzoo`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from coterie.core.markup import Markup
from coterie.core.tree import tree_map
from coterie.core.types import Step, Timestep
from coterie.envs.external.gymnasium_export import AgentBatches
from coterie.envs.external.mask_sources import MASK, structured_mask
from coterie.envs.make import make


@final
class ParallelWorld(ParallelEnv):
    """One environment of Coterie as a ParallelEnv of PettingZoo.

    `agents` are those that live. An agent that dies gets its last reward with `terminated`, and has no entry from then
    on. An agent's reward is its own plus that of its group, which every member gets in full. Infos hold the
    `action_mask` in the form that `action_space(agent).sample(mask=)` takes and, when an episode ends, the metrics of
    the environment such as `won`.

    Args:
        name: Name of the environment.
        seed: Seed of the first episode. Later ones continue the random stream.
        **params: Settings of the environment.
    """

    def __init__(self, name: str, seed: int = 0, **params: Any):
        self._env = make(name, params, num_envs=1, seed=seed, with_state=True)
        spec = self._env.spec
        self._batches = AgentBatches(spec)
        roles = self._batches.roles
        self.metadata = {"name": name, "render_modes": ["rgb_array"], "is_parallelizable": True}
        self.render_mode = "rgb_array"
        self.possible_agents, self.agents = list(spec.agents), []
        self.observation_spaces = {agent: role.observation_space for agent, (role, _) in roles.items()}
        self.action_spaces = {agent: role.action_space for agent, (role, _) in roles.items()}
        self._groups = {agent: spec.groups.index(role.group) for agent, (role, _) in roles.items()}
        self._first_seed: int | None = seed
        self._timestep: Timestep | None = None
        size = spec.state_sizes.get("global") or sum(spaces.flatdim(s) for s in self.observation_spaces.values())
        self.state_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the roles with their agents and spaces."""
        return self._env._repr_html_()

    def observation_space(self, agent: str) -> spaces.Space:
        """Returns the observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """Returns the action space of an agent."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Starts an episode. Without a seed the random stream continues.

        Args:
            seed: Seed of the episode and of those that follow.
            options: Not used.
        """
        seed, self._first_seed = self._first_seed if seed is None else seed, None
        self._timestep = timestep = self._env.reset(seed)
        self.agents = self._living(timestep)
        return self._observations(timestep, self.agents), self._infos(timestep, self.agents, None)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Steps with an action per living agent.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that lived before the step, and of
            those that joined by it.

        Raises:
            ValueError: If an action is missing, or is not in its space.
            RuntimeError: After the end of the episode, or before the first.
        """
        if not self.agents:
            raise RuntimeError("the episode is over, or none has begun. Call reset().")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(f"no action of {missing}. Give one per agent in `agents`")
        batch = {agent: _batched(actions[agent]) for agent in self.agents}
        step, timestep = self._env.step(self._batches.actions(batch, 1))
        self._timestep = timestep
        terminated, truncated = self._flags(step.terminated), self._flags(step.truncated)
        is_over = bool(step.episode_terminated[0] | step.episode_truncated[0])
        living = [] if is_over else [a for a in self._living(timestep) if not (terminated[a] or truncated[a])]
        shown = [agent for agent in self.possible_agents if agent in self.agents or agent in living]
        if is_over:  # also of agents without a flag of their own
            for agent in shown:
                terminated[agent] |= bool(step.episode_terminated[0]) and not truncated[agent]
                truncated[agent] |= bool(step.episode_truncated[0]) and not terminated[agent]
        own, group = step.reward[0].tolist(), step.group_reward[0].tolist()
        rewards = {
            agent: own[i] + group[self._groups[agent]] if agent in self.agents else 0.0
            for i, agent in enumerate(self.possible_agents)
            if agent in shown
        }
        self.agents = living
        return (
            self._observations(timestep, shown),
            rewards,
            {agent: terminated[agent] for agent in shown},
            {agent: truncated[agent] for agent in shown},
            self._infos(timestep, shown, step if is_over else None),
        )

    def _flags(self, flags: Any) -> dict[str, bool]:
        return dict(zip(self.possible_agents, flags[0].tolist(), strict=True))

    def _living(self, timestep: Timestep) -> list[str]:
        return [agent for agent, alive in self._flags(timestep.alive).items() if alive]

    def _observations(self, timestep: Timestep, agents: list[str]) -> dict[str, Any]:
        batches = self._batches.observations(timestep)
        return {agent: tree_map(lambda x: x[0], batches[agent]) for agent in agents}

    def _infos(self, timestep: Timestep, agents: list[str], end: Step | None) -> dict[str, dict[str, Any]]:
        masks = self._batches.masks(timestep)
        metrics = {} if end is None else {name: float(value[0]) for name, value in end.metrics.items()}
        return {
            agent: dict(metrics)
            | ({MASK: structured_mask(self.action_spaces[agent], masks[agent][0])} if agent in masks else {})
            for agent in agents
        }

    def state(self) -> np.ndarray:
        """Returns the state of the environment, or the observations of all agents if it has none: float32 [S]."""
        assert self._timestep is not None, "call reset() first"
        own = self._timestep.state.get("global")
        if own is not None:
            return own[0].cpu().numpy().copy()
        seen = self._observations(self._timestep, self.possible_agents)
        parts = [np.asarray(spaces.flatten(self.observation_spaces[agent], obs)) for agent, obs in seen.items()]
        return np.concatenate(parts).astype(np.float32)

    def render(self) -> np.ndarray:
        """Draws the current timestep as uint8 [H, W, 3]."""
        return self._env.render(0)

    def close(self) -> None:
        """Releases the environment's resources. May be called twice."""
        self._env.close()


def _batched(action: Any) -> Any:
    """Returns a native action as a batch of one."""
    if isinstance(action, tuple):
        return tuple(_batched(part) for part in action)
    if isinstance(action, Mapping):
        return {key: _batched(part) for key, part in action.items()}
    return np.asarray(action)[None]
