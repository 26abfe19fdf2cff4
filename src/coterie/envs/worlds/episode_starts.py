"""Starts of the episodes of all ranks' environments."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.ranks import ONE, Ranks


class EpisodeStarts:
    """Values of a clock at the first timesteps of the current episodes.

    On the CPU every rank knows the starts of all ranks' environments. Hence ranks expect time limits at the same steps
    and exchange something only where the task ends episodes. On an accelerator a rank knows its own environments.

    Args:
        num_envs: Environments of this rank.
        device: Device of the tensors.
        ranks: Ranks whose environments are one batch.

    Attributes:
        earliest: Lower bound of all starts.
    """

    def __init__(self, num_envs: int, device: torch.device, ranks: Ranks):
        self._on_host = device.type == "cpu"
        self._ranks, self._device = ranks if self._on_host else ONE, device
        self._total = num_envs * self._ranks.size
        self._ended = torch.zeros(self._total, dtype=torch.bool, device=device)
        self.restart(0)

    @property
    def own(self) -> Tensor:
        """Starts of this rank's environments [B] int64."""
        return self._ranks.own_envs(self._starts, self._total)

    def restart(self, clock: int) -> None:
        """Starts an episode in every environment."""
        self._starts = torch.full((self._total,), clock, dtype=torch.int64, device=self._device)
        self.earliest = clock

    def restart_ended(self, clock: int, own: Tensor) -> None:
        """Starts an episode where the last one has ended; `own` [B] bool: in these environments of this rank."""
        self._starts = self._starts.masked_fill(own if self._ranks.size == 1 else self._ended, clock)
        if self._on_host:
            self.earliest = int(self._starts.min())

    def end(self, final: Tensor, latest: float | None) -> None:
        """Ends episodes.

        Args:
            final: True where the episode ends, in this rank's environments [B].
            latest: Latest start of an episode that the time limit ends; None if the task ends episodes as well.
        """
        if self._ranks.size == 1:
            self._ended = final
        elif latest is None:
            self._ended = self._ranks.all_envs(final, 0)
        else:
            self._ended = self._starts <= latest

    def share_of_ended(self) -> float:
        """Returns the ended environments of all ranks, divided by their number. Reads from the device."""
        return int(self._ended.sum()) / self._total

    def load(self, own: Tensor) -> None:
        """Restores the starts of this rank's environments [B]."""
        self._starts = self._ranks.all_envs(own.to(self._device), 0)
        self.earliest = int(self._starts.min())
