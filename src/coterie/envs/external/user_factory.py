"""User-defined environments without a dependency on Coterie: `package.module:factory` creates one environment per call.

Supported return types: a ParallelEnv or AECEnv of PettingZoo, a MultiAgentEnv of PyMARL or RLlib, a gymnasium.Env, or
any object with the methods of one of these. A factory with a parameter `num_envs` creates a whole batch and is not
handled here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit
from pydantic import BaseModel

from coterie.core.errors import EnvironmentFailedError, ReportedError, UserError, message_of
from coterie.envs import registry
from coterie.envs.contract.closing import close_reported
from coterie.envs.external.agents import AgentsConfig
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.constructor_settings import typed_keys
from coterie.envs.external.foreign_interfaces import EXPECTED, foreign_interface
from coterie.envs.external.grouping import group_roles
from coterie.envs.external.gymnasium import GymInstance, SingleLayout, as_gym, single_layout
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.multi_agent_env import MultiAgentInstance, TeamLayout, is_multiagent, probe_layout
from coterie.envs.external.pettingzoo import ZooLayout, is_zoo
from coterie.envs.external.returned import described
from coterie.envs.external.rllib import RllibEnv, is_rllib
from coterie.envs.registry import place_of

_CONFIGS: dict[str, tuple[Callable[..., Any], type[AgentsConfig]]] = {}


class UserFactory(Adapter):
    """Environments created by a factory, whose parameters are settings. UserError if there is no such factory."""

    def __init__(self, name: str):
        self.name, self._factory = name, registry.factory(name)
        known = _CONFIGS.get(name)
        if known is None or known[0] is not self._factory:  # equal configurations must have the same class
            config: Any = typed_keys(AgentsConfig, [self._factory], (), name)
            known = _CONFIGS[name] = (self._factory, config)
        self.Config = known[1]
        self._zoo_layout: ZooLayout | None = None
        self._team_layout: tuple[AgentsConfig, TeamLayout] | None = None
        self._single_layout: tuple[AgentsConfig, SingleLayout] | None = None

    def layout(self, config: BaseModel) -> Layout:
        assert isinstance(config, AgentsConfig)
        if self._zoo_layout is not None and self._zoo_layout.config == config:
            return self._zoo_layout.layout
        if self._team_layout is not None and self._team_layout[0] == config:
            return _with_common_reward(self._team_layout[1].layout(), config)
        if self._single_layout is not None and self._single_layout[0] == config:
            return self._single_layout[1].layout
        env = self._one(config)
        if is_multiagent(env):
            return _with_common_reward(self._team(env, config).layout(), config)
        if isinstance(env, gymnasium.Env):
            return self._single(env, config).layout
        self._zoo_layout = ZooLayout(self.name, env, config, agents_can_die=True, limited=False)
        return self._zoo_layout.layout

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, AgentsConfig)
        self.layout(config)
        if self._team_layout is not None and self._team_layout[0] == config:
            return MultiAgentInstance(lambda seed: self._one(config, seed), self._team_layout[1], config.episode_limit)
        env = self._one(config)
        if isinstance(env, gymnasium.Env):
            assert self._single_layout is not None
            return GymInstance(env, self._single_layout[1])
        assert self._zoo_layout is not None
        return self._zoo_layout.instance(env)

    def _single(self, env: gymnasium.Env, config: AgentsConfig) -> SingleLayout:
        for key in ("roles", "max_agents", "agents_can_die", "state", "waiting"):
            if getattr(config, key):
                raise UserError(f"env.{key}: environment '{self.name}' is a gymnasium.Env with one agent. Remove it.")
        if config.teams != "separate":
            raise UserError(f"env.teams: environment '{self.name}' is a gymnasium.Env with one agent. Remove it.")
        limit = config.episode_limit or (None if env.spec is None else env.spec.max_episode_steps)
        try:
            single = single_layout(self.name, env, limit)
        except (TypeError, AttributeError) as error:
            raise UserError(f"environment '{self.name}' ({place_of(self.name)}): {message_of(error)}") from error
        self._single_layout = (config, single)
        return single

    def _team(self, env: Any, config: AgentsConfig) -> TeamLayout:
        """Properties of an environment with PyMARL's interface, which is stepped once and closed."""
        for key in ("roles", "max_agents", "teams"):
            if getattr(config, key) not in (None, "separate", "shared"):
                raise UserError(
                    f"env.{key}: environment '{self.name}' is a MultiAgentEnv with one team. Remove the setting."
                )
        try:
            layout = probe_layout(
                env,
                self.name,
                state=config.state,
                agents_can_die=config.agents_can_die,
                limit=config.episode_limit,
            )
        finally:
            close_reported(self.name, env.close)
        self._team_layout = (config, layout)
        return layout

    def _one(self, config: BaseModel, seed: int | None = None) -> Any:
        params = {key: value for key, value in config.model_dump().items() if key not in AgentsConfig.model_fields}
        own = type(config).model_fields.get("seed")
        if seed is not None and own is not None and params["seed"] == own.default:
            params["seed"] = seed
        try:
            made = self._factory(**params)
        except (ReportedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, TypeError) and error.__traceback__ and error.__traceback__.tb_next is None:
                raise UserError(
                    f"environment '{self.name}': {message_of(error)}. It is called with the env.* settings."
                ) from error
            raise EnvironmentFailedError.of(f"environment '{self.name}'", "its factory", error) from error
        env = supported(made)
        if env is None:
            said = foreign_interface(made)
            place = place_of(self.name)
            name = f"environment '{self.name}' ({place})" if place else f"environment '{self.name}'"
            raise UserError(f"{name} returned {f'{described(made)}: {EXPECTED}' if said is None else said}")
        limit = getattr(config, "episode_limit", None)
        return TimeLimit(env, limit) if isinstance(env, gymnasium.Env) and limit is not None else env


def supported(made: Any) -> Any:
    """Returns an environment of a supported interface, wrapped if it has Gymnasium's without its class, else None."""
    if inspect.isclass(made):
        return None
    if is_multiagent(made):
        return made
    if is_rllib(made):
        return RllibEnv(made)
    if isinstance(made, gymnasium.Env):
        return made
    env = as_gym(made)
    if not (isinstance(env, gymnasium.Env) or is_zoo(env)):
        return None
    return None if foreign_interface(made, is_supported=True) is not None else env


def _with_common_reward(layout: Layout, config: AgentsConfig) -> Layout:
    """Applies `env.teams` to an environment whose agents are one role."""
    if config.teams != "shared":
        return layout
    found = group_roles("shared", {role.name: role.group for role in layout.spec.roles}, roles_are_set=False)
    spec = replace(layout.spec, common_reward=layout.spec.groups, grouping=found.reason)  # the team keeps its name
    return replace(layout, spec=spec)
