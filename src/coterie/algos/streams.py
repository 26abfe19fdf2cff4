"""Streams of reward: what a team is rewarded for, each with a discount and a value of its own.

The first stream is what the environment pays; others are rewards that the window brings in `streams`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.math.returns import endless_return
from coterie.math.schedules import Shape, scheduled
from coterie.types import Window


@dataclass(frozen=True)
class Stream:
    """A reward among others.

    strength: its weight in the advantage, at the start; schedule, end: how it goes to `end` times that; gamma: its
    discount a step, None for the algorithm's; episodic: its returns end with episodes and lives, else they go on.
    """

    name: str
    strength: float = 1.0
    gamma: float | None = None
    episodic: bool = True
    schedule: Shape = "constant"
    end: float = 1.0

    def weight(self, progress: float) -> float:
        """The strength at `progress` in [0, 1] of the run."""
        return self.strength * scheduled(self.schedule, 1.0, self.end, progress)


EXTRINSIC = Stream("extrinsic")


class Streams:
    """The streams of a learner, K of them, of which the first is the environment's; gamma: the algorithm's discount."""

    def __init__(self, streams: tuple[Stream, ...], gamma: float, device: torch.device):
        self.streams = streams or (EXTRINSIC,)
        self._device = device
        gammas = [gamma if stream.gamma is None else stream.gamma for stream in self.streams]
        self.gamma: float | Tensor = gammas[0] if len(gammas) == 1 else torch.tensor(gammas, device=device)
        """Discounts [K], or the one."""
        self._endless = torch.tensor([not stream.episodic for stream in self.streams], device=device)
        self._any_endless = not all(stream.episodic for stream in self.streams)

    def __len__(self) -> int:
        return len(self.streams)

    def weights(self, progress: float) -> Tensor:
        """Strengths [K] at `progress` in [0, 1] of the run."""
        return torch.tensor([stream.weight(progress) for stream in self.streams], device=self._device)

    def rewards(self, window: Window, extrinsic: Tensor) -> Tensor:
        """Rewards of every agent [T, B, N, K]; extrinsic: what the environment paid it [T, B, N]."""
        own = [window.streams[stream.name] for stream in self.streams[1:]]
        return torch.stack([extrinsic, *own], -1) if own else extrinsic.unsqueeze(-1)

    def lasting(self, returns: Tensor, reward: Tensor, value: Tensor, live: Tensor, trace_decay: float) -> Tensor:
        """`returns` [T, B, N, K] with those of streams that no end cuts off in their places.

        reward: [T, B, N, K]; value: [T + 1, B, N, K]; live: [T, B, N] bool, see `endless_return`.
        """
        if not self._any_endless:
            return returns
        found = endless_return(reward, value, live.unsqueeze(-1), self.gamma, trace_decay)
        return torch.where(self._endless, found, returns)
