"""Prioritized sampling of sequences.

Source: Schaul et al. 2016, Prioritized Experience Replay (the proportional variant).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.algos.replay.spec import ReplaySpec
from coterie.algos.replay.sum_tree import SumTree

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
