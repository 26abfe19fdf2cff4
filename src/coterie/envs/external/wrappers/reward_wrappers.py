"""Scaled and clipped rewards."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from coterie.envs.external.hosting.instance import EnvBuffers, Instance
from coterie.envs.external.wrappers.wrapper import Wrapper


@final
class RewardTransform(Wrapper):
    """Replaces every individual and group reward r by `min(max(scale * r, -clip), clip)`.

    Args:
        inner: The wrapped instance.
        scale: Factor.
        clip: Largest absolute value after scaling; None for no limit.
    """

    def __init__(self, inner: Instance, scale: float, clip: float | None):
        super().__init__(inner)
        self._scale, self._clip = scale, math.inf if clip is None else clip

    def attach(self, buffers: EnvBuffers) -> None:
        self._rewards = (buffers.reward, buffers.group_reward)
        self.inner.attach(buffers)

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)

    def step(self, actions: list[Any]) -> None:
        self.inner.step(actions)
        for reward in self._rewards:
            reward *= self._scale
            np.minimum(np.maximum(reward, -self._clip, out=reward), self._clip, out=reward)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
