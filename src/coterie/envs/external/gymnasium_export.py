"""Exposes any single-team environment as a `gymnasium.vector.VectorEnv`: the interface of Gymnasium.

`AgentBatches` converts between tensors by role and arrays by agent, also for `parallel_export`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import batch_space

from coterie.core.errors import UserError
from coterie.core.markup import Markup
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.tree import tree_map
from coterie.core.types import Action, Step, Timestep
from coterie.envs.external.mask_sources import MASK
from coterie.envs.external.spaces import components
from coterie.envs.make import make


@final
class AgentBatches:
    """Observations, masks and actions of `B` environments by agent instead of by role.

    Args:
        spec: Description of the environment.

    Attributes:
        roles: Role and index within it by agent.
    """

    def __init__(self, spec: EnvSpec):
        self.spec = spec
        self.roles: dict[str, tuple[RoleSpec, int]] = {
            agent: (role, i) for role in spec.roles for i, agent in enumerate(role.agents)
        }
        self._components = {role.name: components(role.action_space) for role in spec.roles}

    def observations(self, timestep: Timestep) -> dict[str, Any]:
        """Returns an array [B, ...], or a dict of them, by agent."""
        arrays = {role: tree_map(_numpy, obs) for role, obs in timestep.obs.items()}
        return {
            agent: tree_map(lambda x, i=i: x[:, i].copy(), arrays[role.name]) for agent, (role, i) in self.roles.items()
        }

    def masks(self, timestep: Timestep) -> dict[str, np.ndarray]:
        """Returns flat masks [B, sum A], int8, by agent of the roles that have them."""
        arrays = {role: _numpy(mask).astype(np.int8) for role, mask in timestep.action_mask.items()}
        return {agent: arrays[role.name][:, i].copy() for agent, (role, i) in self.roles.items() if role.name in arrays}

    def actions(self, given: Mapping[str, Any], num_envs: int) -> dict[str, Action]:
        """Returns actions by role.

        Args:
            given: Batches of native actions by agent. Agents without one take the first action of their space.
            num_envs: Number of environments `B`.

        Raises:
            ValueError: For agents that do not exist, and actions that are not in their space.
        """
        unknown = [agent for agent in given if agent not in self.roles]
        if unknown:
            raise ValueError(f"actions of {unknown}, expected some of {list(self.roles)}")
        found = {}
        for role in self.spec.roles:
            discrete = np.zeros((num_envs, role.n, len(role.action.choices)), np.int64)
            continuous = np.zeros((num_envs, role.n, role.action.continuous), np.float32)
            for i, agent in enumerate(role.agents):
                if agent not in given:
                    continue
                try:
                    discrete[:, i], continuous[:, i] = self._components[role.name](given[agent], num_envs)
                except ValueError as error:
                    raise ValueError(f"action of {agent}: {error}") from None
            found[role.name] = Action(
                torch.from_numpy(discrete) if discrete.size else None,
                torch.from_numpy(continuous) if continuous.size else None,
            )
        return found


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.cpu().numpy()


@final
class GymnasiumWorld(GymnasiumVectorEnv):
    """A `gymnasium.vector.VectorEnv` of a built-in world, or of any other environment of Coterie with one team.

    With one agent, spaces, observations and actions are the agent's. With several, they are Dicts by agent, and the
    reward is the team's: the sum of its agents' rewards plus the group reward. Infos hold, for every environment:

    - `action_mask`: 1 for available choices and 0 for others, int8 [B, sum A], by agent if there are several
    - `alive` and `agent_reward`: by agent, if there are several
    - the metrics of the environment, such as `won`, for the environments whose episode ends

    An episode that ends is followed by the next one on the next step (`AutoresetMode.NEXT_STEP`): the step that ends it
    returns its true last observation, and the next step ignores the action.

    Args:
        name: Name of the environment.
        num_envs: Number of environments.
        seed: Seed of the first episodes. Later ones continue the random stream.
        **params: Settings of the environment.
    """

    def __init__(self, name: str, num_envs: int = 1, seed: int = 0, **params: Any):
        self._env = make(name, params, num_envs=num_envs, seed=seed)
        spec = self._env.spec
        if len(spec.groups) > 1:
            raise UserError(
                f"{name} has the teams {', '.join(spec.groups)}, but Gymnasium's interface has one reward. "
                "Use coterie.as_parallel_env, or another environment."
            )
        self._batches, self._only = AgentBatches(spec), spec.agents[0] if spec.n == 1 else None
        by_agent = {agent: role for agent, (role, _) in self._batches.roles.items()}
        self.num_envs, self.render_mode = num_envs, "rgb_array"
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"], "name": name}
        self.single_observation_space = self._single({a: role.observation_space for a, role in by_agent.items()})
        self.single_action_space = self._single({a: role.action_space for a, role in by_agent.items()})
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._first_seed: int | None = seed
        self._is_reset = False

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the roles with their agents and spaces."""
        return self._env._repr_html_()

    def _single(self, by_agent: dict[str, Any]) -> Any:
        """Returns the entry of the only agent, or of several agents all entries, those of spaces as a Dict."""
        if self._only is not None:
            return by_agent[self._only]
        are_spaces = isinstance(next(iter(by_agent.values()), None), spaces.Space)
        return spaces.Dict(by_agent) if are_spaces else by_agent

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment. Without a seed the random stream continues.

        Args:
            seed: Seed of all environments. Of a list, the first is used.
            options: Not used.
        """
        if isinstance(seed, list):
            seed = seed[0]
        super().reset(seed=seed)
        seed, self._first_seed = self._first_seed if seed is None else seed, None
        timestep = self._env.reset(seed)
        self._is_reset = True
        return self._single(self._batches.observations(timestep)), self._infos(timestep, None)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps every environment with a batch of actions, as `action_space` describes.

        Returns:
            Observations, rewards [B] float64, terminations and truncations [B] bool, and infos.

        Raises:
            ValueError: For actions that are not in their space.
            RuntimeError: Before the first reset.
        """
        if not self._is_reset:
            raise RuntimeError("step() before reset(). Call reset() first.")
        given = actions if self._only is None else {self._only: actions}
        missing = [agent for agent in self._batches.roles if agent not in given]
        if missing:
            raise ValueError(f"no actions of {missing}. Give those of all agents")
        step, timestep = self._env.step(self._batches.actions(given, self.num_envs))
        reward = step.reward.sum(1) + step.group_reward.sum(1)
        terminated, truncated = _numpy(step.episode_terminated).copy(), _numpy(step.episode_truncated).copy()
        observations = self._single(self._batches.observations(timestep))
        return observations, _numpy(reward).astype(np.float64), terminated, truncated, self._infos(timestep, step)

    def _infos(self, timestep: Timestep, step: Step | None) -> dict[str, Any]:
        """Returns the infos: each entry with the environments that have it, under its name with an underscore."""
        everywhere = np.ones(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}

        def add(name: str, by_agent: dict[str, Any]) -> None:
            if self._only is not None:
                infos[name] = by_agent[self._only]
            else:
                infos[name] = by_agent | {f"_{agent}": everywhere.copy() for agent in by_agent}
            infos[f"_{name}"] = everywhere.copy()

        masks = self._batches.masks(timestep)
        if masks:
            add(MASK, masks)
        if self._only is None:
            add("alive", dict(zip(self._batches.roles, _numpy(timestep.alive).T.copy(), strict=True)))
            if step is not None:
                rewards = _numpy(step.reward).astype(np.float64).T.copy()
                add("agent_reward", dict(zip(self._batches.roles, rewards, strict=True)))
        if step is not None:
            ended = _numpy(step.episode_terminated | step.episode_truncated)
            if ended.any():
                for name, values in step.metrics.items():
                    infos[name] = np.where(ended, _numpy(values), 0).astype(np.float64)
                    infos[f"_{name}"] = ended.copy()
        return infos

    def render(self) -> tuple[np.ndarray, ...]:
        """Draws all environments, each as uint8 [H, W, 3]."""
        return tuple(self._env.render(i) for i in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Releases the environments' resources."""
        self._env.close()
