"""Names to modules, as strings: only what a run names is imported."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from coterie.entries import Entry, entries, entry
from coterie.errors import UserError, nearest

ALGOS: dict[str, str] = {
    "ppo": "coterie.algos.ppo:PPO",
    "ippo": "coterie.algos.ppo:PPO",
    "mappo": "coterie.algos.ppo:PPO",
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
"""An algorithm's name to its class. Names that share a class differ by their preset in `conf/algo`."""

SIGNALS: dict[str, str] = {
    "icm": "coterie.rewards.icm:Icm",
    "rnd": "coterie.rewards.rnd:Rnd",
    "gail": "coterie.rewards.gail:Gail",
}
"""A reward signal's name, its key in the section `rewards`, to its class."""

DEFAULT_ALGO = "mappo"
DEFAULT_ENV = "particle/simple_spread"


FAMILIES: dict[str, str] = {
    "particle": "coterie.envs.particle",
    "matrix": "coterie.envs.matrix",
    "probe": "coterie.envs.probe",
    "coop": "coterie.envs.coop",
    "skirmish": "coterie.envs.skirmish",
    "board": "coterie.envs.board",
    "sparse": "coterie.envs.sparse",
}
"""A family's name to the module whose `SCENARIOS` holds its worlds: name to `module:Class`. These import no world."""


ADAPTERS: dict[str, str] = {
    "gym": "coterie.envs.adapters.gymnasium:Gymnasium",
    "gymvec": "coterie.envs.adapters.gymvec:GymVec",
    "lbforaging": "coterie.envs.adapters.grids:Foraging",
    "rware": "coterie.envs.adapters.grids:Warehouse",
    "vmas": "coterie.envs.adapters.vmas:VMAS",
    "pettingzoo": "coterie.envs.adapters.pettingzoo:PettingZoo",
    "unity": "coterie.envs.unity.adapter:Unity",
    "football": "coterie.envs.adapters.football:Football",
    "smac": "coterie.envs.adapters.smac:Smac",
    "smacv2": "coterie.envs.adapters.smac:Smacv2",
    "smaclite": "coterie.envs.adapters.smac:Smaclite",
}
"""A family of an outside library to its adapter, which is made with the library's own name: any that it has."""

OWN = "coterie.envs.adapters.own:Own"
"""The adapter of a user's own factory that makes one copy a call."""


def environments() -> dict[str, str]:
    """The name of every environment that comes with Coterie to its class, e.g. `particle/simple_spread`.

    Of outside libraries those with a preset, to their adapter.
    """
    from coterie.envs.adapters import SCENARIOS

    found = {f"{family}/{name}": ADAPTERS[family] for family, names in SCENARIOS.items() for name in names}
    for family, module in FAMILIES.items():
        scenarios = importlib.import_module(module).SCENARIOS
        found |= {f"{family}/{name}": target for name, target in scenarios.items()}
    return found


def scripts(env: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The scripts that a built-in environment brings: name to (`module:make`, the roles that it plays); else none."""
    family, _, name = env.partition("/")
    if family not in FAMILIES:
        return {}
    return getattr(importlib.import_module(FAMILIES[family]), "SCRIPTS", {}).get(name, {})


def base_name(algo: str) -> str:
    """The algorithm of a named preset: `ippo` of `ippo/yardstick`."""
    return algo.partition("/")[0]


def check_algorithm(name: str) -> None:
    """UserError for an unknown name; imports nothing."""
    if base_name(name) not in ALGOS:
        raise UserError(f"there is no algorithm '{name}': {nearest(base_name(name), ALGOS)}")


def algorithm(name: str) -> Any:
    """The class of an algorithm; `name` may be a variant like `ippo/yardstick`. UserError for an unknown name."""
    check_algorithm(name)
    return load(ALGOS[base_name(name)], f"algorithm '{name}'")


def signal(name: str) -> Any:
    """The class of a reward signal."""
    return load(SIGNALS[name], f"reward signal '{name}'")


def is_factory(name: str) -> bool:
    """Whether an environment is the user's own: `package.module:factory`, or what an installed package brings."""
    return not is_adapted(name) and (":" in name or brought(name) is not None)


def brought(name: str) -> Entry | None:
    """What an installed package brings under this name; names of Coterie's families are never theirs."""
    family = name.partition("/")[0]
    return None if ":" in name or family in ADAPTERS or family in FAMILIES else entry(name)


def is_batch_factory(name: str) -> bool:
    """Whether a user's own factory takes `copies` and makes a batch of them; one that does not makes a single copy a
    call. UserError if there is no such factory.
    """
    return is_factory(name) and "copies" in inspect.signature(factory(name)).parameters


def is_adapted(name: str) -> bool:
    """Whether an environment is one of an outside library, which alone knows its names."""
    family, slash, _ = name.partition("/")
    return bool(slash) and family in ADAPTERS


def check_environment(name: str) -> None:
    """UserError for a name that is neither known, nor a factory's, nor an outside library's; imports no environment."""
    known = environments()
    if name not in known and not is_factory(name) and not is_adapted(name):
        known |= {own: there.target for own, there in entries().items()}
        short = [full for full in known if full.rpartition("/")[2] == name]
        mend = f"did you mean '{short[0]}'?" if short else nearest(name, known)
        raise UserError(f"there is no environment '{name}': {mend} (your own: package.module:factory)")


def environment(name: str) -> Any:
    """The world class of a built-in environment, an adapter, or the user's own factory of batches. UserError for an
    unknown name.
    """
    check_environment(name)
    if is_adapted(name):
        family, _, own = name.partition("/")
        return load(ADAPTERS[family], f"environment '{name}'")(own)
    if is_factory(name):
        return factory(name) if is_batch_factory(name) else load(OWN, f"environment '{name}'")(name)
    return load(environments()[name], f"environment '{name}'")


def factory(name: str) -> Callable[..., Any]:
    """The user's own `package.module:factory`. UserError if it is not there or cannot be called."""
    own = None if ":" in name else brought(name)
    if own is None:
        found = load(name, f"environment '{name}'")
    else:
        what = f"environment '{name}' of {own.origin}"
        try:
            found = load(own.target, what)
        except UserError:
            raise
        except Exception as error:  # whoever names it may not have written it
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"{what}: '{own.target}' could not be imported ({said})") from error
    if not callable(found):
        raise UserError(f"environment '{name}' is not a function that makes one: it is a {type(found).__name__}")
    return found


def factory_parameters(name: str) -> list[str] | None:
    """Keys that the factory takes besides copies, seed and device; None if it takes any."""
    parameters = inspect.signature(factory(name)).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    named = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    given = {"copies", "seed", "device"}
    return [parameter.name for parameter in parameters if parameter.kind in named and parameter.name not in given]


def load(target: str, what: str) -> Any:
    """The object `package.module:name`. UserError names `what` where the module or the name is not there."""
    path, _, name = target.partition(":")
    if not path or not name:
        raise UserError(f"{what}: '{target}' is not written package.module:name")
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise UserError(f"{what}: there is no module '{error.name}'; is it installed or on PYTHONPATH?") from error
        raise UserError(f"{what}: '{path}' needs '{error.name}', which is not installed: pip install it") from error
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{what}: module '{path}' has no '{name}': {nearest(name, public)}")
    return getattr(module, name)
