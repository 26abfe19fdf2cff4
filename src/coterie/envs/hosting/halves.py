"""Copies in two halves, so that workers step one half while the policies act on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch

from coterie.envs.hosting.hosted import HostedEnv
from coterie.envs.parameters import Parameter, Varying
from coterie.envs.parts import Parted, beside, split, steps_beside
from coterie.envs.samplers import Sampler
from coterie.types import Action, Row, Step


@final
class Halves(Parted, Varying):
    """Two environments of hosts of their own as one; the copies of the second are numbered on from the first's."""

    def __init__(self, first: HostedEnv, second: HostedEnv):
        self._halves = first, second
        self._sizes = first.copies, second.copies
        self.spec, self.copies, self.device = first.spec, sum(self._sizes), first.device

    @property
    def parts(self) -> tuple[HostedEnv, HostedEnv]:
        return self._halves

    def parameters(self) -> dict[str, Parameter]:
        return self._halves[0].parameters()

    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        self._halves[0].check_parameters(samplers)

    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        for half in self._halves:
            half.vary(samplers)

    def reset(self, seed: int | None = None) -> Row:
        return beside([half.reset(seed) for half in self._halves])

    def step(self, action: dict[str, Action]) -> tuple[Step, Row]:
        for half, own in zip(self._halves, split(action, self._sizes), strict=True):
            half.send(own)
        steps, rows = zip(*(half.receive() for half in self._halves), strict=True)
        return steps_beside(steps), beside(rows)

    def state_dict(self) -> dict[str, Any]:
        """As one environment of all the copies has it, so that a run can be resumed with halves or without."""
        one, other = (half.state_dict() for half in self._halves)
        if not one:
            return {}
        copies, alive = one["copies"] + other["copies"], torch.cat([one["alive"], other["alive"]])
        return {"seed": one["seed"], "copies": copies, "alive": alive}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        cut, copies, alive = self._sizes[0], state.get("copies", []), state.get("alive")
        for half, own in zip(self._halves, (slice(None, cut), slice(cut, None)), strict=True):
            half.load_state_dict(state | {"copies": copies[own], "alive": None if alive is None else alive[own]})

    def render(self, copy: int = 0, size: int = 480) -> np.ndarray:
        second = copy >= self._sizes[0]
        return self._halves[second].render(copy - second * self._sizes[0], size)

    def close(self) -> None:
        for half in self._halves:
            half.close()
