"""Target networks: slow copies that learning aims at."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class Target:
    """A copy of a network that follows it: softly with every call, or as a whole every so many calls.

    `module` is the copy. The parameters of `online` must not be moved afterwards: make the optimiser, which lays them
    side by side, first.
    """

    def __init__(self, online: nn.Module, tau: float, every: int | None):
        self.module = copy.deepcopy(online).requires_grad_(False)
        self.module.zero_grad(set_to_none=True)
        self._online: list[Tensor] = list(online.parameters())
        self._own: list[Tensor] = list(self.module.parameters())
        self._tau, self._every = tau, every
        self._calls = 0

    def follow(self) -> None:
        """To be called after every step of the online network."""
        self._calls += 1
        if self._every is None:
            self._mix(self._tau)
        elif self._calls % self._every == 0:
            self._mix(1.0)

    def arrive(self) -> None:
        """Becomes equal to the online network at once."""
        self._mix(1.0)

    @torch.no_grad()
    def _mix(self, share: float) -> None:
        online = [p.detach() for p in self._online]
        if share == 1.0:
            torch._foreach_copy_(self._own, online)  # pyright: ignore[reportPrivateImportUsage]
        else:
            torch._foreach_lerp_(self._own, online, share)  # pyright: ignore[reportPrivateImportUsage]

    def state_dict(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "calls": self._calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self._calls = state["calls"]
