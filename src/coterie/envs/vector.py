"""The contract of an environment: a batch of copies that are stepped together and restart on the next step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from coterie.errors import TOLD, EnvironmentFailedError
from coterie.types import Action, EnvSpec, Row, Step


class VectorEnv(ABC):
    """`copies` copies of one environment on one device.

    A copy whose episode ends shows its true last observation in the next row, the *closing* row (`acted` False). The
    step taken from a closing row ignores the action, earns nothing and brings the first row of the new episode. So the
    true successor of every acted row is the row after it. So it is for agents: who is cut alone, by a limit that is not
    its episode's, shows its true last observation in the row after, in which it is not alive.

    `reset` and `step` return fresh tensors: they may be kept without copying.
    """

    spec: EnvSpec
    copies: int
    device: torch.device

    @abstractmethod
    def reset(self, seed: int | None = None) -> Row:
        """Starts a new episode in every copy and returns its first row.

        seed: what comes is a function of it and of the actions; None draws on from where the generators are.
        """

    @abstractmethod
    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        """Advances every copy by one step with `action`, by role [B, n, ..], and returns what it brought and the next
        row.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that going on needs, as a nest of dicts of tensors and plain numbers (see `EnvSpec.exact_resume`)."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called."""

    @abstractmethod
    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        """A picture of one copy as it stands: uint8 [H, W, 3], the longer side `size` pixels."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the environment holds outside of memory. May be called twice."""


def begin(env: VectorEnv, seed: int | None = None) -> Row:
    """`env.reset(seed)`. EnvironmentFailedError for what the environment raises, but what is one line already."""
    try:
        return env.reset(seed)
    except TOLD:
        raise
    except Exception as error:
        raise EnvironmentFailedError.of(env.spec.name, "reset", error) from error


def advance(env: VectorEnv, action: dict[str, Action]) -> tuple[Step, Row]:
    """`env.step(action)`. EnvironmentFailedError as in `begin`."""
    try:
        return env.step(action)
    except TOLD:
        raise
    except Exception as error:
        raise EnvironmentFailedError.of(env.spec.name, "a step", error) from error
