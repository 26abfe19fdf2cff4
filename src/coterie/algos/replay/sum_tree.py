"""Sum tree: samples indices in proportion to their priorities.

Source: Schaul et al. 2016, Prioritized Experience Replay, section 3.3 and appendix B.2.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BRANCHES = 32
"""Children per node. Fastest of the values from 8 to 128; a million leaves have a depth of four."""


class SumTree:
    """Priorities >= 0 and the sums above them; all operations are vectorized.

    Sums are recomputed from the priorities and never updated by differences. They do not drift, and a node is exactly
    zero if all priorities below it are.

    Args:
        size: Number of priorities.
        device: Device of the tree.
    """

    def __init__(self, size: int, device: torch.device):
        self.size = size
        self._levels: list[Tensor] = []  # leaves first, root last; padded to whole nodes
        count = size
        while not self._levels or count > 1:
            padded = -(-count // _BRANCHES) * _BRANCHES
            self._levels.append(torch.zeros(padded, dtype=torch.float64, device=device))
            count = padded // _BRANCHES
        self._levels.append(torch.zeros(1, dtype=torch.float64, device=device))

    @property
    def nbytes(self) -> int:
        """Bytes of all levels."""
        return sum(level.nbytes for level in self._levels)

    @property
    def leaves(self) -> Tensor:
        """All priorities, float64 [size]."""
        return self._levels[0][: self.size]

    @property
    def total(self) -> Tensor:
        """Sum of all priorities, []."""
        return self._levels[-1][0]

    def fill(self, start: int, values: Tensor) -> None:
        """Sets the priorities `start`, `start + 1`, ... to `values` [n]."""
        if len(values) == 0:
            return
        begin, end = start, start + len(values)
        self._levels[0][begin:end] = values
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            begin, end = begin // _BRANCHES, (end - 1) // _BRANCHES + 1
            above[begin:end] = below.view(-1, _BRANCHES)[begin:end].sum(-1)

    def set(self, index: Tensor, values: Tensor, where: Tensor) -> None:
        """Sets the priorities at `index` [S] to `values` [S] where `where` [S] is True.

        If an index occurs several times, the largest value is set.
        """
        leaves = self._levels[0]
        values = torch.where(where, values.to(leaves.dtype), leaves[index])
        leaves[index] = 0.0
        leaves.scatter_reduce_(0, index, values, "amax")
        at = index
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            at = at // _BRANCHES
            above[at] = below.view(-1, _BRANCHES)[at].sum(-1)

    def find(self, target: Tensor) -> Tensor:
        """Returns the indices [S] at which the cumulative sum exceeds `target` [S], in [0, total).

        The priority at a returned index is never zero.
        """
        at = torch.zeros_like(target, dtype=torch.int64)
        for level in reversed(self._levels[:-1]):
            sums = level.view(-1, _BRANCHES)[at].cumsum(-1)
            whole = sums[:, -1]
            target = torch.minimum(target, torch.nextafter(whole, torch.zeros_like(whole)))  # rounding may exceed it
            child = torch.searchsorted(sums, target.unsqueeze(1), right=True).squeeze(1)
            before = sums.gather(1, (child - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
            target = target - torch.where(child > 0, before, 0.0)
            at = at * _BRANCHES + child
        return at

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Samples `count` indices in proportion to priority, one from each of `count` equal parts of the sum."""
        root = self._levels[-1]
        noise = torch.rand(count, dtype=root.dtype, device=root.device, generator=generator)
        return self.find((noise + torch.arange(count, device=root.device)) / count * root)
