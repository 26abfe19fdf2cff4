"""Snapshots of a policy, stacked so that a batch of environments can play against all of them at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.policies.base import Policy

CURRENT_POLICY = -1
"""Number of the policy itself. Snapshots are numbered 0, 1, 2, ... in the order in which they were made."""


class PolicyModule(nn.Module):
    """A policy as a module over its networks, so that `functional_call` can act with other parameters."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.act = policy.act
        self.networks = nn.ModuleList(policy.networks)

    def forward(self, *args: Any) -> Any:
        return self.act(*args)

    def tensors(self) -> dict[str, Tensor]:
        """Returns parameters and buffers by name."""
        return {name: x.detach() for name, x in (*self.named_parameters(), *self.named_buffers())}


class SnapshotPool:
    """A policy and its newest snapshots.

    Slot 0 holds the policy as of the last `refresh`. The other slots hold snapshots; when all are taken, the oldest
    snapshot is replaced.

    Args:
        policy: The policy to take snapshots of.
        size: Maximum number of snapshots.
    """

    def __init__(self, policy: Policy, size: int):
        self.size = size
        self._module = PolicyModule(policy)
        tensors = self._module.tensors()
        self.device = next(iter(tensors.values())).device
        self._stacked = {name: torch.stack([x] * (size + 1)) for name, x in tensors.items()}
        self._set_numbers([CURRENT_POLICY])
        self.created = 0
        """Number of snapshots made so far."""

    @property
    def stacked(self) -> dict[str, Tensor]:
        """Parameters and buffers by name for all taken slots, [slots, ..] each."""
        return {name: x[: len(self.numbers)] for name, x in self._stacked.items()}

    def refresh(self) -> None:
        """Copies the current policy to slot 0."""
        self._write(0)

    def add(self) -> int:
        """Makes a snapshot and returns its number."""
        number = self.created
        slot = 1 + number % self.size
        self._write(slot)
        self._set_numbers([*self.numbers[:slot], number, *self.numbers[slot + 1 :]])
        self.created += 1
        return number

    @property
    def next_replaced_slot(self) -> int | None:
        """Slot of the snapshot that the next one replaces; None while there are free slots."""
        slot = 1 + self.created % self.size
        return slot if slot < len(self.numbers) else None

    def oldest_first(self) -> list[int]:
        """Returns the slots of the snapshots, from the oldest to the newest."""
        return sorted(range(1, len(self.numbers)), key=lambda slot: self.numbers[slot])

    def _set_numbers(self, numbers: list[int]) -> None:
        self.numbers = numbers
        """Number of the snapshot in each taken slot."""
        self.label = torch.tensor(numbers, device=self.device)
        """The same numbers on the device, [slots] int64."""

    def _write(self, slot: int) -> None:
        with torch.no_grad():
            for name, x in self._module.tensors().items():
                self._stacked[name][slot].copy_(x)

    def state_dict(self) -> dict[str, Any]:
        """Returns the snapshots and their numbers."""
        return {"stacked": self._stacked, "numbers": self.numbers, "created": self.created}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        for name, x in self._stacked.items():
            x.copy_(state["stacked"][name])
        self._set_numbers(list(state["numbers"]))
        self.created = state["created"]
