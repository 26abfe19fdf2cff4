"""Algorithms by name: Coterie's own, those of installed packages, and `package.module:Class`.

Modules are imported only when they are used.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from coterie.config import callables, user_code
from coterie.config.plugins import ALGORITHMS, Plugin, find_plugin, installed_plugins
from coterie.core.errors import UserError, nearest

ALGOS: dict[str, str] = {
    "ppo": "coterie.algos.ppo:PPO",
    "ippo": "coterie.algos.ppo:PPO",
    "mappo": "coterie.algos.ppo:PPO",
    "ia2c": "coterie.algos.ppo:PPO",
    "maa2c": "coterie.algos.ppo:PPO",
    "happo": "coterie.algos.happo:HAPPO",
    "haa2c": "coterie.algos.happo:HAPPO",
    "hatrpo": "coterie.algos.hatrpo:HATRPO",
    "vdac": "coterie.algos.vdac:VDAC",
    "seac": "coterie.algos.seac:SEAC",
    "pac": "coterie.algos.pac:PAC",
    "poca": "coterie.algos.poca:POCA",
    "mat": "coterie.algos.mat:MAT",
    "mat_dec": "coterie.algos.mat:MATDec",
    "sable": "coterie.algos.sable:Sable",
    "ff_sable": "coterie.algos.sable:Sable",
    "magpo": "coterie.algos.magpo:MAGPO",
    "coma": "coterie.algos.coma:COMA",
    "ddqn": "coterie.algos.qlearning:QLearning",
    "iql": "coterie.algos.qlearning:QLearning",
    "vdn": "coterie.algos.qlearning:QLearning",
    "qmix": "coterie.algos.qlearning:QLearning",
    "qplex": "coterie.algos.qlearning:QLearning",
    "wqmix": "coterie.algos.qlearning:QLearning",
    "qfix": "coterie.algos.qlearning:QLearning",
    "pqn": "coterie.algos.pqn:PQN",
    "pqn_vdn": "coterie.algos.pqn:PQN",
    "pqn_qmix": "coterie.algos.pqn:PQN",
    "ddpg": "coterie.algos.ddpg:DDPG",
    "maddpg": "coterie.algos.ddpg:DDPG",
    "td3": "coterie.algos.ddpg:DDPG",
    "matd3": "coterie.algos.ddpg:DDPG",
    "sac": "coterie.algos.sac:SAC",
    "masac": "coterie.algos.sac:SAC",
    "hasac": "coterie.algos.hasac:HASAC",
    "random": "coterie.algos.scripted:Random",
    "frozen": "coterie.algos.scripted:Frozen",
    "scripted": "coterie.algos.scripted:Scripted",
}
"""Class of each algorithm. Algorithms that share a class differ in their presets in `config/presets`."""

VARIANTS: dict[str, str] = {
    "mappo/original": "coterie.algos.mappo_original:MAPPOOriginal",
}
"""Class of each variant that does not use the class of its base algorithm."""

DEFAULT_ALGO = "mappo"

NO_BASE = "none"
"""Base of classes that start from the defaults of their `Config`."""

_PARTS = ("Config", "base", "capabilities", "update", "state_dict", "load_state_dict")
_BASE = "coterie.algos.algorithm.Algorithm"


def base_name(algo: str) -> str:
    """Returns the algorithm of a preset: `ippo` for `ippo/yardstick`."""
    return algo.partition("/")[0]


def check_algorithm(name: str) -> None:
    """Raises UserError for an unknown name. Imports nothing; a user's own `package.module:Class` always passes."""
    if ":" in name or base_name(name) in ALGOS or algorithm_plugin(name) is not None:
        return
    plugins = list(installed_plugins(ALGORITHMS))
    if any(plugin.startswith(f"{base_name(name)}/") for plugin in plugins):
        fix = nearest(name, plugins)
    else:
        fix = nearest(base_name(name), [*ALGOS, *plugins, *(plugin.rpartition("/")[2] for plugin in plugins)])
    raise UserError(f"algo: there is no algorithm '{name}'. {fix} Your own: algo=package.module:Class.")


def algorithm_plugin(name: str) -> Plugin | None:
    """Returns the installed package's algorithm with this name, or None. Coterie's own algorithms take precedence."""
    return None if ":" in name or base_name(name) in ALGOS else find_plugin(name, ALGORITHMS)


def is_own_algorithm(name: str) -> bool:
    """True for an algorithm from outside Coterie: `package.module:Class`, or that of an installed package."""
    return ":" in name or base_name(name) not in ALGOS


def algorithm(name: str) -> Any:
    """Returns the class of an algorithm.

    Args:
        name: An algorithm, a variant such as `ippo/yardstick`, a user's own `package.module:Class`, or the name of an
            installed package's algorithm.

    Raises:
        UserError: If there is no such algorithm.
    """
    check_algorithm(name)
    what = f"algorithm '{name}'"
    plugin = algorithm_plugin(name)
    if name.startswith(callables.PREFIX):
        found: Any = callables.find(name, "algo")
        user_code.remember(found, what)
    elif plugin is not None:
        found = user_code.load(plugin.target, f"{what} of {plugin.origin}")
    else:
        found = user_code.load(name if ":" in name else VARIANTS.get(name, ALGOS[base_name(name)]), what)
    if is_own_algorithm(name):
        _require_algorithm(found, what)
    return found


def class_with_base(cls: Any) -> type:
    """Returns the class that an algorithm inherits its `base` from, or the algorithm's own if it sets one."""
    return next(parent for parent in cls.__mro__ if "base" in vars(parent))


def sharing_class(name: str) -> list[str]:
    """Returns the algorithms that have the same class as an algorithm of Coterie, such as `ippo` for `mappo`."""
    target = VARIANTS.get(name, ALGOS[base_name(name)])
    return [other for other, of in ALGOS.items() if of == target]


def _require_algorithm(found: Any, what: str) -> None:
    """Checks that an object is the class of an algorithm.

    Args:
        found: The object that the user named.
        what: Its description for error messages.

    Raises:
        UserError: If it is no class, or lacks a part of the interface.
    """
    if not isinstance(found, type):
        raise UserError(f"{what}: expected a class, not a {type(found).__name__}. Derive it from {_BASE}.")
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if missing:
        raise UserError(f"{what}: it has no {', '.join(missing)}. Derive it from {_BASE}.")
    undefined = sorted(getattr(found, "__abstractmethods__", ()))
    if undefined:
        raise UserError(f"{what}: it does not define {', '.join(undefined)}. Add it to class {found.__name__}.")
    parts: Any = found
    config = parts.Config
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise UserError(
            f"{what}: Config is {config!r}, not a settings class. Derive it from "
            "coterie.algos.base_config.LearnerConfig."
        )
    if reserved := sorted({"name", "base"} & set(config.model_fields)):
        raise UserError(
            f"{what}: {config.__name__} has a setting '{reserved[0]}', which algo.{reserved[0]} is already. Rename it."
        )
    if not hasattr(parts.capabilities, "learns"):
        raise UserError(
            f"{what}: capabilities is {parts.capabilities!r}. Set it to a coterie.algos.algorithm.Capabilities."
        )
    if "rollout_length" not in config.model_fields:
        raise UserError(
            f"{what}: {config.__name__} has no rollout_length. Derive it from "
            "coterie.algos.base_config.LearnerConfig, or add rollout_length: int = 16."
        )
