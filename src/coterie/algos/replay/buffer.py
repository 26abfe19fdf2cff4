"""Replay buffer of rollouts, from which sequences of any length are sampled; a transition is a sequence of length one.

Rollouts are stored without padding as the stream of timesteps that they are: an episode is followed by the next episode
of its environment. A sequence starts at one timestep of one environment and has `sequence_length` steps and the
timestep after them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from coterie.algos.replay import memory
from coterie.algos.replay.spec import ReplaySpec
from coterie.algos.replay.storage import RingStorage, SequenceSampler, join_rollout, split_rollout
from coterie.core.seeds import generator
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.core.types import Rollout


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

    Memory is allocated when the first rollout is added, and checked here. `add` reads the device once, `sample` never.

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
        self.storage: RingStorage | None = None
        self.sampler: SequenceSampler | None = None
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
        return 0 if self.sampler is None else self.sampler.num_sequences

    def can_sample(self, batch_size: int) -> bool:
        """Returns True if there are at least `batch_size` different sequences."""
        return self.num_sequences >= batch_size

    def add(self, rollout: Rollout) -> None:
        """Stores a rollout and the timestep after it.

        A rollout continues the one before it, unless all environments start new episodes with it. In that case it may
        also be unrelated, and then the earlier episodes are truncated where they stopped.
        """
        spec = self.spec
        if rollout.reward.shape[:2] != (spec.rollout_length, spec.num_envs):
            raise ValueError(
                f"a rollout of {len(rollout.reward)} timesteps of {rollout.reward.shape[1]} environments in a replay "
                f"buffer for {spec.rollout_length} timesteps of {spec.num_envs} environments"
            )
        timesteps, steps = split_rollout(rollout, spec.states, self._discrete_dtype)
        hidden_state = rollout.hidden_state if spec.sequence_start == "rollout" else {}
        timesteps, steps, hidden_state = tree_map(lambda x: x.to(self._device), (timesteps, steps, hidden_state))
        if self.storage is None or self.sampler is None:
            storage, sampler = self.allocate(timesteps, steps, hidden_state)
        else:
            storage, sampler = self.storage, self.sampler
        all_start = self.head > 0 and bool((rollout.first[0] | ~rollout.alive[0]).all())
        if (self.resumed or all_start) and not self._continues(storage, timesteps):
            self._truncate(storage, sampler)
        self.resumed = False
        number = self.rollouts[-1][1] + 1 if self.rollouts else 0
        self.rollouts.append((self.head, number))
        storage.write(self.head, timesteps, steps)
        storage.write_hidden_state(self.head, number % self._max_rollouts, hidden_state)
        sampler.mark_starts(self.head, timesteps["acted"][:-1])
        self.head += spec.rollout_length
        sampler.advance(self.head)
        while self.rollouts[0][0] < self.head - self._timesteps:
            self.rollouts.popleft()

    def sample(self, batch_size: int) -> ReplaySample:
        """Samples `batch_size` sequences with replacement.

        Raises:
            ValueError: If there are none; see `can_sample`.
        """
        spec, storage, sampler = self.spec, self.storage, self.sampler
        if storage is None or sampler is None or sampler.num_sequences == 0:
            raise ValueError("the replay buffer has no complete sequence yet; check `can_sample` first")
        index, weight = sampler.positions.sample(batch_size, sampler.num_sequences, self.priority_beta, self.generator)
        timesteps, steps, hidden_state = storage.gather(index, spec.sequence_length)
        rollout = join_rollout(timesteps, steps, hidden_state, spec.device)
        return ReplaySample(rollout, index.to(spec.device), weight.to(spec.device))

    def update_priorities(self, index: Tensor, error: Tensor) -> None:
        """Sets the priorities of sampled sequences; does nothing if sampling is uniform.

        Args:
            index: [S], `ReplaySample.index`; sequences that were overwritten since are ignored.
            error: [S] >= 0, the error of each sequence.
        """
        if self.sampler is not None:
            self.sampler.positions.update_priorities(index.to(self._device), error.detach().to(self._device))

    def allocate(self, timesteps: Tree, steps: Tree, hidden_state: Tree) -> tuple[RingStorage, SequenceSampler]:
        """Allocates memory for leaves like these: [any, B, ..], those of the hidden state [B, ..]."""
        spec = self.spec
        storage = memory.allocate_storage(spec, timesteps, steps, hidden_state)
        sampler = SequenceSampler(spec)
        self.nbytes = memory.allocated_nbytes(spec, storage)
        self._reservation, self.storage, self.sampler = None, storage, sampler
        return storage, sampler

    def _continues(self, storage: RingStorage, timesteps: Tree) -> bool:
        """True if `timesteps` [T + 1, B, ..] start with the newest observation in the storage."""
        place = self.head % storage.size
        pairs = zip(tree_leaves(storage.timesteps), tree_leaves(timesteps), strict=True)
        return all(bool(stored[place].equal(new[0])) for stored, new in pairs)

    def _truncate(self, storage: RingStorage, sampler: SequenceSampler) -> None:
        """Truncates all episodes at the newest timestep, which becomes their final one."""
        last, place = (self.head - 1) % storage.size, self.head % storage.size
        timesteps, steps = storage.timesteps, storage.steps
        truncated = sampler.mark_final(self.head) & ~steps["episode_terminated"][last]
        steps["episode_truncated"][last] |= truncated
        steps["truncated"][last] |= timesteps["alive"][last] & ~steps["terminated"][last] & truncated.unsqueeze(-1)
        for leaf in tree_leaves((steps, timesteps["acted"])):
            leaf[place] = 0
        self.head += 1
