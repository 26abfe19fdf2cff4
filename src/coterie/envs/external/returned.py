"""Structure of what `reset` and `step` of an environment return: a pair, five values, and dictionaries by agent."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, final

import numpy as np
from gymnasium import spaces

from coterie.core.errors import EnvironmentFailedError, ReportedError, UserError, message_of
from coterie.envs.registry import place_of

ALL_KEY = "__all__"
"""RLlib's key of the flag that ends an episode."""
STEP_PARTS = ("observations", "rewards", "terminations", "truncations", "infos")

_BY_AGENT = {
    "observations": "",
    "rewards": ". Return {agent: reward} for every agent that acted",
    "terminations": ". Return {agent: terminated} with True or False for every agent that acted",
    "truncations": ". Return {agent: truncated} with True or False for every agent that acted",
}
"""Advice on a correct return value, by part of a step."""
_SINGLE = ("observation", "reward", "terminated", "truncated", "info")
_OLD_GYM = "the interface of old Gym. Implement that of gymnasium.Env, or wrap it with shimmy.GymV21CompatibilityV0"
_ONLY_OBSERVATION = f": returning only the observation is {_OLD_GYM}"
_NUMBERS = (int, float, np.generic, np.ndarray)


@final
class WrongReturn(UserError):
    """An environment returned another structure than its interface defines.

    Attributes:
        rule: Rule of `coterie check-env` that it violates.
        subject: The part, as in `FindingCollector.add`.
    """

    def __init__(self, rule: str, message: str, subject: str = ""):
        super().__init__(message)
        self.rule, self.subject = rule, subject


def call_reset(env: Any, seed: int | None) -> Any:
    """Calls `reset`. UserError if it takes no seed."""
    try:
        return env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" not in message_of(error) and not _is_call_of(error):
            raise
        is_old = f", which is {_OLD_GYM}" if callable(getattr(env, "seed", None)) else ""
        fix = is_old or ". Define reset(self, seed=None, options=None), and seed the generator there"
        raise UserError(f"reset() takes no seed ({message_of(error)}){fix}") from error


def _is_call_of(error: TypeError) -> bool:
    """True if the call itself failed, because of its arguments."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def first_reset(name: str, env: Any, by_agent: bool) -> tuple[Any, Mapping[Any, Any]]:
    """Resets an environment before any instance of it exists, and returns the observations and infos.

    Raises:
        UserError: For anything but a pair of these.
        EnvironmentFailedError: If it raises anything else.
    """
    try:
        return from_reset(call_reset(env, 0), by_agent, None if by_agent else getattr(env, "observation_space", None))
    except UserError as error:
        place = place_of(name, "reset")
        raise UserError(f"environment '{name}'{f' ({place})' if place else ''}: {error}") from error
    except (ReportedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EnvironmentFailedError.of(f"environment '{name}'", "reset", error, place_of(name, "reset")) from error


def from_reset(returned: Any, by_agent: bool, space: spaces.Space | None = None) -> tuple[Any, Mapping[Any, Any]]:
    """Returns the observations and infos that `reset` returned. None for the infos means that there are none.

    Args:
        returned: Result of the call.
        by_agent: True if both are dictionaries by agent.
        space: Space of an observation that could be mistaken for the pair, because it is a pair itself.

    Raises:
        WrongReturn: For anything but a pair of these.
    """
    if isinstance(space, spaces.Tuple) and len(space.spaces) == 2 and _is_observation(returned, space):
        found = f"reset() returned {described(returned)}, an observation, expected the pair (observation, info)"
        raise WrongReturn("reset-return", f"{found}{_ONLY_OBSERVATION}")
    if not _is_sequence_of(returned, 2) or not (returned[1] is None or isinstance(returned[1], Mapping)):
        raise _wrong_reset(returned, by_agent)
    observations, infos = returned
    if by_agent and type(observations) is not dict and not isinstance(observations, Mapping):
        raise WrongReturn(
            "reset-return", f"reset() returned {_part('observations', observations)}, expected a dict by agent"
        )
    return observations, infos or {}


def from_step(returned: Any, by_agent: bool) -> tuple[Any, Any, Any, Any, Mapping[Any, Any]]:
    """Returns the five values that `step` returned. None for the infos means that there are none.

    Args:
        returned: Result of the call.
        by_agent: True if all are dictionaries by agent.

    Raises:
        WrongReturn: For anything but five of these.
    """
    if not _is_sequence_of(returned, 5):
        raise _wrong_step(returned, by_agent)
    observations, rewards, terminations, truncations, infos = returned
    if type(infos) is not dict:
        infos = _infos("step()", infos, by_agent)
    if by_agent and not (type(observations) is type(rewards) is type(terminations) is type(truncations) is dict):
        for name, part in zip(STEP_PARTS[:4], returned, strict=False):
            if not isinstance(part, Mapping):
                message = f"step() returned {_part(name, part)}, expected a dict by agent{_BY_AGENT[name]}"
                raise WrongReturn("step-return", message, name)
    return observations, rewards, terminations, truncations, infos


def to_flag(value: Any, name: str) -> bool:
    """Returns an end flag as a bool: of a bool, 0 or 1, also as an array without axes.

    Raises:
        WrongReturn: For anything else, such as None, NaN or a text.
    """
    if value is True or value is False:
        return value
    array = _as_array(value)
    if array.size == 1 and array.ndim <= 1 and array.dtype.kind in "biuf" and (array == 0) | (array == 1):
        return bool(array.reshape(()))
    raise WrongReturn("end-flag-type", f"{name} is {_value(value)}, expected True or False", name)


def to_number(value: Any, name: str) -> float:
    """Returns a reward as a float: of a number, or of an array with one entry.

    Raises:
        WrongReturn: For anything else, such as None, a text or a complex number.
    """
    if type(value) is float or type(value) is int:
        return value
    array = _as_array(value)
    if array.size == 1 and array.ndim <= 1 and array.dtype.kind in "biuf":
        return float(array.reshape(()))
    fix = ". Return 0.0 for a step without a reward" if value is None else ""
    raise WrongReturn("reward-type", f"{name} is {_value(value)}, expected one number{fix}", name)


def to_flags(values: Any, name: str, count: int) -> np.ndarray:
    """Returns end flags of several environments or agents [count] bool. WrongReturn as in `to_flag`."""
    array = _as_array(values)
    if array.shape == (count,) and array.dtype.kind in "biuf" and bool(((array == 0) | (array == 1)).all()):
        return array.astype(np.bool_)
    expected = f"expected True or False for each of {count} environments"
    raise WrongReturn("end-flag-type", f"{name} are {_value(values)}, {expected}", name)


def to_numbers(values: Any, name: str, count: int) -> np.ndarray:
    """Returns rewards of several environments or agents [count] float32. WrongReturn as in `to_number`."""
    array = _as_array(values)
    if array.shape == (count,) and array.dtype.kind in "biuf":
        return array.astype(np.float32)
    raise WrongReturn("reward-type", f"{name} are {_value(values)}, expected {count} numbers", name)


def _as_array(value: Any) -> np.ndarray:
    """Returns a value of any array library as a NumPy array, of type object if it is none."""
    detach = getattr(value, "detach", None)
    try:
        return np.asarray(value if detach is None else detach().cpu())
    except (TypeError, ValueError, RuntimeError):
        return np.array(None)


def _value(value: Any) -> str:
    """Returns a value with its type, for messages."""
    array = _as_array(value)
    shape = f" of shape {list(array.shape)}" if array.ndim else ""
    text = " ".join(f"{value!r:.60}".split())
    return text if value is None else f"{text} of type {type(value).__name__}{shape}"


def check_all_key(terminations: Mapping[Any, Any], truncations: Mapping[Any, Any], continuing: Any) -> None:
    """WrongReturn if RLlib's key for all agents ends the episode, but not the flags of an agent."""
    for name, flags in (("terminations", terminations), ("truncations", truncations)):
        if ALL_KEY in flags and flags[ALL_KEY] is not False and flags[ALL_KEY]:
            message = f"step() returned {name} of '{ALL_KEY}', which is {flags[ALL_KEY]!r:.40}, but agent "
            message += f"'{continuing}' continues: '{ALL_KEY}' is RLlib's convention. Set the flag of every agent"
            raise WrongReturn("all-key-mismatch", message)


def current_agents(env: Any) -> Any:
    """Returns `env.agents`, the agents of the current timestep.

    Raises:
        WrongReturn: If it is no collection of names.
    """
    agents = getattr(env, "agents", None)
    if not isinstance(agents, list | tuple | set | dict):
        found = "is missing" if agents is None else f"is {described(agents)}"
        raise WrongReturn("agents-empty", f"`agents` {found}, expected a list of names")
    return agents


def possible_agents(env: Any) -> list[Any]:
    """Returns `env.possible_agents`, or the current agents if there is none.

    Raises:
        WrongReturn: If it is no collection of unique names.
    """
    agents = getattr(env, "possible_agents", None)
    if agents is None:
        agents = current_agents(env)
    if isinstance(agents, str) or not isinstance(agents, Collection):
        raise WrongReturn("agents-empty", f"`possible_agents` is {described(agents)}, expected a list of names")
    listed = list(agents) or list(current_agents(env))
    if isinstance(agents, set | frozenset):  # whose order differs between processes
        listed.sort(key=str)
    twice = next((agent for agent in listed if listed.count(agent) > 1), None)
    if twice is not None:
        message = f"['{twice}'] occurs more than once in the list of agents. Give every agent a unique name"
        raise WrongReturn("agents-duplicate", message)
    return listed


def require_space(name: str, value: Any) -> None:
    """WrongReturn if `value` is no space of gymnasium."""
    if not isinstance(value, spaces.Space):
        module = type(value).__module__.partition(".")[0]
        found = described(value) + (f" of {module}" if _is_opaque(value) and module != "builtins" else "")
        raise WrongReturn("space-type", f"{name} is {found}, expected a space of gymnasium", name)


def info_of(infos: Mapping[Any, Any], agent: Any) -> Mapping[Any, Any]:
    """Returns the info of an agent, {} if there is none.

    Raises:
        WrongReturn: If it is neither a dict nor None.
    """
    info = infos.get(agent)
    if type(info) is dict:
        return info
    if info is not None and not isinstance(info, Mapping):
        raise WrongReturn("info-type", f"the info of agent '{agent}' is {described(info)}, expected a dict")
    return info or {}


def _is_sequence_of(returned: Any, size: int) -> bool:
    return isinstance(returned, tuple | list) and len(returned) == size


def _is_observation(returned: Any, space: spaces.Tuple) -> bool:
    """True if the result of a reset is an observation of two parts, instead of a pair of one and an info."""
    if not _is_sequence_of(returned, 2):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # spaces warn of lists, and raise for arrays of several lengths
        with suppress(ValueError, TypeError):
            return space.contains(tuple(returned)) and not space.contains(returned[0])
    return False


def _infos(call: str, infos: Any, by_agent: bool) -> Mapping[Any, Any]:
    if infos is not None and not isinstance(infos, Mapping):
        name, expected = ("infos", "a dict by agent") if by_agent else ("info", "a dict")
        raise WrongReturn("info-type", f"{call} returned {_part(name, infos)}, expected {expected}")
    return infos or {}


def _part(name: str, value: Any) -> str:
    return f"{name} of type {type(value).__name__}" if _is_opaque(value) else f"{name}={value!r:.40}"


def _is_opaque(value: Any) -> bool:
    """True for values that a message shows by their type."""
    return value is not None and not isinstance(value, bool | int | float | str)


def described(value: Any) -> str:
    """Returns a value in words: `None`, `False`, `a tuple of 3`, `an ndarray`, `the class World`."""
    kind = type(value)
    if not _is_opaque(value):
        return f"{value!r:.60}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    article = "an" if kind.__name__[0] in "aeioAEIO" or kind is np.ndarray else "a"
    return f"{article} {kind.__name__}" + (f" of {len(value)}" if kind in (tuple, list) else "")


def _wrong_reset(returned: Any, by_agent: bool) -> WrongReturn:
    expected = "the pair (observations, infos)" if by_agent else "the pair (observation, info)"
    found = described(returned)
    if by_agent and isinstance(returned, Mapping):
        hint = ": returning only the observations is an old interface"
    elif not by_agent and isinstance(returned, (Mapping, *_NUMBERS)):
        hint = _ONLY_OBSERVATION
    elif _is_sequence_of(returned, 2):
        if by_agent and isinstance(returned[0], Mapping):
            _infos("reset()", returned[1], by_agent)
        found = f"{found} whose second is {described(returned[1])}"
        hint = ", which is a dict" if not by_agent else ""
        if not by_agent and isinstance(returned[1], _NUMBERS):
            hint = _ONLY_OBSERVATION
    elif not by_agent and isinstance(returned, tuple | list) and returned and isinstance(returned[-1], _NUMBERS):
        hint = _ONLY_OBSERVATION
    else:
        hint = _foreign_result(returned)
    return WrongReturn("reset-return", f"reset() returned {found}, expected {expected}{hint}")


def _wrong_step(returned: Any, by_agent: bool) -> WrongReturn:
    expected = ", ".join(STEP_PARTS if by_agent else _SINGLE)
    if _is_sequence_of(returned, 4):
        hint = f": four are {_OLD_GYM}" if not by_agent else ": four are an old interface"
        return WrongReturn("step-return", f"step() returned 4 values, expected five ({expected}){hint}")
    found = f"{len(returned)} values" if isinstance(returned, tuple | list) else described(returned)
    return WrongReturn("step-return", f"step() returned {found}, expected five ({expected}){_foreign_result(returned)}")


def _foreign_result(returned: Any) -> str:
    """Names the library whose result type it is."""
    if all(hasattr(returned, name) for name in ("step_type", "reward", "discount", "observation")):
        return ": this is a TimeStep of dm_env. Wrap the environment, e.g. with shimmy.DmControlCompatibilityV0"
    if type(returned).__module__.partition(".")[0] == "tensordict":
        return ": this is a TensorDict, the interface of TorchRL. Return the environment that it wraps"
    return ""
