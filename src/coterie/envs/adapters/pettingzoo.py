"""PettingZoo's environments, `pettingzoo/<module>`: many agents, acting at once or by turns.

The library's own loop is kept to the letter: the same seeds and actions give the same observations and rewards. Where a
module offers the parallel interface it is taken, else the turn-based one (AEC).
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

from coterie.envs.adapters.adapter import Adapter
from coterie.envs.adapters.cast import AgentsConfig, Cast, cast_of
from coterie.envs.adapters.keys import typed_keys
from coterie.envs.adapters.rounds import Rounds
from coterie.envs.adapters.turns import Turns
from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.wrappers.config import WrappersConfig
from coterie.errors import UserError, nearest
from coterie.types import EnvSpec

_OWN = ("atari", "butterfly", "classic", "sisl")
"""PettingZoo's own packages, whose names stand for `pettingzoo.<name>`."""

_IMMORTAL = ("mpe2.*", "butterfly.pistonball_*", "butterfly.cooperative_pong_*", "classic.*", "sisl.pursuit_*")
"""Environments whose agents all live as long as their episode."""

_CHECKS = ("OrderEnforcingWrapper", "AssertOutOfBoundsWrapper")
"""Wrappers that check what is kept to here: the order of calls and the bounds of actions. In environments of mpe2,
parallel by way of turns, they take a third of a step.
"""

_CONFIGS: dict[str, tuple[ModuleType, type[AgentsConfig]]] = {}


class PettingZoo(Adapter):
    """The environment of one module: `butterfly.pistonball_v6` of PettingZoo, `mpe2.simple_spread_v3` of another."""

    def __init__(self, module: str):
        self.name, self._module = f"pettingzoo/{module}", module
        found = _imported(module)
        self._make: Callable[..., Any] = getattr(found, "parallel_env", None) or found.env
        known = _CONFIGS.get(module)
        if known is None or known[0] is not found:  # equal configurations have to be of one class
            makers = [self._make, *([found.raw_env] if hasattr(found, "raw_env") else [])]
            config: Any = typed_keys(AgentsConfig, makers, ("render_mode",), module)
            known = _CONFIGS[module] = (found, config)
        self.Config = known[1]
        self._stage: Stage | None = None

    def layout(self, config: BaseModel) -> Layout:
        return self._staged(config).layout

    def instance(self, config: BaseModel) -> Instance:
        return self._staged(config).instance(self._one(config))

    def _staged(self, config: BaseModel) -> Stage:
        assert isinstance(config, AgentsConfig)
        if self._stage is None or self._stage.config != config:
            immortal = any(fnmatchcase(self._module, pattern) for pattern in _IMMORTAL)
            with told(self.name, _package(self._module)):
                self._stage = Stage(self.name, self._one(config), config, not immortal, limited=True)
        return self._stage

    def _one(self, config: BaseModel) -> Any:
        params = {key: value for key, value in config.model_dump().items() if key not in AgentsConfig.model_fields}
        # Those that draw prepare for it when they are made. Nothing is drawn before it is asked for, and in no window.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        with told(self.name, _package(self._module)):
            return self._make(render_mode="rgb_array", **params)


class Stage:
    """What copies of an environment with PettingZoo's interface have in common.

    env: one of them, which is closed afterwards; mortal: where the configuration does not say; limited: a number that
    the environment holds as `max_cycles` is its episode limit. UserError for an environment that has not the interface,
    and keys that do not fit it.
    """

    def __init__(self, name: str, env: Any, config: AgentsConfig, mortal: bool, limited: bool):
        self.name, self.config = name, config
        self._mortal = mortal if config.mortal is None else config.mortal
        env = played(env)
        for key in ("sticky_actions", "action_repeat") if isinstance(env, Turns) else ():
            if getattr(config.wrappers, key) != getattr(WrappersConfig(), key):
                said = "agents take turns, so what one did is not for the next step"
                raise UserError(f"environment '{name}': {said}: leave env.wrappers.{key} out")
        limit = _max_cycles(env) if limited and not isinstance(env, Turns) else None
        try:
            begun = env.reset(seed=0)
        except TypeError as error:
            if error.__traceback__ and error.__traceback__.tb_next is None:  # the call itself
                raise UserError(f"environment '{name}': {error}: write reset(self, seed=None, options=None)") from error
            raise
        infos = begun[1] if isinstance(begun, tuple) and len(begun) == 2 else {}
        try:
            self._cast: Cast = cast_of(env, infos, config, isinstance(env, Turns))
        except UserError as error:
            raise UserError(f"environment '{name}': {error}") from error
        env.close()
        spec = EnvSpec(
            name,
            tuple(part.role for part in self._cast.parts),
            {"global": self._cast.state} if self._cast.state else {},
            mortal=self._mortal or self._cast.seats is None,
            episode_limit=min((n for n in (limit, config.episode_limit) if n is not None), default=None),
            exact_resume=False,
        )
        observers = {part.role.name: part.observer for part in self._cast.parts}
        self.layout = Layout(spec, observers, self._cast.masked)

    def instance(self, env: Any) -> Instance:
        return Rounds(played(env), self._cast, self.name, self.config.episode_limit, self.layout.spec.mortal)


def is_zoo(env: Any) -> bool:
    """Whether something has the interface of a ParallelEnv or an AECEnv; it need not be derived from them."""
    return hasattr(env, "step") and hasattr(env, "reset") and callable(getattr(env, "observation_space", None))


def played(env: Any) -> Any:
    """The environment with a parallel step. One by turns that says it updates at the end of a round is played so."""
    if _is(env, "aec_to_parallel_wrapper"):
        while _is(env.aec_env, *_CHECKS):
            env.aec_env = env.aec_env.env
    if not (callable(getattr(env, "observe", None)) and callable(getattr(env, "last", None))):
        return env
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable"):
        return Turns(env)
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)


def _is(env: Any, *names: str) -> bool:
    """Whether it is of one of PettingZoo's own classes of these names; the library need not be installed."""
    return type(env).__module__.startswith("pettingzoo.utils.") and type(env).__name__ in names


def _max_cycles(env: Any) -> int | None:
    inner = getattr(env, "unwrapped", env)
    for holder in (inner, getattr(inner, "env", None)):  # some hold another within
        limit = getattr(holder, "max_cycles", None)
        if isinstance(limit, int | np.integer) and limit > 0:
            return int(limit)
    return None


# ------------------------------------------------------------------------------------------------- what the library has


def _imported(module: str) -> ModuleType:
    """The module that makes the environment. UserError if it is not there, or lacks what it needs."""
    path = _path(module)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about ways of making environments that are younger than many releases
            found = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and f"{path}.".startswith(f"{error.name}."):
            top = error.name.partition(".")[0]
            if error.name == top and (top in {"pettingzoo", "mpe2"} or module.count(".") > 1):
                raise UserError(
                    f"environment 'pettingzoo/{module}' needs {top}: pip install {_package(module)}"
                ) from error
            raise UserError(_unknown(module)) from error
        said = f"needs '{error.name}', which is not installed: pip install {_package(module)}"
        raise UserError(f"environment 'pettingzoo/{module}' {said}") from error
    except ImportError as error:
        said = " ".join(str(error).split())
        raise UserError(f"environment 'pettingzoo/{module}': {said}: pip install {_package(module)}") from error
    if not (hasattr(found, "parallel_env") or hasattr(found, "env")):
        raise UserError(_unknown(module))
    return found


def _path(module: str) -> str:
    return f"pettingzoo.{module}" if module.partition(".")[0] in _OWN else module


def _package(module: str) -> str:
    """What to install for an environment."""
    top = module.partition(".")[0]
    return f'"pettingzoo[{top}]"' if top in _OWN else top


def _unknown(module: str) -> str:
    known = _known()
    alike = [name for name in known if _bare(name) == _bare(module)]
    mend = nearest(alike[0] if alike else module, alike or known)
    if not mend.startswith("did"):
        mend = "PettingZoo's own are named like 'butterfly.pistonball_v6', others by their full module"
    mend = re.sub(r"'(.+?)'", r"'pettingzoo/\1'", mend) if "PettingZoo" not in mend else mend
    return f"there is no environment 'pettingzoo/{module}': {mend}"


def _bare(name: str) -> str:
    return re.sub(r"[-_]v\d+$", "", re.split(r"[./]", name)[-1])


def _known() -> list[str]:
    """Every environment of PettingZoo and mpe2 that is installed here."""
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
def told(name: str, package: str) -> Iterator[None]:
    """Turns what a constructor or a first reset refuses into one line that says the mend."""
    try:
        yield
    except ImportError as error:
        said = " ".join(str(error).split())
        raise UserError(f"environment '{name}': {said}: pip install {package}") from error
    except (TypeError, ValueError, AssertionError, AttributeError, KeyError, OSError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"environment '{name}': {said}") from error
