"""What agents see of each other and of landmarks: offsets to all of them, or to the few that are nearest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Around:
    """The bodies around some agents, all in the order given or the `nearest` ones, nearest first.

    pos: [2, bodies, B]; observers: n bodies; targets: for each of them m bodies. With `nearest`, there are that many
    slots, and the surplus is zero.
    """

    def __init__(
        self, pos: Tensor, observers: Sequence[int], targets: Sequence[Sequence[int]], nearest: int | None = None
    ):
        self._targets = torch.tensor([list(row) for row in targets], dtype=torch.long).reshape(len(observers), -1)
        self._nearest = nearest
        self._order: Tensor | None = None
        offset = (pos[:, self._targets] - pos[:, list(observers)].unsqueeze(2)).permute(1, 2, 0, 3)
        if nearest is not None:
            distance = torch.hypot(offset[:, :, 0], offset[:, :, 1])
            self._order = distance.argsort(dim=1)[:, :nearest]
        self.offset = self._seen(offset)
        """[n, slots, 2, B], from the observers to the targets."""

    def of(self, value: Tensor) -> Tensor:
        """What the targets have of `value` [D, bodies, B]: [n, slots, D, B]."""
        return self._seen(value[:, self._targets].permute(1, 2, 0, 3))

    def _seen(self, value: Tensor) -> Tensor:
        if self._order is None or self._nearest is None:
            return value
        order = self._order.unsqueeze(2).expand(-1, -1, value.shape[2], -1)
        chosen = value.gather(1, order)
        missing = self._nearest - chosen.shape[1]
        if missing <= 0:
            return chosen
        n, _, features, copies = chosen.shape
        return torch.cat((chosen, chosen.new_zeros(n, missing, features, copies)), dim=1)


def own(value: Tensor, bodies: Sequence[int]) -> Tensor:
    """What the bodies have of `value` [D, bodies, B]: [n, D, B]."""
    return value[:, list(bodies)].transpose(0, 1)


def same(value: Tensor, n: int) -> Tensor:
    """What `n` agents all see alike: [.., B] as [n, .., B]."""
    return value.expand(n, *value.shape)


def joined(*parts: Tensor) -> Tensor:
    """Parts [n, .., B] one after the other: [n, D, B]."""
    return torch.cat([part.reshape(part.shape[0], -1, part.shape[-1]) for part in parts], dim=1)


def others(bodies: Sequence[int], among: Sequence[int]) -> list[list[int]]:
    """For each of the bodies: those among the given that are not itself."""
    return [[j for j in among if j != i] for i in bodies]
