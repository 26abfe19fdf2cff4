"""Prioritized sampling of sequences.

Source: Schaul et al. 2016, Prioritized Experience Replay, section 3.3 and appendix B.2.1 (the proportional variant).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.algos.replay.spec import ReplaySpec

_BRANCHES = 32
"""Children per node. Fastest of the values from 8 to 128; a million leaves have a depth of four."""


class SumTree:
    """Samples indices in proportion to priorities >= 0; all operations are vectorized.

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


_EPS = 1e-6
"""Added to each error, so that a sequence without error is sampled again at some time."""


class PrioritizedPositions:
    """Samples in proportion to priority^alpha, with the interface of `UniformPositions`.

    New sequences get the highest priority so far.

        P(i) = p_i^alpha / sum_k p_k^alpha,    w_i = (N P(i))^-beta / max_j w_j

    Source: Schaul et al. 2016, eq. 1 and section 3.4.
    """

    def __init__(self, spec: ReplaySpec):
        self._num_envs, self._device, self._alpha = spec.num_envs, spec.storage_device, spec.priority_alpha
        self._timesteps = spec.timesteps + 1
        self._size = self._timesteps * spec.num_envs
        self._tree = SumTree(self._size, self._device)
        self._highest = torch.ones((), dtype=torch.float64, device=self._device)
        self._oldest = 0

    def insert(self, timestep: int, is_start: Tensor, count: int) -> None:
        """Adds the positions where `is_start` [n, B] bool, from `timestep` on."""
        self._fill(timestep, torch.where(is_start, self._highest**self._alpha, 0.0))

    def remove(self, timestep: int, num_timesteps: int, num_positions: int, oldest: int) -> None:
        """Removes the positions of `num_timesteps` timesteps from `timestep` on; `oldest` is the oldest one left."""
        self._fill(timestep, torch.zeros(num_timesteps, self._num_envs, dtype=torch.float64, device=self._device))
        self._oldest = oldest

    def _fill(self, timestep: int, values: Tensor) -> None:
        """Sets the priorities of the stream's timesteps from `timestep` on to `values` [n, B]."""
        begin = timestep % self._timesteps
        fits = min(len(values), self._timesteps - begin)
        self._tree.fill(begin * self._num_envs, values[:fits].flatten())
        self._tree.fill(0, values[fits:].flatten())

    def sample(self, size: int, count: int, beta: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Samples `size` of `count` positions; returns them [size] and their importance weights [size] float32."""
        leaf = self._tree.sample(size, generator)
        probability = self._tree.leaves[leaf] / self._tree.total
        weight = (count * probability) ** -beta
        lowest = self._oldest * self._num_envs
        return lowest + (leaf - lowest) % self._size, (weight / weight.max()).float()

    def update_priorities(self, position: Tensor, error: Tensor) -> None:
        """Sets the priorities of sampled positions [S] by their errors [S] >= 0; ignores those that were removed."""
        held = position >= self._oldest * self._num_envs
        priority = error.double() + _EPS
        self._highest = torch.maximum(self._highest, torch.where(held, priority, 0.0).amax())
        self._tree.set(position % self._size, priority**self._alpha, held)

    def state_dict(self, start: int, stop: int) -> dict[str, Any]:
        """Returns the priorities of the timesteps [start, stop)."""
        index = torch.arange(start, stop, device=self._device) % self._timesteps
        priority = self._tree.leaves.view(self._timesteps, self._num_envs)[index]
        return {"priority": priority, "highest": self._highest.clone()}

    def load_state_dict(self, start: int, state: dict[str, Any]) -> None:
        """Restores the priorities."""
        self._highest = state["highest"].to(self._device, copy=True)
        self._fill(start, state["priority"].to(self._device))


def sequence_error(error: Tensor, valid: Tensor) -> Tensor:
    """Returns the error of each sequence [S], from which its priority is computed.

        0.9 max_t error_t + 0.1 mean_t error_t

    Source: Kapturowski et al. 2019, section 2.3.

    Args:
        error: Absolute errors [T, S, ..].
        valid: bool, the same shape, entries that count.
    """
    error, valid = (x.flatten(2).transpose(0, 1).flatten(1) if x.ndim > 2 else x.T for x in (error, valid))
    error = torch.where(valid, error, 0.0)
    return 0.9 * error.amax(1) + 0.1 * error.sum(1) / valid.sum(1).clamp(min=1)
