"""Settings of a replay buffer, and the sizes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.ranks.ranks import ONE, Ranks

Storage = Literal["device", "cpu", "disk"]
SequenceStart = Literal["timestep", "rollout", "episode"]


@dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """Contents, size and sampling scheme of a replay buffer.

    Attributes:
        team: The team whose rollouts are stored.
        num_envs: Number of environments `B` of the rollouts of this rank.
        rollout_length: Number of timesteps `T` of the rollouts.
        capacity: Environment steps of this rank, rounded up to whole rollouts.
        sequence_length: Steps of a sampled sequence; 1 samples transitions.
        sequence_start: Where a sequence may start: at every timestep that was acted on (`timestep`), at the first
            timestep of a rollout, together with the hidden state that the policy had there (`rollout`), or at the first
            timestep of an episode (`episode`).
        states: Names of the environment states to store.
        other_roles: Roles of other teams to store, which global critics read.
        storage: Location of the data: the learner's device, the host's memory (`cpu`), or memory-mapped files in the
            temporary folder (`disk`).
        hidden_state: Example of the hidden states to store, by name [B, N, H].
        min_sequences: Number of sequences that the buffer must have room for.
        priority_alpha: Exponent of the priorities; 0 samples uniformly.
        priority_beta: Initial exponent of the importance weights.
        seed: Seed of the learner.
        device: Device of the learner.
        ranks: The ranks of the run. Each stores the rollouts of its own environments, and the positions of all.
    """

    team: TeamSpec
    num_envs: int
    rollout_length: int
    capacity: int
    sequence_length: int
    sequence_start: SequenceStart
    seed: int
    device: torch.device
    states: tuple[str, ...] = ()
    other_roles: tuple[RoleSpec, ...] = ()
    storage: Storage = "device"
    hidden_state: Tree = field(default_factory=dict)
    min_sequences: int = 1
    priority_alpha: float = 0.0
    priority_beta: float = 0.0
    ranks: Ranks = ONE

    @property
    def of_all_ranks(self) -> ReplaySpec:
        """Settings of a buffer with the rollouts of all ranks; those of one rank if there is only one."""
        size = self.ranks.size
        return self if size == 1 else replace(self, num_envs=self.num_envs * size, capacity=self.capacity * size)

    @property
    def timesteps(self) -> int:
        """Number of timesteps per environment that are held, a multiple of the rollout length."""
        return -(-self.capacity // (self.num_envs * self.rollout_length)) * self.rollout_length

    @property
    def max_rollouts(self) -> int:
        """Maximum number of rollouts of which at least one timestep is held."""
        return self.timesteps // self.rollout_length + 1

    @property
    def max_sequences(self) -> int:
        """Maximum number of sequence starts among the timesteps held."""
        return self._max_starts(self.timesteps)

    def _max_starts(self, timesteps: int) -> int:
        most = {"timestep": timesteps, "rollout": timesteps // self.rollout_length + 1, "episode": timesteps // 2 + 1}
        return most[self.sequence_start] * self.num_envs

    @property
    def storage_device(self) -> torch.device:
        """Device of the stored tensors."""
        return torch.device(self.device) if self.storage == "device" else torch.device("cpu")

    @property
    def discrete_dtype(self) -> torch.dtype:
        """Smallest integer type that holds every discrete action that is stored."""
        roles = (*self.team.roles, *self.other_roles)
        choices = max((n for role in roles for n in role.action.choices), default=1)
        return torch.uint8 if choices <= 1 << 8 else torch.int16 if choices <= 1 << 15 else torch.int32

    @property
    def shape(self) -> list[Any]:
        """Sizes that have to be equal to resume from a checkpoint."""
        return [self.timesteps, self.num_envs, self.rollout_length, self.sequence_length, self.sequence_start]

    def require_shape(self, saved: list[Any]) -> None:
        """Raises UserError if the `shape` of a checkpoint's buffer is another one."""
        if saved != self.shape:
            raise UserError(
                "the checkpoint's replay buffer has timesteps, environments, rollout length, sequence length and "
                f"sequence start {saved}, this run's {self.shape}. Restore the config.yaml that the run was started "
                "with."
            )

    def require_sequences(self) -> None:
        """Checks that the buffer has room for `min_sequences` sequences.

        Raises:
            UserError: If it has not.
        """
        setting, length = f"algo.buffer_size={self.capacity}", self.sequence_length
        if length < 1 or self.capacity < 1:
            raise UserError(f"{setting}: buffer size and sequence length ({length}) must be at least 1.")
        if self.timesteps < length:
            raise UserError(
                f"{setting}: holds {self.timesteps} timesteps of {self.num_envs} environments, less than one sequence "
                f"of {length} steps. Set algo.buffer_size={length * self.num_envs} or more."
            )
        most = self._max_starts(self.timesteps - length + 1)
        if most < self.min_sequences:
            raise UserError(
                f"{setting}: holds at most {most} sequences of {length} steps, less than "
                f"algo.batch_size={self.min_sequences}. Set a larger algo.buffer_size or a smaller algo.batch_size."
            )
