"""Names the interface of an object that is no environment of a supported interface, and how to wrap it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymSpec

EXPECTED = (
    "expected PettingZoo's ParallelEnv or AECEnv, a MultiAgentEnv of PyMARL or RLlib, or a gymnasium.Env; "
    "a factory of a coterie.envs.contract.vector.VectorEnv takes num_envs, seed and device"
)

_SHIMMY = "Wrap it with the package shimmy"
_ONE = "Return a single environment: num_envs sets the number of environments, workers.count that of processes"
_PAGE = "See the tutorial 'Your own environment' of the documentation"


def foreign_interface(env: Any, is_supported: bool = False) -> str | None:
    """Returns the name of an object's interface, and how to wrap it.

    Args:
        env: What a factory returned.
        is_supported: True if it has the methods of a supported interface. Then only interfaces that have these as well
            are recognized: those of batches and of functional environments.

    Returns:
        The rest of a sentence "the factory returned ..."; None for an unknown interface.
    """
    if inspect.isclass(env):
        return f"the class {env.__name__}. Return an instance of it, {env.__name__}(...)"
    if isinstance(env, ModuleType):
        return f"the module {env.__name__}. Return an environment of it"
    if inspect.isroutine(env):
        name = getattr(env, "__name__", "it")
        return f"the function {name}. Return its result, {name}(...)" if name.isidentifier() else "a function. Call it"
    if isinstance(env, GymSpec):
        return f"an entry of Gymnasium's registry. Return gymnasium.make('{env.id}'), or train on gym/{env.id}"
    kinds = _BATCHES if is_supported else (*_BATCHES, *_OTHERS)
    return next((said for matches, said in kinds if matches(env)), None)


def _from(*modules: str) -> Callable[[Any], bool]:
    """Predicate for instances of a class, or of subclasses, that a module defines."""
    starts = tuple(f"{module}." for module in modules)
    return lambda env: any(f"{kind.__module__}.".startswith(starts) for kind in type(env).__mro__)


def _has(*methods: str) -> Callable[[Any], bool]:
    return lambda env: all(callable(getattr(env, method, None)) for method in methods)


def _is_functional(env: Any) -> bool:
    """True if `step` takes the state of the environment, as functions that JAX compiles do."""
    step = getattr(env, "step", None)
    if not callable(step):
        return False
    try:
        names = list(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        return False
    first = names[1:] if names[:1] in (["key"], ["rng"]) else names
    return first[:1] in (["state"], ["env_state"])


_Kinds = tuple[tuple[Callable[[Any], bool], str], ...]

_BATCHES: _Kinds = (
    (
        lambda env: isinstance(env, gymnasium.vector.VectorEnv),
        "a gymnasium.vector.VectorEnv, which holds several environments. "
        f"{_ONE}, or register its vector_entry_point and train on gymvec/PACKAGE:ID",
    ),
    (_from("stable_baselines3"), f"a VecEnv of Stable-Baselines3, which holds several environments. {_ONE}"),
    (_has("step_async", "step_wait", "reset"), f"a VecEnv, which holds several environments. {_ONE}"),
    (_from("envpool"), f"a batch of EnvPool. {_ONE}, or write a VectorEnv around it. {_PAGE}"),
    (
        lambda env: (
            _from("gymnax", "brax", "jumanji", "pgx", "jaxmarl", "navix", "craftax")(env) or _is_functional(env)
        ),
        "a functional environment, whose step takes its state. Write an environment around it that "
        f"keeps the state. {_PAGE}",
    ),
)
"""Interfaces that may look like a supported one, in the order in which they are tested, and what is said of them."""

_OTHERS: _Kinds = (
    (
        _from("torchrl"),
        "an environment of TorchRL, whose results are TensorDicts. Return the environment that it wraps",
    ),
    (_from("tf_agents"), f"an environment of TF-Agents. Write a gymnasium.Env around it. {_PAGE}"),
    (
        _has("reset", "step", "observation_spec", "action_spec"),
        f"an environment of dm_env. {_SHIMMY}: DmControlCompatibilityV0, MeltingPotCompatibilityV0 and others",
    ),
    (
        lambda env: (
            _has("new_initial_state")(env) or _has("apply_action", "legal_actions")(env) or _from("open_spiel")(env)
        ),
        f"a game of OpenSpiel. {_SHIMMY}: OpenSpielCompatibilityV0, an AECEnv of PettingZoo",
    ),
    (
        _from("gymnasium.experimental.functional", "gymnasium.envs.functional"),
        "a FuncEnv of Gymnasium. Wrap it with gymnasium.envs.functional_jax_env.FunctionalJaxEnv",
    ),
    (
        lambda env: _from("gym")(env) or _has("seed", "reset", "step")(env),
        f"an environment of the old package gym. {_SHIMMY}: GymV21CompatibilityV0 or GymV26CompatibilityV0, or use "
        "gymnasium.spaces and return what gymnasium.Env defines",
    ),
)
"""Other interfaces, as above."""
