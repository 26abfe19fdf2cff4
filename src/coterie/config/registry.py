"""Registry of algorithms, environments and reward signals by name. Modules are imported only when they are used."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.config import callables, user_code
from coterie.config.plugins import ALGORITHMS, Plugin, find_plugin, installed_plugins
from coterie.config.trust import run_folder_of
from coterie.config.user_algorithms import require_algorithm
from coterie.core.errors import ReportedError, UserError, nearest, one_line

ALGOS: dict[str, str] = {
    "ppo": "coterie.algos.ppo:PPO",
    "ippo": "coterie.algos.ppo:PPO",
    "mappo": "coterie.algos.ppo:PPO",
    "ia2c": "coterie.algos.ppo:PPO",
    "maa2c": "coterie.algos.ppo:PPO",
    "poca": "coterie.algos.poca:POCA",
    "coma": "coterie.algos.coma:COMA",
    "ddqn": "coterie.algos.qlearning:QLearning",
    "iql": "coterie.algos.qlearning:QLearning",
    "vdn": "coterie.algos.qlearning:QLearning",
    "qmix": "coterie.algos.qlearning:QLearning",
    "qplex": "coterie.algos.qlearning:QLearning",
    "wqmix": "coterie.algos.qlearning:QLearning",
    "ddpg": "coterie.algos.ddpg:DDPG",
    "maddpg": "coterie.algos.ddpg:DDPG",
    "td3": "coterie.algos.ddpg:DDPG",
    "matd3": "coterie.algos.ddpg:DDPG",
    "sac": "coterie.algos.sac:SAC",
    "masac": "coterie.algos.sac:SAC",
    "random": "coterie.algos.random:Random",
    "frozen": "coterie.algos.frozen:Frozen",
    "scripted": "coterie.algos.scripted:Scripted",
}
"""Class of each algorithm. Algorithms that share a class differ in their presets in `config/presets/algo`."""

VARIANTS: dict[str, str] = {
    "mappo/original": "coterie.algos.mappo_original:MAPPOOriginal",
}
"""Class of each variant that does not use the class of its base algorithm."""

SIGNALS: dict[str, str] = {
    "icm": "coterie.rewards.icm:ICM",
    "rnd": "coterie.rewards.rnd:RND",
    "gail": "coterie.rewards.gail:GAIL",
}
"""Class of each reward signal, by its key in the section `rewards`."""

DEFAULT_ALGO = "mappo"
DEFAULT_ENV = "particle/simple_spread"


FAMILIES: dict[str, str] = {
    "particle": "coterie.envs.worlds.particle",
    "matrix": "coterie.envs.worlds.matrix",
    "probe": "coterie.envs.worlds.probe",
    "coop": "coterie.envs.worlds.coop",
    "foraging": "coterie.envs.worlds.foraging",
    "skirmish": "coterie.envs.worlds.skirmish",
    "board": "coterie.envs.worlds.board",
    "sparse": "coterie.envs.worlds.sparse",
    "overcooked": "coterie.envs.worlds.overcooked",
    "warehouse": "coterie.envs.worlds.warehouse",
}
"""Module of each family of built-in environments. Its `SCENARIOS` maps names to `module:Class`; it imports no
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
    "football": "coterie.envs.external.football.adapter:Football",
    "smac": "coterie.envs.external.smac:Smac",
    "smacv2": "coterie.envs.external.smac:Smacv2",
    "smaclite": "coterie.envs.external.smac:Smaclite",
}
"""Adapter of each external library, constructed with any environment name of the library."""

USER_FACTORY = "coterie.envs.external.user_factory:UserFactory"
"""Adapter of a user's factory that returns one environment per call."""


def environments() -> dict[str, str]:
    """Returns the target `module:Class` of every environment in Coterie by name, e.g. `particle/simple_spread`.

    Of external libraries these are the environments with a preset, with the library's adapter as their target.
    """
    from coterie.config.external_scenarios import SCENARIOS

    found = {f"{family}/{name}": ADAPTERS[family] for family, names in SCENARIOS.items() for name in names}
    for family, module in FAMILIES.items():
        scenarios = importlib.import_module(module).SCENARIOS
        found |= {f"{family}/{name}": target for name, target in scenarios.items()}
    return found


def target_of(name: str) -> str | None:
    """Returns the target `module:Class` of an environment in Coterie, listed or not; None for other environments."""
    family, _, own = name.partition("/")
    listed = environments().get(name)
    if listed is not None or family not in FAMILIES:
        return listed
    find = getattr(importlib.import_module(FAMILIES[family]), "find", None)
    return None if find is None else find(own)


def scripts(env: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Returns the scripts of a built-in environment by name, each as (`module:make`, roles that it plays)."""
    family, _, name = env.partition("/")
    if family not in FAMILIES or target_of(env) is None:
        return {}
    known = getattr(importlib.import_module(FAMILIES[family]), "SCRIPTS", {})
    return known.get(name, known.get("*", {}))


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
        found = load(plugin.target, f"{what} of {plugin.origin}")
    else:
        found = load(name if ":" in name else VARIANTS.get(name, ALGOS[base_name(name)]), what)
    if is_own_algorithm(name):
        require_algorithm(found, what)
    return found


def network_factory(name: str, setting: str) -> Callable[..., Any]:
    """Returns a user's factory of torch modules, `package.module:factory`.

    Args:
        name: Its name.
        setting: Key of the setting that names it.

    Raises:
        UserError: If it cannot be imported or is not callable.
    """
    if name.startswith(callables.PREFIX):
        return callables.find(name, "network")
    found = load(name, f"{setting}={name}")
    if not callable(found):
        raise UserError(f"{setting}={name}: expected a function or class of torch modules, not {type(found).__name__}.")
    return found


def signal(name: str) -> Any:
    """Returns the class of a reward signal."""
    return load(SIGNALS[name], f"reward signal '{name}'")


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


def require_importable(path: str, what: str) -> None:
    """Raises UserError for modules of Python itself, and for modules in a run folder, which are not imported.

    From then on, commands also search modules in the current folder. Before a command names code that the user trusts,
    they do not, because the current folder may come from someone else.
    """
    parts = path.split(".")
    if parts[0] in sys.stdlib_module_names:
        raise UserError(f"{what}: module '{parts[0]}' belongs to Python's standard library. Name a module of your own.")
    user_code.add_current_folder()
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        try:
            spec = importlib.util.find_spec(name)  # imports the packages around it, which were checked before
        except KeyboardInterrupt:
            raise
        except BaseException:  # the import that follows reports it
            return
        if spec is None:
            return
        files = [Path(spec.origin)] if spec.has_location and spec.origin else []
        files += [Path(place) / "__init__.py" for place in spec.submodule_search_locations or ()]
        folder = next((found for found in map(run_folder_of, files) if found is not None), None)
        if folder is not None:
            raise UserError(f"{what}: module '{name}' is in the run folder {folder}. Move it elsewhere to import it.")


def _require_own(found: Any, what: str) -> None:
    """Raises UserError for a function or class of Python's standard library that another module has imported."""
    module = str(getattr(found, "__module__", "")).partition(".")[0]
    if (inspect.isclass(found) or inspect.isroutine(found)) and module in sys.stdlib_module_names:
        raise UserError(
            f"{what}: {found.__qualname__} belongs to Python's standard library ('{module}'). Name one of your own."
        )


def load(target: str, what: str) -> Any:
    """Imports the object `package.module:name`.

    Args:
        target: Module and name of the object.
        what: Description of the object for error messages.

    Raises:
        UserError: If the module or the name does not exist, or a package that the module imports is not installed.
    """
    path, _, name = target.partition(":")
    if not path or not name:
        raise UserError(f"{what}: '{target}' is not of the form package.module:name")
    own = path.partition(".")[0] == "coterie"
    if not own:
        require_importable(path, what)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            fix = "Install it, or add its folder to PYTHONPATH."
            raise UserError(f"{what}: there is no module '{error.name}'. {fix}") from error
        fix = f"Install it: pip install {error.name}."
        raise UserError(f"{what}: '{path}' requires '{error.name}', which is not installed. {fix}") from error
    except (ReportedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(f"{what}: '{path}' could not be imported: {one_line(error)}") from error
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{what}: module '{path}' has no '{name}'. {nearest(name, public)}")
    found = getattr(module, name)
    _require_own(found, what)
    user_code.remember(found, what)
    return found
