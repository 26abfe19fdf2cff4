"""State of a replay buffer in checkpoints.

The stream of timesteps is split into segments of a fixed length, counted from its start. Complete segments are
`coterie.core.serialize.Segment`s: a checkpoint writes each of them once and refers to those that are saved already. The
oldest and the newest timesteps, less than two segments, are tensors of the state itself.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.algos.replay.buffer import ReplayBuffer, SequenceStorage
from coterie.algos.replay.prioritized import PrioritizedPositions
from coterie.algos.replay.spec import ReplaySpec
from coterie.core.seeds import restore
from coterie.core.serialize import Segment, Written
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.core.types import Action

SEGMENT_BYTES = 4 << 20
"""Minimum size of a segment."""


class ReplayCheckpoint:
    """Saves and restores a replay buffer.

    Args:
        buffer: The replay buffer.
    """

    def __init__(self, buffer: ReplayBuffer):
        self._buffer = buffer
        self._segments: SegmentedState | None = None  # None until the buffer's memory is allocated

    def state_dict(self) -> dict[str, Any]:
        """Returns the complete state, to be saved or copied by `copy.deepcopy` before the next rollout is added."""
        buffer = self._buffer
        state = {
            "generator": buffer.generator.get_state(),
            "head": buffer.head,
            "priority_beta": buffer.priority_beta,
            "shape": buffer.spec.shape,
        }
        if buffer.storage is None:
            return state
        if self._segments is None:
            self._segments = SegmentedState(buffer.storage, buffer.rollouts, buffer.spec)
        return state | self._segments.state_dict(buffer.head)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state. If the next rollout does not continue the last one, all episodes are truncated there.

        Raises:
            UserError: If the state is one of a buffer with other settings.
        """
        buffer = self._buffer
        buffer.spec.require_shape(list(state["shape"]))
        restore(buffer.generator, state["generator"])
        buffer.priority_beta, buffer.head = state["priority_beta"], state["head"]
        buffer.storage, self._segments = None, None
        buffer.rollouts.clear()
        if buffer.head == 0:
            return
        self._segments = SegmentedState(buffer.allocate(*example_of(state)), buffer.rollouts, buffer.spec)
        self._segments.load_state_dict(state)
        buffer.resumed = True


class SegmentedState:
    """Saves and restores a stream of timesteps in segments.

    Args:
        storage: The timesteps and the starts of their sequences.
        rollouts: First timestep and number of each rollout in the storage.
        spec: Settings of the replay buffer.
    """

    def __init__(self, storage: SequenceStorage, rollouts: deque[tuple[int, int]], spec: ReplaySpec):
        self._storage, self._rollouts, self._spec = storage, rollouts, spec
        nbytes = sum(leaf.nbytes for leaf in tree_leaves((storage.timesteps, storage.steps)))
        wanted = max(SEGMENT_BYTES, nbytes // 256) * storage.size / nbytes
        self._length = math.ceil(wanted / spec.rollout_length) * spec.rollout_length
        self._written: dict[int, Written] = {}  # segments by their first timestep

    def state_dict(self, head: int) -> dict[str, Any]:
        """Returns the state of a stream of `head` timesteps."""
        length, oldest = self._length, max(0, head - self._spec.timesteps)
        first = -(-oldest // length) * length
        last = max(first, (head - 1) // length * length)  # an episode may still be truncated at the newest timestep
        self._written = {start: self._written.get(start, Written()) for start in range(first, last, length)}
        segments = {start: Segment(partial(self._leaves, start), written) for start, written in self._written.items()}
        ends = [(oldest, first), (last, head + 1)] if first <= head else [(oldest, head + 1)]
        return {
            "sampler": _starts_state(self._storage),
            "rollouts": [list(rollout) for rollout in self._rollouts],
            "segment_length": length,
            "segments": segments,
            "pieces": [[start, self._piece(start, stop)] for start, stop in ends if start < stop],
        }

    def _leaves(self, start: int) -> dict[str, Tensor]:
        """Leaves of a segment, by number."""
        newest = self._rollouts[-1][0] + self._spec.rollout_length
        if start < newest - self._spec.timesteps:
            raise RuntimeError("the state of a replay buffer must be saved, or copied, before rollouts are added to it")
        return {f"{i:04d}": leaf for i, leaf in enumerate(tree_leaves(self._piece(start, start + self._length)))}

    def _piece(self, start: int, stop: int) -> dict[str, Any]:
        """Copies of the timesteps [start, stop) and of all that belongs to them."""
        storage = self._storage
        index = self._indices(start, stop)
        timesteps, steps = tree_map(lambda x: x.index_select(0, index), (storage.timesteps, storage.steps))
        numbers = [number for timestep, number in self._rollouts if start <= timestep < stop]
        slots = torch.tensor(numbers, dtype=torch.int64, device=storage.device) % self._spec.max_rollouts
        actions = {role: vars(action) for role, action in steps["action"].items()}  # a checkpoint holds dictionaries
        return {
            "timesteps": timesteps,
            "steps": steps | {"action": actions},
            "is_start": self._storage.is_start[index],
            "hidden_state": tree_map(lambda x: x.index_select(0, slots), storage.hidden_states),
        }

    def _indices(self, start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=self._storage.device) % self._storage.size

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state of `state_dict` into an empty storage."""
        self._rollouts.extend((timestep, number) for timestep, number in state["rollouts"])
        self._length = state["segment_length"]
        example = state["pieces"][-1][1]
        for start, segment in state["segments"].items():
            leaves = iter(sorted(segment.read().items()))
            self._restore(start, tree_map(lambda _, leaves=leaves: next(leaves)[1], example))
            self._written[start] = Written(segment.written.digest)
        for start, piece in state["pieces"]:
            self._restore(start, piece)
        _restore_starts(self._storage, state["sampler"])

    def _restore(self, start: int, piece: dict[str, Any]) -> None:
        """Writes what `_piece` copied."""
        self._storage.write(start, piece["timesteps"], _steps_of(piece))
        stop = start + len(piece["is_start"])
        self._storage.is_start[self._indices(start, stop)] = piece["is_start"].to(self._storage.device)
        held = [rollout for rollout in self._rollouts if start <= rollout[0] < stop]
        for i, (timestep, number) in enumerate(held):
            hidden_state = tree_map(lambda x, i=i: x[i], piece["hidden_state"])
            self._storage.write_hidden_state(timestep, number % self._spec.max_rollouts, hidden_state)


def _starts_state(storage: SequenceStorage) -> dict[str, Any]:
    """State without `is_start`, which is saved together with the timesteps."""
    state = {"acted": storage.acted.clone(), "oldest": storage.oldest, "complete": storage.complete}
    if isinstance(storage.positions, PrioritizedPositions):
        state |= storage.positions.state_dict(storage.oldest, max(storage.oldest, storage.complete))
    return state


def _restore_starts(storage: SequenceStorage, state: dict[str, Any]) -> None:
    """Restores what `_starts_state` returned, after `is_start`."""
    storage.acted = state["acted"].to(storage.acted.device, copy=True)
    storage.oldest = state["oldest"]
    storage.positions.remove(0, 0, 0, storage.oldest)
    storage.insert(storage.oldest, state["complete"])
    storage.complete = state["complete"]
    if isinstance(storage.positions, PrioritizedPositions):
        storage.positions.load_state_dict(storage.oldest, state)


def example_of(state: dict[str, Any]) -> tuple[Tree, Tree, Tree]:
    """Timesteps and steps [any, B, ..] and hidden states [B, ..] like those of a saved state."""
    piece = state["pieces"][-1][1]
    hidden_state = tree_map(lambda x: torch.empty(x.shape[1:], dtype=x.dtype), piece["hidden_state"])
    return piece["timesteps"], _steps_of(piece), hidden_state


def _steps_of(piece: dict[str, Any]) -> Tree:
    """Steps with actions as `Action`s again."""
    return piece["steps"] | {"action": {role: Action(**action) for role, action in piece["steps"]["action"].items()}}
