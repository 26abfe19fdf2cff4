"""The contract of one copy of an outside environment: numpy in and out, and a place in shared arrays to write to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.envs.adapters.spaces import Arrays, Observer
from coterie.types import EnvSpec


@dataclass(frozen=True)
class Layout:
    """What an environment shows and what it pays, before any copy of it is there.

    observers: by role, what turns native observations into arrays; masked: roles that show which choices they have.
    """

    spec: EnvSpec
    observers: dict[str, Observer]
    masked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a copy writes what it shows and what a step brought: its part of arrays that all copies share.

    obs: by role, by sensor [n, ...]; action_mask: by role [n, sum A] bool; state: by name [S]; alive: [N] bool; reward:
    [N] and group_reward: [G], float32; terminated, truncated: [N] bool; ended: [2] bool, the episode by the task and by
    a limit; metrics: [M] float32. Fields of the step are zero when `step` is called.
    """

    obs: dict[str, Arrays]
    action_mask: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    alive: np.ndarray
    reward: np.ndarray
    group_reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    ended: np.ndarray
    metrics: np.ndarray


class Instance(ABC):
    """One copy, whose episodes are begun by whoever steps it."""

    @abstractmethod
    def attach(self, place: Place) -> None:
        """Is called once, before anything else: what the copy shows and brings is written there from now on."""

    @abstractmethod
    def reset(self, seed: int | None) -> None:
        """Begins an episode and writes its first row. seed: 31 bits; None draws on from where the generators are."""

    @abstractmethod
    def step(self, actions: list[Any]) -> None:
        """Takes the native actions of all agents, in the spec's order, and writes what they brought and the next row.

        Actions of absent agents are there and mean nothing. Where the episode ends, the row is its last one.
        Who is cut while others go on shows its last observation in that row, in which it is not alive.
        """

    @abstractmethod
    def render(self) -> np.ndarray | None:
        """A picture uint8 [H, W, 3] as the library draws it; None if it draws none."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that going on needs, where the spec says `exact_resume`; else {}."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called."""

    @abstractmethod
    def close(self) -> None:
        """Gives back what the library holds. May be called twice."""
