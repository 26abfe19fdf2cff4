"""Environments and their scripts by name. Modules are imported only when they are used."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from coterie.config import callables
from coterie.config.plugins import Plugin, find_plugin, installed_plugins
from coterie.config.user_code import load
from coterie.core.errors import UserError, nearest
from coterie.envs.worlds import (
    board,
    coop,
    foraging,
    matrix,
    overcooked,
    particle,
    probe,
    skirmish,
    sparse,
    traffic,
    warehouse,
)

DEFAULT_ENV = "particle/simple_spread"

FAMILIES: dict[str, ModuleType] = {
    "particle": particle,
    "matrix": matrix,
    "probe": probe,
    "coop": coop,
    "foraging": foraging,
    "skirmish": skirmish,
    "board": board,
    "sparse": sparse,
    "overcooked": overcooked,
    "warehouse": warehouse,
    "traffic": traffic,
}
"""Package of each family of built-in environments. Its `SCENARIOS` maps names to `module:Class`; it imports no
environment. Its function `find(name)`, if it has one, returns the target of further names that follow a pattern.
"""

ADAPTERS: dict[str, str] = {
    "gym": "coterie.envs.external.gymnasium:Gymnasium",
    "gymvec": "coterie.envs.external.gymnasium_vector:GymnasiumVector",
    "lbforaging": "coterie.envs.external.grids:Foraging",
    "rware": "coterie.envs.external.grids:Warehouse",
    "vmas": "coterie.envs.external.vmas:VMAS",
    "pettingzoo": "coterie.envs.external.pettingzoo:PettingZoo",
    "unity": "coterie.envs.external.unity.adapter:Unity",
    "football": "coterie.envs.external.football:Football",
    "smac": "coterie.envs.external.smac:Smac",
    "smacv2": "coterie.envs.external.smac:Smacv2",
    "smaclite": "coterie.envs.external.smac:Smaclite",
}
"""Adapter of each external library, constructed with any environment name of the library."""

EXTERNAL_SCENARIOS: dict[str, tuple[str, ...]] = {
    "gym": (
        *("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
        *("BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3", "LunarLander-v3"),
        "LunarLanderContinuous-v3",
        *("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5"),
    ),
    "gymvec": ("CartPole-v1",),
    "pettingzoo": (
        *("butterfly.knights_archers_zombies_v11", "classic.connect_four_v3", "classic.tictactoe_v3"),
        *("mpe2.simple_spread_v3", "sisl.multiwalker_v9", "sisl.pursuit_v5"),
    ),
    "lbforaging": (
        *("Foraging-8x8-2p-2f-coop-v3", "Foraging-10x10-3p-3f-v3"),
        *("Foraging-2s-8x8-2p-2f-coop-v3", "Foraging-2s-10x10-3p-3f-v3"),
    ),
    "rware": ("rware-tiny-2ag-v2", "rware-tiny-4ag-v2", "rware-small-4ag-v2"),
    "football": (
        *("academy_empty_goal_close", "academy_empty_goal", "academy_run_to_score"),
        *("academy_run_to_score_with_keeper", "academy_single_goal_versus_lazy", "academy_3_vs_1_with_keeper"),
        *("1_vs_1_easy", "3_vs_3_custom", "5_vs_5", "11_vs_11_stochastic", "test_example_multiagent"),
    ),
    "smac": ("3m", "8m", "2s3z", "3s5z", "5m_vs_6m", "3s_vs_5z", "MMM", "MMM2", "corridor", "6h_vs_8z"),
    "smacv2": (
        *("terran_5_vs_5", "protoss_5_vs_5", "zerg_5_vs_5"),
        *("terran_10_vs_10", "protoss_10_vs_10", "zerg_10_vs_10"),
    ),
    "smaclite": ("2s3z", "3s5z", "MMM2"),
}
"""Names of environments of external libraries that have a preset, by family.

Each is the library's own name: `gym/CartPole-v1`. The library determines which names exist, so that a family has many
more than those listed here, which appear in `coterie list envs` and the tests.
"""

USER_FACTORY = "coterie.envs.external.user_factory:UserFactory"
"""Adapter of a user's factory that returns one environment per call."""


def environments() -> dict[str, str]:
    """Returns the target `module:Class` of every environment in Coterie by name, e.g. `particle/simple_spread`.

    Built-in batched worlds come first. Of external libraries these are the environments with a preset, with the
    library's adapter as their target.
    """
    found = {
        f"{family}/{name}": target for family, package in FAMILIES.items() for name, target in package.SCENARIOS.items()
    }
    for family, names in EXTERNAL_SCENARIOS.items():
        found |= {f"{family}/{name}": ADAPTERS[family] for name in names}
    return found


def target_of(name: str) -> str | None:
    """Returns the target `module:Class` of an environment in Coterie, listed or not; None for other environments."""
    family, _, own = name.partition("/")
    listed = environments().get(name)
    if listed is not None or family not in FAMILIES:
        return listed
    find = getattr(FAMILIES[family], "find", None)
    return None if find is None else find(own)


def scripts(env: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Returns the scripts of a built-in environment by name, each as (`module:make`, roles that it plays)."""
    family, _, name = env.partition("/")
    if family not in FAMILIES or target_of(env) is None:
        return {}
    known = getattr(FAMILIES[family], "SCRIPTS", {})
    return known.get(name, known.get("*", {}))


def is_factory(name: str) -> bool:
    """True for a user's factory: `package.module:factory`, or the name of an installed package's environment."""
    return not is_external(name) and (":" in name or plugin_of(name) is not None)


def plugin_of(name: str) -> Plugin | None:
    """Returns the installed package's environment with this name, or None. Coterie's own families take precedence."""
    family = name.partition("/")[0]
    return None if ":" in name or family in ADAPTERS or family in FAMILIES else find_plugin(name)


def is_batch_factory(name: str) -> bool:
    """True for a user's factory with a parameter `num_envs`, which returns a batch of environments.

    Raises:
        UserError: If the factory does not exist.
    """
    return is_factory(name) and "num_envs" in inspect.signature(factory(name)).parameters


def is_external(name: str) -> bool:
    """True for an environment of an external library, which determines the names that exist."""
    family, slash, _ = name.partition("/")
    return bool(slash) and family in ADAPTERS


def check_environment(name: str) -> None:
    """Checks an environment's name without importing the environment.

    Raises:
        UserError: If the name is neither known, nor a factory, nor that of an external library.
    """
    if target_of(name) is not None or is_factory(name) or is_external(name):
        return
    known = environments()
    known |= {plugin: entry.target for plugin, entry in installed_plugins().items()}
    same_name = [full for full in known if full.rpartition("/")[2] == name]
    fix = f"Did you mean '{same_name[0]}'?" if same_name else nearest(name, known)
    raise UserError(f"env: there is no environment '{name}'. {fix} Your own: env=package.module:factory.")


def environment(name: str) -> Any:
    """Returns the class of a built-in environment, an adapter, or a user's factory of batches.

    Raises:
        UserError: If there is no such environment.
    """
    check_environment(name)
    if is_external(name):
        family, _, own = name.partition("/")
        return load(ADAPTERS[family], f"environment '{name}'")(own)
    if is_factory(name):
        return factory(name) if is_batch_factory(name) else load(USER_FACTORY, f"environment '{name}'")(name)
    target = target_of(name)
    assert target is not None
    return load(target, f"environment '{name}'")


def factory(name: str) -> Callable[..., Any]:
    """Returns a user's factory.

    Args:
        name: `package.module:factory`, or the name of an installed package's environment.

    Raises:
        UserError: If it cannot be imported or is not callable.
    """
    if name.startswith(callables.PREFIX):
        return callables.find(name)
    plugin = None if ":" in name else plugin_of(name)
    what = f"environment '{name}'"
    found = load(name, what) if plugin is None else load(plugin.target, f"{what} of {plugin.origin}")
    if not callable(found):
        raise UserError(f"environment '{name}': expected a function that returns it, not a {type(found).__name__}.")
    return found


def factory_parameters(name: str) -> list[str] | None:
    """Returns the factory's parameters other than num_envs, seed and device; None if it accepts any."""
    parameters = inspect.signature(factory(name)).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    named = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    reserved = {"num_envs", "seed", "device"}
    return [parameter.name for parameter in parameters if parameter.kind in named and parameter.name not in reserved]


def place_of(name: str, method: str = "") -> str:
    """Returns e.g. `pond.py:12`.

    Args:
        name: Name of an environment.
        method: Method of its class; the class or function itself if it is not a class with this method.

    Returns:
        File and line; "" for environments that are not a user's own, and for code without a file.
    """
    with contextlib.suppress(Exception):  # the place only completes an error message
        if is_factory(name):
            make: Any = factory(name)
            target = inspect.unwrap(getattr(make, method, make) if inspect.isclass(make) else make)
            file = inspect.getsourcefile(target)
            if file is not None:
                return f"{os.path.basename(file)}:{inspect.getsourcelines(target)[1]}"
    return ""
