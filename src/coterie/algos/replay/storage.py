"""Ring storage of rollouts, and the start positions of the sequences that can be sampled from it.

A position is an index into the stream of timesteps: timestep * B + environment. It can be sampled once all timesteps of
its sequence are stored, and until the first of them is overwritten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from coterie.algos.replay.prioritized import PrioritizedPositions
from coterie.algos.replay.spec import ReplaySpec
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.core.types import Rollout, Step, Timestep

TIMESTEP_FIELDS = tuple(field.name for field in fields(Timestep))
"""Fields of a rollout with T + 1 entries."""
STEP_FIELDS = ("action", *(field.name for field in fields(Step) if field.name in Rollout.__dataclass_fields__))
"""Fields of a rollout with T entries that are stored."""

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Returns zeros of a shape and type."""


class RingStorage:
    """The newest `size` timesteps of a stream of rollouts; timestep `t` of the stream is stored at index `t % size`.

    Every leaf is one contiguous tensor [size, B, ..], so that any sequences are read with one `index_select` per leaf.

    Args:
        size: Number of timesteps.
        example: A rollout's timesteps and steps as `split_rollout` returns them [any, B, ..].
        hidden_states: Room for the hidden states at the start of rollouts [max_rollouts, B, N, H] by name; {} for none.
        allocate: Allocates the tensors.
        device: Device of these tensors.
    """

    def __init__(
        self, size: int, example: tuple[Tree, Tree], *, hidden_states: Tree, allocate: Allocate, device: torch.device
    ):
        self.size, self.device, self.hidden_states = size, device, hidden_states
        self._allocate = allocate  # files are removed with their allocator
        self.timesteps, self.steps = tree_map(lambda x: allocate((size, *x.shape[1:]), x.dtype), example)
        self.num_envs: int = self.timesteps["acted"].shape[1]
        self._slot = torch.zeros(size, dtype=torch.int64, device=device)  # index of the hidden state at a timestep

    @property
    def nbytes(self) -> int:
        """Bytes of timesteps and steps."""
        return sum(leaf.nbytes for leaf in tree_leaves((self.timesteps, self.steps)))

    def write(self, start: int, timesteps: Tree, steps: Tree) -> None:
        """Writes trees of tensors [n, B, ..] at the timesteps `start`, `start + 1`, ... of the stream."""
        begin = start % self.size

        def put(stored: Tensor, x: Tensor) -> None:
            fits = min(len(x), self.size - begin)
            stored[begin : begin + fits].copy_(x[:fits])
            if fits < len(x):
                stored[: len(x) - fits].copy_(x[fits:])

        tree_map(put, self.timesteps, timesteps)
        tree_map(put, self.steps, steps)

    def write_hidden_state(self, timestep: int, slot: int, hidden_state: Tree) -> None:
        """Writes the hidden state [B, N, H] before the rollout that starts at a timestep of the stream."""
        tree_map(lambda stored, x: stored[slot].copy_(x), self.hidden_states, hidden_state)
        self._slot[timestep % self.size] = slot

    def gather(self, start: Tensor, length: int) -> tuple[Tree, Tree, Tree]:
        """Reads the sequences that start at `start` [S], timestep * B + environment.

        Returns:
            Timesteps [length + 1, S, ..], steps [length, S, ..] and hidden states before the first timestep [S, N, H].
        """
        offsets = torch.arange(length + 1, device=self.device).unsqueeze(1) * self.num_envs
        index = (start + offsets) % (self.size * self.num_envs)

        def take(stored: Tensor, index: Tensor) -> Tensor:
            return stored.flatten(0, 1).index_select(0, index.reshape(-1)).unflatten(0, index.shape)

        timesteps = tree_map(lambda stored: take(stored, index), self.timesteps)
        steps = tree_map(lambda stored: take(stored, index[:-1]), self.steps)
        if not self.hidden_states:
            return timesteps, steps, {}
        slots = self._slot[index[0] // self.num_envs] * self.num_envs + index[0] % self.num_envs
        return timesteps, steps, tree_map(lambda stored: take(stored, slots), self.hidden_states)


class UniformPositions:
    """Samples uniformly: positions are kept in a ring in the order of the stream, so that one draw is one integer.

    `PrioritizedPositions` has the same interface.
    """

    def __init__(self, spec: ReplaySpec):
        self._num_envs, self._device, self._capacity = spec.num_envs, spec.storage_device, spec.max_sequences
        # One entry more takes what is not to be kept.
        self._ring = torch.zeros(self._capacity + 1, dtype=torch.int64, device=self._device)
        self._first = 0

    def insert(self, timestep: int, is_start: Tensor, count: int) -> None:
        """Adds the positions where `is_start` [n, B] bool, from `timestep` on, to the `count` that there are."""
        start = timestep * self._num_envs
        positions = torch.arange(start, start + is_start.numel(), device=self._device)
        order = is_start.flatten().cumsum(0) - 1 + self._first + count
        self._ring[torch.where(is_start.flatten(), order % self._capacity, self._capacity)] = positions

    def remove(self, timestep: int, num_timesteps: int, num_positions: int, oldest: int) -> None:
        """Removes the positions of `num_timesteps` timesteps from `timestep` on; `oldest` is the oldest one left."""
        self._first = (self._first + num_positions) % self._capacity

    def sample(self, size: int, count: int, beta: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Samples `size` of `count` positions; returns them [size] and their importance weights [size] float32."""
        index = torch.randint(count, (size,), generator=generator, device=self._device)
        return self._ring[(index + self._first) % self._capacity], torch.ones(size, device=self._device)

    def update_priorities(self, position: Tensor, error: Tensor) -> None:
        """Sets the priorities of sampled positions [S] by their errors [S] >= 0."""


class SequenceSampler:
    """Keeps track of where complete sequences start.

    Args:
        spec: Settings of the replay buffer. `advance` reads the device once, nothing else does.
    """

    def __init__(self, spec: ReplaySpec):
        self._kind, self._length, self._device = spec.sequence_start, spec.sequence_length, spec.storage_device
        self._size = spec.timesteps + 1  # that of the storage
        self.positions = PrioritizedPositions(spec) if spec.priority_alpha > 0 else UniformPositions(spec)
        """Positions that can be sampled."""
        self.is_start = torch.zeros(self._size, spec.num_envs, dtype=torch.bool, device=self._device)
        """Timesteps of the storage at which a sequence may start [size, B]."""
        self.acted = torch.zeros(spec.num_envs, dtype=torch.bool, device=self._device)
        """Environments that acted at the newest timestep [B]."""
        self.oldest = 0
        """Oldest timestep held."""
        self.complete = 0
        """Timesteps whose sequences were complete at the last call of `advance`."""
        self._counts: deque[int] = deque()  # positions at each of the timesteps [oldest, complete)
        self.num_sequences = 0
        """Number of sequences that can be sampled."""

    def mark_starts(self, timestep: int, acted: Tensor) -> None:
        """Marks the sequence starts among new timesteps with `acted` [T, B]."""
        before = torch.cat([self.acted.unsqueeze(0), acted[:-1]])
        if self._kind == "timestep":
            is_start = acted
        elif self._kind == "episode":
            is_start = acted & ~before
        else:
            is_start = torch.zeros_like(acted)
            is_start[0] = True
        self.acted = acted[-1].clone()
        self.is_start[self._indices(timestep, timestep + len(acted))] = is_start

    def mark_final(self, timestep: int) -> Tensor:
        """Marks a timestep as the last of its episodes; returns the environments that acted just before it [B] bool."""
        acted, self.acted = self.acted, torch.zeros_like(self.acted)
        self.is_start[timestep % self._size] = False
        return acted

    def advance(self, head: int) -> None:
        """Removes positions that were overwritten and adds those whose sequences are complete.

        Args:
            head: Number of timesteps of the stream; the observation of timestep `head` is stored as well.
        """
        oldest = max(0, head - self._size + 1)
        start = self.complete - len(self._counts)
        overwritten = min(len(self._counts), max(0, oldest - start))
        removed = sum(self._counts.popleft() for _ in range(overwritten))
        self.num_sequences -= removed
        self.positions.remove(start, overwritten, removed, oldest)
        self.oldest = oldest
        self.insert(max(self.complete, oldest), head - self._length + 1)

    def insert(self, start: int, stop: int) -> None:
        """Adds the positions of the timesteps [start, stop), whose sequences are complete."""
        if stop <= start:
            return
        is_start = self.is_start[self._indices(start, stop)]
        counts = is_start.sum(1).tolist()
        self.positions.insert(start, is_start, self.num_sequences)
        self._counts.extend(counts)
        self.num_sequences += sum(counts)
        self.complete = stop

    def _indices(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self._device) % self._size


def split_rollout(rollout: Rollout, states: tuple[str, ...], discrete_dtype: torch.dtype) -> tuple[Tree, Tree]:
    """Returns what is stored of a rollout: timesteps [T + 1, B, ..] and steps [T, B, ..], dictionaries by field.

    Args:
        rollout: The rollout.
        states: Names of the environment states to store.
        discrete_dtype: Integer type of discrete actions.
    """
    values = vars(rollout)
    timesteps: dict[str, Any] = {name: values[name] for name in TIMESTEP_FIELDS}
    timesteps["state"] = {name: rollout.state[name] for name in states}
    steps = {name: values[name] for name in STEP_FIELDS}
    steps["action"] = tree_map(lambda x: x if x.is_floating_point() else x.to(discrete_dtype), rollout.action)
    return tree_map(lambda x: x.float() if x.dtype == torch.float64 else x, (timesteps, steps))


def join_rollout(timesteps: Tree, steps: Tree, hidden_state: Tree, device: torch.device) -> Rollout:
    """Inverse of `split_rollout`, on `device`."""
    parts = (timesteps, steps, hidden_state)
    timesteps, steps, hidden_state = tree_map(lambda x: x.to(device, non_blocking=True), parts)
    steps["action"] = tree_map(lambda x: x if x.is_floating_point() else x.long(), steps["action"])
    return Rollout(**timesteps, **steps, extras={}, hidden_state=hidden_state)


def timesteps_of(rollout: Rollout) -> Timestep:
    """Returns the timesteps [T + 1, B, ..] of a rollout."""
    values = vars(rollout)
    return Timestep(**{name: values[name] for name in TIMESTEP_FIELDS})
