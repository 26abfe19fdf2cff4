"""The clock of a batch of environments, and the starts of the episodes of all ranks' environments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.ranks.ranks import ONE, Ranks


class EpisodeStarts:
    """A clock, and its values at the first timesteps of the current episodes.

    On the CPU every rank knows the starts of all ranks' environments. Hence ranks expect time limits at the same steps
    and exchange something only where the task ends episodes. On an accelerator a rank knows its own environments, and
    the clock is a tensor, so that steps can be captured as part of a CUDA graph.

    Args:
        num_envs: Environments of this rank.
        device: Device of the tensors.
        limit: Time limit of episodes; None without.
        ranks: Ranks whose environments are one batch.

    Attributes:
        clock: Steps since the last `reset`: a number on the CPU, [] int64 on an accelerator.
        earliest: Lower bound of all starts, on the CPU.
    """

    def __init__(self, num_envs: int, device: torch.device, limit: int | None, ranks: Ranks):
        self._on_host = device.type == "cpu"
        self._ranks, self._device = ranks if self._on_host else ONE, device
        self._total = num_envs * self._ranks.size
        self._limit = math.inf if limit is None else limit
        self._ended = torch.zeros(self._total, dtype=torch.bool, device=device)
        self.reset()

    @property
    def own(self) -> Tensor:
        """Starts of this rank's environments [B] int64."""
        return self._ranks.own_envs(self._starts, self._total)

    def reset(self) -> None:
        """Sets the clock to 0 and starts an episode in every environment."""
        self.clock: int | Tensor = 0 if self._on_host else torch.zeros((), dtype=torch.int64, device=self._device)
        self._restart(0)

    def restart(self) -> None:
        """Starts an episode in every environment; on the CPU."""
        self._restart(int(self.clock))

    def _restart(self, clock: int) -> None:
        self._starts = torch.full((self._total,), clock, dtype=torch.int64, device=self._device)
        self.earliest = clock

    def restart_ended(self, own: Tensor) -> None:
        """Starts an episode where the last one has ended; `own` [B] bool: in these environments of this rank."""
        ended = own if self._ranks.size == 1 else self._ended
        self._starts = torch.where(ended, self.clock, self._starts)
        if self._on_host:
            self.earliest = int(self._starts.min())

    def at_limit(self) -> Tensor | None:
        """Returns which of this rank's episodes have reached the time limit [B]; None if none can have."""
        if self._limit == math.inf or (self._on_host and self.clock - self.earliest < self._limit):
            return None
        return self.own <= self.clock - self._limit

    @property
    def together(self) -> bool:
        """True if the present episodes of all ranks began at the same time, on the CPU."""
        return bool((self._starts == self.earliest).all())

    def end(self, final: Tensor, *, by_task: bool) -> None:
        """Ends episodes.

        Args:
            final: True where the episode ends, in this rank's environments [B].
            by_task: False if only the time limit ends episodes.
        """
        if self._ranks.size == 1:
            self._ended = final
        elif by_task:
            self._ended = self._ranks.all_envs(final, 0)
        else:
            self._ended = self._starts <= self.clock - self._limit

    def share_of_ended(self) -> float:
        """Returns the ended environments of all ranks, divided by their number. Reads from the device."""
        return int(self._ended.sum()) / self._total

    def ages(self) -> Tensor:
        """Returns the steps since the starts of this rank's episodes [B] int64."""
        return self.clock - self.own

    def load(self, ages: Tensor) -> None:
        """Restores the steps since the starts of this rank's episodes [B]."""
        self.reset()
        self._starts = self._ranks.all_envs(-ages.to(self._device), 0)
        if self._on_host:
            self.earliest = int(self._starts.min())

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Returns clock [] and starts [B] on an accelerator."""
        assert isinstance(self.clock, Tensor)
        return self.clock, self._starts

    def set_tensors(self, tensors: tuple[Tensor, Tensor]) -> None:
        """Sets what `tensors` returned."""
        self.clock, self._starts = tensors
