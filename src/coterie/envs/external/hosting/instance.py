"""Interface of a single environment of another library, which writes its timesteps into given NumPy buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.specs import EnvSpec
from coterie.envs.external.spaces import Arrays, Observer


@dataclass(frozen=True)
class Layout:
    """Description of an environment before any instance of it exists.

    Attributes:
        spec: Roles, spaces, groups, states and metrics.
        observers: By role, the conversion of native observations to arrays.
        masked: Roles that have action masks.
    """

    spec: EnvSpec
    observers: dict[str, Observer]
    masked: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvBuffers:
    """Arrays that one environment writes to, as views of the arrays of all environments.

    `Instance.step` is called with zero or False in the fields of a step, which are `reward` to `metrics`.

    Attributes:
        obs: By role and sensor, [n, ...].
        action_mask: By role, [n, sum A] bool.
        state: By name, [S] float32.
        alive: [N] bool.
        reward: [N] float32.
        group_reward: [G] float32.
        terminated: [N] bool.
        truncated: [N] bool.
        episode_end: [2] bool, the episode is terminated, and truncated.
        metrics: [M] float32.
    """

    obs: dict[str, Arrays]
    action_mask: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    alive: np.ndarray
    reward: np.ndarray
    group_reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_end: np.ndarray
    metrics: np.ndarray


class Instance(ABC):
    """One environment. The caller resets it when an episode is over."""

    @abstractmethod
    def attach(self, buffers: EnvBuffers) -> None:
        """Sets the buffers that `reset` and `step` write to. Called once, before anything else."""

    @abstractmethod
    def reset(self, seed: int | None) -> None:
        """Starts an episode and writes its first timestep.

        Args:
            seed: 31 bits; None continues from the current state of the random generators.
        """

    @abstractmethod
    def step(self, actions: list[Any]) -> None:
        """Executes a step, and writes its result and the next timestep, which is the final one if the episode ended.

        An agent that is truncated while others continue is not alive in that timestep, which has its last observation.

        Args:
            actions: Native actions of all agents in the order of the spec. Those of absent agents are arbitrary.
        """

    @abstractmethod
    def render(self) -> np.ndarray | None:
        """Returns an image uint8 [H, W, 3] at the library's own size, None if it has no images."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns all that is needed to continue if the spec has `exact_resume`, otherwise {}."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""

    @abstractmethod
    def close(self) -> None:
        """Releases what the library holds. May be called more than once."""


class Wrapper(Instance):
    """An instance that changes what another one, `inner`, reads or writes."""

    def __init__(self, inner: Instance):
        self.inner = inner

    @abstractmethod
    def attach(self, buffers: EnvBuffers) -> None:
        """Attaches the inner instance to these buffers, or to others of which some arrays differ."""

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)

    def render(self) -> np.ndarray | None:
        return self.inner.render()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])

    def close(self) -> None:
        self.inner.close()
