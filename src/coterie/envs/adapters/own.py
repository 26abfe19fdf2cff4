"""A user's own environment that knows nothing of Coterie: `package.module:factory` makes one copy of it a call.

What the factory returns decides: a ParallelEnv or an AECEnv of PettingZoo, a MultiAgentEnv of PyMARL, a gymnasium.Env,
or anything with the methods of one. A factory that takes `copies` makes a whole batch, and does not come here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit
from pydantic import BaseModel

from coterie import registry
from coterie.envs.adapters.adapter import Adapter
from coterie.envs.adapters.cast import AgentsConfig
from coterie.envs.adapters.gymlike import as_gym
from coterie.envs.adapters.gymnasium import ROLE, GymInstance
from coterie.envs.adapters.keys import typed_keys
from coterie.envs.adapters.multiagent import Squad, SquadInstance, is_multiagent, probed
from coterie.envs.adapters.pettingzoo import Stage, is_zoo
from coterie.envs.adapters.spaces import Actuator, Observer
from coterie.envs.hosting.instance import Instance, Layout
from coterie.errors import UserError
from coterie.types import EnvSpec, RoleSpec

_CONFIGS: dict[str, tuple[Callable[..., Any], type[AgentsConfig]]] = {}

_WANTED = (
    "expected PettingZoo's ParallelEnv or AECEnv, PyMARL's MultiAgentEnv or a gymnasium.Env; "
    "a factory of a coterie.envs.vector.VectorEnv takes copies, seed and device"
)


class Own(Adapter):
    """The environments that a factory makes, whose parameters are keys. UserError if there is none of the name."""

    def __init__(self, name: str):
        self.name, self._factory = name, registry.factory(name)
        known = _CONFIGS.get(name)
        if known is None or known[0] is not self._factory:  # equal configurations have to be of one class
            config: Any = typed_keys(AgentsConfig, [self._factory], (), name)
            known = _CONFIGS[name] = (self._factory, config)
        self.Config = known[1]
        self._stage: Stage | None = None
        self._squad: tuple[AgentsConfig, Squad] | None = None

    def layout(self, config: BaseModel) -> Layout:
        assert isinstance(config, AgentsConfig)
        if self._stage is not None and self._stage.config == config:
            return self._stage.layout
        if self._squad is not None and self._squad[0] == config:
            return self._squad[1].layout()
        env = self._one(config)
        if is_multiagent(env):
            return self._team(env, config).layout()
        if isinstance(env, gymnasium.Env):
            return self._single(env, config)
        self._stage = Stage(self.name, env, config, mortal=True, limited=False)
        return self._stage.layout

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, AgentsConfig)
        self.layout(config)
        if self._squad is not None and self._squad[0] == config:
            return SquadInstance(lambda seed: self._one(config, seed), self._squad[1], config.episode_limit)
        env = self._one(config)
        if isinstance(env, gymnasium.Env):
            return GymInstance(env)
        assert self._stage is not None
        return self._stage.instance(env)

    def _single(self, env: gymnasium.Env, config: AgentsConfig) -> Layout:
        for key in ("roles", "max_agents", "mortal", "state"):
            if getattr(config, key):
                raise UserError(f"environment '{self.name}' is a gymnasium.Env with one agent: leave env.{key} out")
        try:
            Actuator(env.action_space)
            observer = Observer(env.observation_space)
            role = RoleSpec(ROLE, ROLE, (ROLE,), observer.space, env.action_space)
        except TypeError as error:
            raise UserError(f"environment '{self.name}': {error}") from error
        limit = config.episode_limit or (None if env.spec is None else env.spec.max_episode_steps)
        spec = EnvSpec(self.name, (role,), {}, episode_limit=limit, exact_resume=False)
        env.close()
        return Layout(spec, {ROLE: observer})

    def _team(self, env: Any, config: AgentsConfig) -> Squad:
        """The squad of an environment with PyMARL's interface, which is stepped once and closed."""
        for key in ("roles", "max_agents"):
            if getattr(config, key) is not None:
                raise UserError(f"environment '{self.name}' is a MultiAgentEnv with one team: leave env.{key} out")
        try:
            squad = probed(env, self.name, config.state, config.mortal, config.episode_limit)
        finally:
            env.close()
        self._squad = (config, squad)
        return squad

    def _one(self, config: BaseModel, seed: int | None = None) -> Any:
        params = {key: value for key, value in config.model_dump().items() if key not in AgentsConfig.model_fields}
        own = type(config).model_fields.get("seed")
        if seed is not None and own is not None and params["seed"] == own.default:
            params["seed"] = seed
        try:
            env = as_gym(self._factory(**params))
        except TypeError as error:
            # Only the call itself is the user's one-line mistake; an error from within the factory keeps its traceback.
            if error.__traceback__ and error.__traceback__.tb_next is None:
                raise UserError(f"environment '{self.name}': {error}; it is called with env.* keys") from error
            raise
        if is_multiagent(env):
            return env
        if isinstance(env, gymnasium.Env):
            limit = getattr(config, "episode_limit", None)
            return env if limit is None else TimeLimit(env, limit)
        if not is_zoo(env):
            raise UserError(f"environment '{self.name}' returned a {type(env).__name__}: {_WANTED}")
        return env
