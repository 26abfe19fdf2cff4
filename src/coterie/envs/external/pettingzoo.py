"""PettingZoo environments, `pettingzoo/<module>`: many agents that act simultaneously or in turn.

Equivalent to the library's own loop: equal seeds and actions give equal observations and rewards. The parallel
interface is used if the module provides it, else the turn-based one (AEC).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

import numpy as np
from pydantic import BaseModel

from coterie.config.trust import is_known_module
from coterie.config.user_code import require_importable
from coterie.config.wrappers import WrappersConfig
from coterie.core.errors import UserError, as_user_error, message_of, nearest
from coterie.core.installation import install_extra
from coterie.core.specs import EnvSpec
from coterie.envs.contract.closing import close_reported
from coterie.envs.external.aec import TurnBasedEnv
from coterie.envs.external.agents import AgentLayout, AgentsConfig, agent_layout_of
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.constructor_settings import typed_keys
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.parallel_step import ParallelInstance
from coterie.envs.external.returned import first_reset
from coterie.envs.external.rllib import RllibEnv

_OWN = ("atari", "butterfly", "classic", "sisl")
"""PettingZoo's own packages, abbreviated: `NAME` stands for `pettingzoo.NAME`."""

_FIXED_AGENTS = ("mpe2.*", "butterfly.pistonball_*", "butterfly.cooperative_pong_*", "classic.*", "sisl.pursuit_*")
"""Environments whose agents all live until the episode ends."""

_CHECKS = ("OrderEnforcingWrapper", "AssertOutOfBoundsWrapper")
"""Wrappers that check the call order and action bounds, which Coterie guarantees. In mpe2 environments, which are AEC
environments behind a parallel interface, they take a third of the step time.
"""

_CONFIGS: dict[str, tuple[ModuleType, type[AgentsConfig]]] = {}


class PettingZoo(Adapter):
    """The environment of one module: `butterfly.pistonball_v6` of PettingZoo, `mpe2.simple_spread_v3` of another
    package.
    """

    def __init__(self, module: str):
        self.name, self._module = f"pettingzoo/{module}", module
        found = _imported(module)
        self._make: Callable[..., Any] = getattr(found, "parallel_env", None) or found.env
        known = _CONFIGS.get(module)
        if known is None or known[0] is not found:  # equal configurations must have the same class
            makers = [self._make, *([found.raw_env] if hasattr(found, "raw_env") else [])]
            config: Any = typed_keys(AgentsConfig, makers, ("render_mode",), module)
            known = _CONFIGS[module] = (found, config)
        self.Config = known[1]
        self._zoo_layout: ZooLayout | None = None

    def layout(self, config: BaseModel) -> Layout:
        return self._zoo_layout_of(config).layout

    def instance(self, config: BaseModel) -> Instance:
        return self._zoo_layout_of(config).instance(self._one(config))

    def _zoo_layout_of(self, config: BaseModel) -> ZooLayout:
        assert isinstance(config, AgentsConfig)
        if self._zoo_layout is None or self._zoo_layout.config != config:
            fixed_agents = any(fnmatchcase(self._module, pattern) for pattern in _FIXED_AGENTS)
            with user_errors(self.name, _install(self._module)):
                self._zoo_layout = ZooLayout(self.name, self._one(config), config, not fixed_agents, limited=True)
        return self._zoo_layout

    def _one(self, config: BaseModel) -> Any:
        params = {key: value for key, value in config.model_dump().items() if key not in AgentsConfig.model_fields}
        # Rendering is prepared at construction. Nothing is drawn until requested, and never in a window.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        with user_errors(self.name, _install(self._module)):
            return self._make(render_mode="rgb_array", **params)


class ZooLayout:
    """Static properties of an environment with PettingZoo's interface.

    Args:
        env: An instance, which is closed afterwards.
        agents_can_die: Default if the configuration does not specify it.
        limited: Use the environment's `max_cycles` as its episode limit.

    Raises:
        UserError: For objects without the interface, and settings that do not match.
    """

    def __init__(self, name: str, env: Any, config: AgentsConfig, agents_can_die: bool, limited: bool):
        self.name, self.config = name, config
        self._agents_can_die = agents_can_die if config.agents_can_die is None else config.agents_can_die
        env = as_parallel(env)
        for key in ("sticky_actions", "action_repeat") if isinstance(env, TurnBasedEnv) else ():
            if getattr(config.wrappers, key) != getattr(WrappersConfig(), key):
                said = "agents act in turn, so an action cannot be repeated in the next step"
                raise UserError(f"env.wrappers.{key}: {said} in '{name}'. Remove the setting.")
        if config.waiting is not None and not isinstance(env, RllibEnv):
            raise UserError(f"env.waiting: '{name}' does not have RLlib's interface. Remove the setting.")
        limit = _max_cycles(env) if limited and not isinstance(env, TurnBasedEnv) else None
        turns = isinstance(env, TurnBasedEnv)
        if isinstance(env, RllibEnv):
            turns = env.has_waiting_agents() if config.waiting is None else config.waiting
        infos = first_reset(name, env, by_agent=True)[1]
        try:
            self._agent_layout: AgentLayout = agent_layout_of(env, infos, config, turns)
        except UserError as error:
            raise UserError(f"environment '{name}': {error}") from error
        close_reported(name, env.close)
        spec = EnvSpec(
            name,
            self._agent_layout.grouped_roles(),
            {"global": self._agent_layout.state} if self._agent_layout.state else {},
            agents_can_die=self._agents_can_die or self._agent_layout.seats is None,
            episode_limit=min((n for n in (limit, config.episode_limit) if n is not None), default=None),
            common_reward=self._agent_layout.grouping.common_reward,
            grouping=self._agent_layout.grouping.reason,
            exact_resume=False,
            notes=self._agent_layout.notes,
        )
        observers = {part.role.name: part.observer for part in self._agent_layout.parts}
        self.layout = Layout(spec, observers, self._agent_layout.masked)

    def instance(self, env: Any) -> Instance:
        return ParallelInstance(
            as_parallel(env),
            self._agent_layout,
            self.name,
            limit=self.config.episode_limit,
            agents_can_die=self.layout.spec.agents_can_die,
        )


def is_zoo(env: Any) -> bool:
    """True if the object has the interface of a ParallelEnv or an AECEnv; it need not be a subclass."""
    return hasattr(env, "step") and hasattr(env, "reset") and callable(getattr(env, "observation_space", None))


def as_parallel(env: Any) -> Any:
    """The environment with a parallel step. AEC environments that update once per cycle are converted by PettingZoo."""
    if _is(env, "aec_to_parallel_wrapper"):
        while _is(env.aec_env, *_CHECKS):
            env.aec_env = env.aec_env.env
    if not (callable(getattr(env, "observe", None)) and callable(getattr(env, "last", None))):
        return env
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable"):
        return TurnBasedEnv(env)
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)


def _is(env: Any, *names: str) -> bool:
    """True if it is an instance of PettingZoo classes with these names; the library need not be installed."""
    return type(env).__module__.startswith("pettingzoo.utils.") and type(env).__name__ in names


def _max_cycles(env: Any) -> int | None:
    inner = getattr(env, "unwrapped", env)
    for holder in (inner, getattr(inner, "env", None)):  # some wrap another environment
        limit = getattr(holder, "max_cycles", None)
        if isinstance(limit, int | np.integer) and limit > 0:
            return int(limit)
    return None


# ------------------------------------------------------------------------------------------------- what the library has


def _imported(module: str) -> ModuleType:
    """Imports the module that creates the environment. UserError if it or one of its dependencies is missing."""
    path = _path(module)
    name = f"pettingzoo/{module}"
    if not is_known_module(name):
        require_importable(path, f"environment '{name}'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation warnings about ways of creating environments
            found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and f"{path}.".startswith(f"{error.name}."):
            top = error.name.partition(".")[0]
            if error.name == top and (top in {"pettingzoo", "mpe2"} or module.count(".") > 1):
                raise UserError(
                    f"environment 'pettingzoo/{module}' needs {top}. Install it with: {_install(module)}"
                ) from error
            raise UserError(_unknown(module)) from error
        said = f"needs '{error.name}', which is not installed. Install it with: {_install(module)}"
        raise UserError(f"environment 'pettingzoo/{module}' {said}") from error
    except ImportError as error:
        said = message_of(error)
        raise UserError(f"environment 'pettingzoo/{module}': {said}. Install it with: {_install(module)}") from error
    if not (hasattr(found, "parallel_env") or hasattr(found, "env")):
        raise UserError(_unknown(module))
    return found


def _path(module: str) -> str:
    return f"pettingzoo.{module}" if module.partition(".")[0] in _OWN else module


def _install(module: str) -> str:
    """Returns the command that installs what an environment needs."""
    top = module.partition(".")[0]
    if top in ("butterfly", "sisl", "mpe2"):
        return install_extra("pettingzoo")
    return f'pip install "pettingzoo[{top}]"' if top in _OWN else f"pip install {top}"


def _unknown(module: str) -> str:
    known = _known()
    same_name = [name for name in known if _bare(name) == _bare(module)]
    hint = nearest(same_name[0] if same_name else module, same_name or known)
    if not hint.startswith("Did"):
        hint = "PettingZoo's own environments are named like 'butterfly.pistonball_v6', others by their full module."
    hint = re.sub(r"'(.+?)'", r"'pettingzoo/\1'", hint) if "PettingZoo" not in hint else hint
    return f"no such environment: 'pettingzoo/{module}'. {hint}"


def _bare(name: str) -> str:
    return re.sub(r"[-_]v\d+$", "", re.split(r"[./]", name)[-1])


def _known() -> list[str]:
    """All installed environments of PettingZoo and mpe2."""
    found = []
    for package in (*(f"pettingzoo.{name}" for name in _OWN), "mpe2"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        modules = pkgutil.iter_modules(spec.submodule_search_locations or []) if spec else ()
        names = [module.name for module in modules if re.search(r"_v\d+$", module.name)]
        found += [f"{package.removeprefix('pettingzoo.')}.{name}" for name in names]
    return found


@contextmanager
def user_errors(name: str, install: str) -> Iterator[None]:
    """Converts errors of a constructor or a first reset into a one-line UserError with a fix."""
    expected = TypeError, ValueError, AssertionError, AttributeError, KeyError, OSError
    with as_user_error(f"environment '{name}'", *expected):
        try:
            yield
        except ImportError as error:
            said = message_of(error)
            raise UserError(f"environment '{name}': {said}. Install it with: {install}") from error
