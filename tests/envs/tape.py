"""One copy whose every number is known beforehand, and how to step it by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.envs.adapters.spaces import Observer
from coterie.envs.hosting.board import Board
from coterie.envs.hosting.instance import Instance, Layout, Place
from coterie.types import EnvSpec, RoleSpec

SEES, DOES = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(100)


class Tape(Instance):
    """Two agents see t and 100 + t and earn t and 10 t, their group 100, at step t. The second ends at step 3 and is
    back in the row of step 5; all end at step 7. cut: the second is cut at step 3, and shows its last observation.
    """

    spec = EnvSpec("tape", (RoleSpec("all", "all", ("a", "b"), SEES, DOES),), {}, mortal=True, paid_by_group=True)
    layout = Layout(spec, {"all": Observer(SEES)})

    def __init__(self, cut: bool = False) -> None:
        self.cut = cut
        self.given: list[list[Any]] = []
        self.seeds: list[int | None] = []

    def attach(self, place: Place) -> None:
        self.place = place

    def reset(self, seed: int | None) -> None:
        self.t = 0
        self.seeds.append(seed)
        self.place.alive[...] = True
        self._show()

    def step(self, actions: list[Any]) -> None:
        place = self.place
        assert not np.concatenate([place.reward, place.group_reward, place.ended]).any()
        self.given.append(list(actions))
        self.t += 1
        lives = place.alive.copy()
        place.reward[...] = np.array([self.t, 10 * self.t]) * lives
        place.group_reward[0] = 100
        if self.t == 3:
            (place.truncated if self.cut else place.terminated)[1], place.alive[1] = True, False
        if self.t == 5:
            place.alive[1] = True
        if self.t == 7:
            place.terminated[...] = place.ended[0] = True
        self._show()

    def _show(self) -> None:
        shown = self.place.alive | self.place.truncated
        self.place.obs["all"][""][:, 0] = np.array([self.t, 100 + self.t]) * shown

    def render(self) -> np.ndarray | None:
        return np.full((2, 2, 3), 9, np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.t = state["t"]

    def close(self) -> None:
        self.place.alive[...] = False


def placed(instance: Instance, layout: Layout = Tape.layout, seed: int | None = 0) -> Place:
    """The place of a copy whose first episode has begun."""
    place = Board(layout, 1).place(0)
    instance.attach(place)
    instance.reset(seed)
    return place


def step(instance: Instance, place: Place, actions: list[Any]) -> None:
    """A step with what its caller clears before."""
    for array in (place.reward, place.group_reward, place.terminated, place.truncated, place.ended, place.metrics):
        array[...] = 0
    instance.step(actions)
