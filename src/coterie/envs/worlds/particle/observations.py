"""Observations of other agents and landmarks: offsets to all of them, or to the nearest ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.device_constants import constant


class Neighbors:
    """The bodies that agents observe: all of them in a fixed order, or the `nearest` ones sorted by distance.

    Args:
        pos: positions, [2, bodies, B].
        observers: n bodies.
        targets: for every observer, m bodies.
        nearest: number of slots. Surplus slots are zero. None to observe all targets in the given order.

    Attributes:
        offset: [n, slots, 2, B], from the observers to the targets.
    """

    def __init__(
        self, pos: Tensor, observers: Sequence[int], targets: Sequence[Sequence[int]], nearest: int | None = None
    ):
        self._targets = body_indices(tuple(tuple(bodies) for bodies in targets), pos.device).reshape(len(observers), -1)
        self._nearest = nearest
        self._order: Tensor | None = None
        own = pos[:, body_indices(tuple(observers), pos.device)]
        offset = (pos[:, self._targets] - own.unsqueeze(2)).permute(1, 2, 0, 3)
        if nearest is not None:
            distance = torch.hypot(offset[:, :, 0], offset[:, :, 1])
            self._order = distance.argsort(dim=1)[:, :nearest]
        self.offset = self._select(offset)

    def features(self, value: Tensor) -> Tensor:
        """Gathers features of the targets: [D, bodies, B] to [n, slots, D, B]."""
        return self._select(value[:, self._targets].permute(1, 2, 0, 3))

    def _select(self, value: Tensor) -> Tensor:
        if self._order is None or self._nearest is None:
            return value
        order = self._order.unsqueeze(2).expand(-1, -1, value.shape[2], -1)
        nearest = value.gather(1, order)
        missing = self._nearest - nearest.shape[1]
        if missing <= 0:
            return nearest
        n, _, features, num_envs = nearest.shape
        return torch.cat((nearest, nearest.new_zeros(n, missing, features, num_envs)), dim=1)


def body_indices(bodies: tuple[int, ...] | tuple[tuple[int, ...], ...], device: torch.device) -> Tensor:
    """Returns indices of bodies as a tensor int64."""
    return constant(bodies, device, torch.int64)


def own_features(value: Tensor, bodies: Sequence[int]) -> Tensor:
    """Gathers the bodies' own features: [D, bodies, B] to [n, D, B]."""
    return value[:, body_indices(tuple(bodies), value.device)].transpose(0, 1)


def repeat_for(value: Tensor, n: int) -> Tensor:
    """Repeats a feature that `n` agents share: [.., B] to [n, .., B]."""
    return value.expand(n, *value.shape)


def concat_features(*parts: Tensor) -> Tensor:
    """Flattens and concatenates parts [n, .., B] to [n, D, B]."""
    return torch.cat([part.reshape(part.shape[0], -1, part.shape[-1]) for part in parts], dim=1)


def others(bodies: Sequence[int], among: Sequence[int]) -> list[list[int]]:
    """Returns, for every body, the bodies of `among` other than itself."""
    return [[j for j in among if j != i] for i in bodies]
