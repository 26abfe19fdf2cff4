"""Snapshots of a policy, stacked, so that a batch of copies can play against all of them at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.policy import Policy

LIVE = -1
"""The number of the policy itself, where snapshots are numbered 0, 1, 2 .. in the order in which they were made."""


class Acting(nn.Module):
    """A policy as a module over its networks, so that `functional_call` can act with other parameters."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.act = policy.act
        self.networks = nn.ModuleList(policy.networks)

    def forward(self, *args: Any) -> Any:
        return self.act(*args)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        return {name: x.detach() for name, x in (*self.named_parameters(), *self.named_buffers())}


class Pool:
    """A policy and the newest `size` snapshots of it: slot 0 holds the policy as it was at the last `refresh`, the
    slots after it snapshots, of which the oldest is replaced when all are taken.
    """

    def __init__(self, policy: Policy, size: int):
        self.size = size
        self._acting = Acting(policy)
        mine = self._acting.tensors()
        self.device = next(iter(mine.values())).device
        self._stacked = {name: torch.stack([x] * (size + 1)) for name, x in mine.items()}
        self._renumber([LIVE])
        self.made = 0
        """Snapshots made so far."""

    @property
    def stacked(self) -> dict[str, Tensor]:
        """What acting reads, by name, of every slot that is taken [slots, ..]."""
        return {name: x[: len(self.numbers)] for name, x in self._stacked.items()}

    def refresh(self) -> None:
        """Slot 0 becomes the policy as it is now."""
        self._write(0)

    def add(self) -> int:
        """Makes a snapshot and returns its number."""
        number = self.made
        slot = 1 + number % self.size
        self._write(slot)
        self._renumber([*self.numbers[:slot], number, *self.numbers[slot + 1 :]])
        self.made += 1
        return number

    @property
    def replaced(self) -> int | None:
        """The slot that the next snapshot takes from another; None while there is room."""
        slot = 1 + self.made % self.size
        return slot if slot < len(self.numbers) else None

    def oldest_first(self) -> list[int]:
        """Slots of the snapshots from the oldest to the newest."""
        return sorted(range(1, len(self.numbers)), key=lambda slot: self.numbers[slot])

    def _renumber(self, numbers: list[int]) -> None:
        self.numbers = numbers
        """The number of the snapshot in each slot that is taken."""
        self.label = torch.tensor(numbers, device=self.device)
        """The same on the device, int64 [slots]."""

    def _write(self, slot: int) -> None:
        with torch.no_grad():
            for name, x in self._acting.tensors().items():
                self._stacked[name][slot].copy_(x)

    def state_dict(self) -> dict[str, Any]:
        return {"stacked": self._stacked, "numbers": self.numbers, "made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, x in self._stacked.items():
            x.copy_(state["stacked"][name])
        self._renumber(list(state["numbers"]))
        self.made = state["made"]
