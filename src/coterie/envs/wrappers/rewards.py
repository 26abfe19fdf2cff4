"""Rewards of another size."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from coterie.envs.hosting.instance import Instance, Place
from coterie.envs.wrappers.wrapper import Wrapper


@final
class Rewards(Wrapper):
    """min(max(scale r, -most), most) for every agent's reward r and every group's; most: None for no bound."""

    def __init__(self, inner: Instance, scale: float, most: float | None):
        super().__init__(inner)
        self._scale, self._most = scale, math.inf if most is None else most

    def attach(self, place: Place) -> None:
        self._paid = (place.reward, place.group_reward)
        self.inner.attach(place)

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)
        for paid in self._paid:
            paid *= self._scale
            np.minimum(np.maximum(paid, -self._most, out=paid), self._most, out=paid)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
