"""Parameters that may differ between environments and from episode to episode, for randomization and curricula."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coterie.config.samplers import Sampler
from coterie.core.errors import UserError, nearest
from coterie.envs.contract.vector import VectorEnv


@dataclass(frozen=True)
class Parameter:
    """A number that changes an environment's task.

    Attributes:
        value: Default; NaN if it is unknown or not a number.
        low: Smallest allowed value.
        high: Largest allowed value.
        meaning: Description with its unit.
        integer: True if only whole numbers make sense.
    """

    value: float
    low: float
    high: float
    meaning: str
    integer: bool = False


class RandomizableEnv(VectorEnv):
    """An environment whose parameters can be sampled for every episode, in each environment independently."""

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """Returns the known parameters by name.

        Further ones may be accepted if the environment does not list all that it takes.
        """

    @abstractmethod
    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        """Checks samplers without using them.

        Raises:
            UserError: For an unknown parameter, or values that the environment cannot take.
        """

    @abstractmethod
    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        """Samples these parameters for every episode that starts from now on.

        Parameters of earlier calls that are not named keep their samplers. The values are a function of the seed given
        to `reset` and the environment's index, and part of `state_dict`.

        Raises:
            UserError: As in `check_parameters`.
        """


def unknown_parameter(env: str, name: str, known: Iterable[str]) -> UserError:
    """Returns the error for a parameter that the environment `env` does not have."""
    known = sorted(known)
    fix = nearest(name, known) if known else "It has none."
    return UserError(f"{env} has no parameter '{name}' that a curriculum or randomization could set. {fix}")


def samplers_within_ranges(
    env: str, samplers: Mapping[str, Sampler], known: Mapping[str, Parameter]
) -> dict[str, Sampler]:
    """Returns the samplers limited to the ranges of their parameters, sorted by name.

    Raises:
        UserError: For an unknown parameter, or a sampler that leaves its range.
    """
    found: dict[str, Sampler] = {}
    for name in sorted(samplers):
        if name not in known:
            raise unknown_parameter(env, name, known)
        parameter = known[name]
        try:
            found[name] = samplers[name].within(parameter.low, parameter.high)
        except ValueError as error:
            expected = (
                f"at least {parameter.low:g}"
                if math.isinf(parameter.high)
                else f"from {parameter.low:g} to {parameter.high:g}"
            )
            raise UserError(f"parameter '{name}' of {env}: {error}; expected numbers {expected}") from error
    return found
