"""What may differ between an environment's copies and from episode to episode, and environments in which it does."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie.envs.samplers import Sampler
from coterie.envs.vector import VectorEnv
from coterie.errors import UserError, nearest


@dataclass(frozen=True)
class Parameter:
    """A number that changes an environment's task.

    value: what it is where nobody says otherwise, NaN where that is not known or a word; low, high: between which it
    can be, ends included; meaning: in words, with its unit; whole: only whole numbers make sense.
    """

    value: float
    low: float
    high: float
    meaning: str
    whole: bool = False


class Varying(VectorEnv):
    """An environment whose parameters may differ between copies, and from an episode to the next."""

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """What may vary, by name; more may where the environment does not say all that it takes."""

    @abstractmethod
    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        """UserError for a parameter that the environment does not have, and for values that it cannot take."""

    @abstractmethod
    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        """Episodes that begin from now on draw these parameters, every copy its own; those of earlier calls that are
        not named stay as they were said. UserError as in `check_parameters`.

        What is drawn is a function of the seed of `reset` and of the copy; it is part of `state_dict`.
        """


def unknown(env: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a parameter that the environment does not have."""
    known = sorted(known)
    mend = nearest(name, known) if known else "it has none"
    return UserError(f"{env} has no parameter '{name}' that lessons could change: {mend}")


def fitted(env: str, samplers: Mapping[str, Sampler], known: Mapping[str, Parameter]) -> dict[str, Sampler]:
    """The samplers within the ranges of the parameters, in order of their names. UserError names what does not fit."""
    found: dict[str, Sampler] = {}
    for name in sorted(samplers):
        if name not in known:
            raise unknown(env, name, known)
        parameter = known[name]
        try:
            found[name] = samplers[name].within(parameter.low, parameter.high)
        except ValueError as error:
            ends = f"from {parameter.low:g} " + ("on" if math.isinf(parameter.high) else f"to {parameter.high:g}")
            raise UserError(f"the parameter '{name}' of {env}: {error}; expected numbers {ends}") from error
    return found
