"""Replay buffer of rollouts, from which sequences of any length are sampled; a transition is a sequence of length one.

Rollouts are stored without padding as the stream of timesteps that they are: an episode is followed by the next episode
of its environment. A sequence starts at one timestep of one environment and has `sequence_length` steps and the
timestep after them. Its position is an index into the stream: timestep * B + environment. It can be sampled once all
timesteps of the sequence are stored, and until the first of them is overwritten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from coterie.algos.replay import memory
from coterie.algos.replay.prioritized import PrioritizedPositions
from coterie.algos.replay.spec import ReplaySpec
from coterie.core.errors import UserError
from coterie.core.seeds import generator
from coterie.core.tree import Tree, register_pytree, tree_leaves, tree_map
from coterie.core.types import OtherTeams, Rollout, Step, Timestep

TIMESTEP_FIELDS = tuple(field.name for field in fields(Timestep))
"""Fields of a rollout with T + 1 entries."""
STEP_FIELDS = ("action", *(field.name for field in fields(Step) if field.name in Rollout.__dataclass_fields__))
"""Fields of a rollout with T entries that are stored."""
_BYTES_AT_ONCE = 16 << 20
"""Bytes of samples that are read from the storage at a time, if one sample is not larger."""


@register_pytree
@dataclass(frozen=True)
class ReplaySample:
    """Sequences from a replay buffer.

    Attributes:
        rollout: Timesteps [L + 1, S, ..] and steps [L, S, ..]; `extras` is empty, and so is `hidden_state` unless
            sequences start with rollouts.
        index: [S] int64, the positions of the sequences, for `update_priorities`.
        weight: [S] float32, importance weights in (0, 1]; all ones for uniform sampling.
    """

    rollout: Rollout
    index: Tensor
    weight: Tensor


class ReplayBuffer:
    """The newest environment steps of a team, and the sequences that can be sampled from them.

    Memory is allocated when the first rollout is added, and checked here. `add` reads the device twice, `sample` never.

    Args:
        spec: Contents, size and sampling scheme.

    Raises:
        UserError: If the buffer does not fit into memory, or is too small for its sequences.
    """

    def __init__(self, spec: ReplaySpec):
        spec.require_sequences()
        self.spec = spec
        self.priority_beta = spec.priority_beta
        """Exponent of the importance weights; can be changed between samples."""
        self._device, self._timesteps, self._max_rollouts = spec.storage_device, spec.timesteps, spec.max_rollouts
        self._discrete_dtype = spec.discrete_dtype
        self.generator = generator(spec.seed, "replay", device=self._device)
        self.storage: SequenceStorage | None = None
        self._drawn: tuple[Tensor, Tensor] | None = None  # positions of the last batch of all ranks, places of own ones
        self.head = 0
        """Number of timesteps added; the stream's timestep `head` is the one to bootstrap from."""
        self.rollouts: deque[tuple[int, int]] = deque()
        """First timestep and number of each rollout in the storage."""
        self._reservation: memory.MemoryReservation | None = memory.MemoryReservation(spec)
        self.nbytes = self._reservation.nbytes
        """Bytes of data and index: expected before the first rollout, exact after it."""
        self.resumed = False
        """No rollout was added since a state was loaded from a checkpoint."""

    @property
    def num_sequences(self) -> int:
        """Number of sequences that can be sampled."""
        return 0 if self.storage is None else self.storage.num_sequences

    @property
    def mean_age(self) -> float:
        """Mean age of the steps held, in environment steps."""
        oldest = 0 if self.storage is None else self.storage.oldest
        return (self.head - oldest) * self.spec.num_envs * self.spec.ranks.size / 2

    def add(self, rollout: Rollout) -> int:
        """Stores a rollout and the timestep after it. Returns the number of timesteps that were acted on.

        A rollout continues the one before it, unless all environments start new episodes with it. In that case it may
        also be unrelated, and then the earlier episodes are truncated where they stopped.

        Raises:
            UserError: If the state of a checkpoint was loaded and has other tensors than the rollout.
        """
        spec = self.spec
        if rollout.reward.shape[:2] != (spec.rollout_length, spec.num_envs):
            raise ValueError(
                f"a rollout of {len(rollout.reward)} timesteps of {rollout.reward.shape[1]} environments in a replay "
                f"buffer for {spec.rollout_length} timesteps of {spec.num_envs} environments"
            )
        timesteps, steps = split_rollout(rollout, spec.states)
        hidden_state = rollout.hidden_state if spec.sequence_start == "rollout" else {}
        storage = self.storage or self.allocate(timesteps, steps, hidden_state)
        if self.resumed:
            storage.require_like(timesteps, steps)
        starts = (rollout.first[0] | ~rollout.alive[0]).all()
        ranks = spec.ranks
        counts = torch.stack([starts, rollout.acted[:-1].sum()])
        num_start, num_acted = (ranks.sum_(counts) if ranks.size > 1 else counts).tolist()
        if self.resumed or (num_start == ranks.size and self.head > 0):
            differs = not storage.is_continued_by(self.head, timesteps)
            if ranks.any(differs) if ranks.size > 1 else differs:
                storage.truncate(self.head)
                self.head += 1
        self.resumed = False
        number = self.rollouts[-1][1] + 1 if self.rollouts else 0
        self.rollouts.append((self.head, number))
        storage.write(self.head, timesteps, steps)
        storage.write_hidden_state(self.head, number % self._max_rollouts, hidden_state)
        storage.mark_starts(self.head, rollout.acted[:-1].to(self._device))
        self.head += spec.rollout_length
        storage.advance(self.head)
        while self.rollouts[0][0] < self.head - self._timesteps:
            self.rollouts.popleft()
        return num_acted

    def sample(self, batch_size: int) -> ReplaySample:
        """Samples `batch_size` sequences with replacement. Of several ranks, each returns those that it holds.

        Raises:
            ValueError: If there are none; see `num_sequences`.
        """
        spec, storage, count = self.spec, self.storage, self.num_sequences
        if storage is None or count == 0:
            raise ValueError("the replay buffer has no complete sequence yet; check `num_sequences` first")
        index, weight = storage.positions.sample(batch_size, count, self.priority_beta, self.generator)
        positions = index
        if spec.ranks.size > 1:
            index, places = spec.ranks.own_samples(index, spec.num_envs)
            spec.ranks.start_batch(places, batch_size, never_empty=True)
            self._drawn = (positions, places)
            if spec.ranks.stands_in:
                index, places = positions[:1] // spec.ranks.size, places.new_zeros(1)
            positions, weight = positions[places], weight[places]
        timesteps, steps, hidden_state = storage.gather(index, spec.sequence_length)
        rollout = join_rollout(timesteps, steps, hidden_state, spec.device)
        if spec.ranks.stands_in:
            rollout = replace(rollout, acted=torch.zeros_like(rollout.acted))
        return ReplaySample(rollout, positions.to(spec.device), weight.to(spec.device))

    def samples(self, batch_size: int, count: int) -> Iterator[ReplaySample]:
        """Yields `count` samples of `batch_size` sequences, the same as `sample` draws one after another.

        Without priorities, which change between them, and ranks, they are read from the storage several at a time.

        Raises:
            ValueError: If there are none; see `num_sequences`.
        """
        spec, storage = self.spec, self.storage
        one_by_one = count == 1 or spec.priority_alpha > 0 or spec.ranks.size > 1
        if storage is None or self.num_sequences == 0 or one_by_one:
            yield from (self.sample(batch_size) for _ in range(count))
            return
        at_once = max(1, _BYTES_AT_ONCE // (batch_size * (spec.sequence_length + 1) * storage.bytes_per_timestep))
        for start in range(0, count, at_once):
            number = min(at_once, count - start)
            index, weight = storage.positions.sample(
                number * batch_size, self.num_sequences, self.priority_beta, self.generator
            )
            index, weight = index.view(number, -1), weight.view(number, -1)
            drawn = join_rollout(*storage.gather(index, spec.sequence_length), spec.device)
            drawn = ReplaySample(drawn, index.to(spec.device), weight.to(spec.device))
            yield from (tree_map(lambda x, k=k: x[k], drawn) for k in range(number))

    def update_priorities(self, index: Tensor, error: Tensor) -> None:
        """Sets the priorities of sampled sequences [S] by their errors [S] >= 0; does nothing if sampling is uniform.

        Sequences that were overwritten since are ignored.
        """
        if self.storage is not None and isinstance(self.storage.positions, PrioritizedPositions):
            index, error = index.to(self._device), error.detach().to(self._device)
            if self._drawn is not None:  # every rank holds the priorities of all sequences
                index, places = self._drawn
                error = self.spec.ranks.sum_(error.new_zeros(len(index)).index_copy_(0, places, error[: len(places)]))
            self.storage.positions.update_priorities(index, error)

    def allocate(self, timesteps: Tree, steps: Tree, hidden_state: Tree) -> SequenceStorage:
        """Allocates memory for leaves like these: [any, B, ..], those of the hidden state [B, ..]."""
        example = stored_types(timesteps, steps, self._discrete_dtype)
        self.storage = storage = SequenceStorage(self.spec, example, hidden_state)
        self.nbytes = memory.allocated_nbytes(self.spec, (storage.timesteps, storage.steps, storage.hidden_states))
        self._reservation = None
        return storage


class SequenceStorage:
    """The newest `size` timesteps of a stream of rollouts, and where complete sequences start in it.

    Timestep `t` of the stream is stored at index `t % size`. Every leaf is one contiguous tensor [size, B, ..], so that
    any sequences are read with one `index_select` per leaf. `advance` reads the device once, nothing else does.

    Args:
        spec: Settings of the replay buffer.
        example: A rollout's timesteps and steps as `stored_types` returns them [any, B, ..].
        hidden_state: Hidden state like those at the start of rollouts [B, N, H] by name; {} for none.

    Attributes:
        positions: Positions that can be sampled.
        num_sequences: Their number.
        is_start: Timesteps at which a sequence may start [size, B] bool.
        acted: Environments that acted at the newest timestep [B] bool.
        oldest: Oldest timestep held.
        complete: Timesteps whose sequences were complete at the last call of `advance`.
        bytes_per_timestep: Bytes of a timestep and a step of one environment.
    """

    def __init__(self, spec: ReplaySpec, example: tuple[Tree, Tree], hidden_state: Tree):
        self.size, self.num_envs, self.device = spec.timesteps + 1, spec.num_envs, spec.storage_device
        self._allocate = allocate = memory.allocator(spec)  # files are removed with their allocator
        self.timesteps, self.steps = tree_map(lambda x: allocate((self.size, *x.shape[1:]), x.dtype), example)
        self.hidden_states = tree_map(lambda x: allocate((spec.max_rollouts, *x.shape), x.dtype), hidden_state)
        self._leaves = tree_leaves((self.timesteps, self.steps))
        self.bytes_per_timestep = sum(x.nbytes for x in self._leaves) // (self.size * self.num_envs)
        trees = (self.timesteps, self.steps, self.hidden_states)
        self._rows = tree_map(lambda x: x.flatten(0, 1), trees)  # of all timesteps and environments
        self._slot = torch.zeros(self.size, dtype=torch.int64, device=self.device)  # of the hidden state at a timestep
        self._kind, self._length = spec.sequence_start, spec.sequence_length
        self._ranks, everything = spec.ranks, spec.of_all_ranks
        self.positions = PrioritizedPositions(everything) if spec.priority_alpha > 0 else UniformPositions(everything)
        self.is_start = torch.zeros(self.size, spec.num_envs, dtype=torch.bool, device=self.device)
        self.acted = torch.zeros(spec.num_envs, dtype=torch.bool, device=self.device)
        self.oldest, self.complete, self.num_sequences = 0, 0, 0
        self._counts: deque[int] = deque()  # positions at each of the timesteps [oldest, complete)

    def require_like(self, timesteps: Tree, steps: Tree) -> None:
        """Raises UserError if trees [n, B, ..] have other tensors than those that are stored, or of other shapes."""
        trees = ((self.timesteps, self.steps), (timesteps, steps))
        stored, new = ([x.shape[2:] for x in tree_leaves(tree)] for tree in trees)
        if stored != new:
            raise UserError(
                "the replay buffer of the checkpoint does not have the tensors of a rollout: it is damaged. Remove the "
                "checkpoint's folder to resume from an earlier one."
            )

    def write(self, start: int, timesteps: Tree, steps: Tree) -> None:
        """Writes trees of tensors [n, B, ..], of any type and device, at the timesteps from `start` on."""
        for stored, x in zip(self._leaves, tree_leaves((timesteps, steps)), strict=True):
            self._put(stored, start, x)

    def _put(self, stored: Tensor, start: int, x: Tensor) -> None:
        """Writes x [n, B, ..] into a tensor [size, B, ..] at the timesteps `start`, `start + 1`, ... of the stream."""
        begin, count = start % self.size, len(x)
        if begin + count > self.size:
            fits = self.size - begin
            stored[: count - fits].copy_(x[fits:])
            x, count = x[:fits], fits
        stored.narrow(0, begin, count).copy_(x)

    def write_hidden_state(self, timestep: int, slot: int, hidden_state: Tree) -> None:
        """Writes the hidden state [B, N, H] before the rollout that starts at a timestep of the stream."""
        tree_map(lambda stored, x: stored[slot].copy_(x), self.hidden_states, hidden_state)
        place = timestep % self.size
        self._slot[place : place + 1] = slot

    def gather(self, start: Tensor, length: int) -> tuple[Tree, Tree, Tree]:
        """Reads the sequences that start at `start` [.., S], timestep * B + environment.

        Returns:
            Timesteps [.., length + 1, S, ..], steps [.., length, S, ..] and hidden states before the first timestep
            [.., S, N, H].
        """
        offsets = torch.arange(length + 1, device=self.device).unsqueeze(1) * self.num_envs
        index = (start.unsqueeze(-2) + offsets) % (self.size * self.num_envs)

        def take(tree: Tree, index: Tensor) -> Tree:
            flat, shape = index.flatten(), index.shape
            return tree_map(lambda rows: rows.index_select(0, flat).view(*shape, *rows.shape[1:]), tree)

        timesteps, steps, hidden_states = self._rows
        found = take(timesteps, index), take(steps, index[..., :-1, :])
        if not hidden_states:
            return *found, {}
        first = index[..., 0, :]
        return *found, take(hidden_states, self._slot[first // self.num_envs] * self.num_envs + first % self.num_envs)

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
        self._put(self.is_start, timestep, is_start)

    def advance(self, head: int) -> None:
        """Removes positions that were overwritten and adds those whose sequences are complete.

        Args:
            head: Number of timesteps of the stream; the observation of timestep `head` is stored as well.
        """
        oldest = max(0, head - self.size + 1)
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
        is_start = self._newest_starts(start, stop)
        if self._ranks.size > 1:
            is_start = self._ranks.all_envs(is_start, 1)
        counts = is_start.sum(1).tolist()
        self.positions.insert(start, is_start, self.num_sequences)
        self._counts.extend(counts)
        self.num_sequences += sum(counts)
        self.complete = stop

    def _newest_starts(self, start: int, stop: int) -> Tensor:
        """Returns `is_start` at the timesteps [start, stop) of the stream."""
        begin, end = start % self.size, start % self.size + stop - start
        if end <= self.size:
            return self.is_start[begin:end]
        return torch.cat([self.is_start[begin:], self.is_start[: end - self.size]])

    def is_continued_by(self, head: int, timesteps: Tree) -> bool:
        """Returns True if `timesteps` [T + 1, B, ..] start with the newest observation, that of timestep `head`."""
        # What other teams chose at the newest timestep is known only now.
        observed = ({name: x for name, x in tree.items() if name != "others"} for tree in (self.timesteps, timesteps))
        pairs = zip(*map(tree_leaves, observed), strict=True)
        return all(bool(stored[head % self.size].equal(new[0].to(stored))) for stored, new in pairs)

    def truncate(self, head: int) -> None:
        """Truncates all episodes at the newest timestep `head`, which becomes their final one."""
        last, place = (head - 1) % self.size, head % self.size
        timesteps, steps = self.timesteps, self.steps
        truncated = self.acted & ~steps["episode_terminated"][last]
        steps["episode_truncated"][last] |= truncated
        steps["truncated"][last] |= timesteps["alive"][last] & ~steps["terminated"][last] & truncated.unsqueeze(-1)
        for leaf in tree_leaves((steps, timesteps["acted"])):
            leaf[place] = 0
        self.acted, self.is_start[place] = torch.zeros_like(self.acted), False


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


def split_rollout(rollout: Rollout, states: tuple[str, ...]) -> tuple[Tree, Tree]:
    """Returns what is stored of a rollout: timesteps [T + 1, B, ..] and steps [T, B, ..], dictionaries by field.

    Of the environment states, only those named `states` are stored.
    """
    values = vars(rollout)
    timesteps: dict[str, Any] = {name: values[name] for name in TIMESTEP_FIELDS if name != "others"}
    timesteps["state"] = {name: rollout.state[name] for name in states}
    if rollout.others is not None:
        timesteps["others"] = rollout.others.to_dict()
    return timesteps, {name: values[name] for name in STEP_FIELDS}


def stored_types(timesteps: Tree, steps: Tree, discrete_dtype: torch.dtype) -> tuple[Tree, Tree]:
    """Returns the parts of a rollout with the types of the storage: `discrete_dtype` for choices, no float64."""

    def compact(tree: Tree) -> Tree:
        return tree_map(lambda x: x if x.is_floating_point() else x.to(discrete_dtype), tree)

    steps = steps | {"action": compact(steps["action"])}
    if "others" in timesteps:
        others = timesteps["others"]
        timesteps = timesteps | {"others": others | {"action": compact(others["action"])}}
    return tree_map(lambda x: x.float() if x.dtype == torch.float64 else x, (timesteps, steps))


def join_rollout(timesteps: Tree, steps: Tree, hidden_state: Tree, device: torch.device) -> Rollout:
    """Returns the rollout of which these are the stored parts, on `device`."""
    if steps["reward"].device != device:
        parts = (timesteps, steps, hidden_state)
        timesteps, steps, hidden_state = tree_map(lambda x: x.to(device, non_blocking=True), parts)
    steps["action"] = _as_indices(steps["action"])
    if "others" in timesteps:
        others = timesteps["others"]
        timesteps["others"] = OtherTeams.from_dict(others | {"action": _as_indices(others["action"])})
    return Rollout(**timesteps, **steps, extras={}, hidden_state=hidden_state)


def _as_indices(action: Tree) -> Tree:
    """Actions whose choices have the type of indices again."""
    return tree_map(lambda x: x if x.is_floating_point() else x.long(), action)


def with_one_successor(rollout: Rollout, step: Tensor) -> Rollout:
    """Returns two timesteps of sequences: the first one, with its action, and the successor of `step` [S].

    What ended is that of `step`, too.
    """
    sequences = torch.arange(len(step), device=step.device)
    timesteps = {name: getattr(rollout, name) for name in TIMESTEP_FIELDS if name != "others"}
    outcome = {name: getattr(rollout, name) for name in STEP_FIELDS if name != "action"}
    return replace(
        rollout,
        action=tree_map(lambda x: x[:1], rollout.action),
        **tree_map(lambda x: torch.stack([x[0], x[step + 1, sequences]]), timesteps),
        **tree_map(lambda x: x[step, sequences][None], outcome),
    )


def timesteps_of(rollout: Rollout) -> Timestep:
    """Returns the timesteps [T + 1, B, ..] of a rollout."""
    values = vars(rollout)
    return Timestep(**{name: values[name] for name in TIMESTEP_FIELDS})
