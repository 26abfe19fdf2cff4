"""Memory of a replay buffer: checked before training starts, allocated when the first rollout is added."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.algos.replay.spec import ReplaySpec
from coterie.core.errors import UserError
from coterie.core.files import disk_error
from coterie.core.process import format_bytes, free_bytes
from coterie.core.specs import RoleSpec
from coterie.core.tree import Tree, tree_leaves
from coterie.core.types import TIME_LEFT, Action


class MappedFiles:
    """Tensors in files of a temporary folder, which the operating system frees however the process ends."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="coterie-replay-"))
        self._count = 0
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Returns a tensor of zeros in a new file.

        Raises:
            UserError: If the disk is full.
        """
        numel = int(torch.Size(shape).numel())
        if numel == 0:
            return torch.zeros(shape, dtype=dtype)
        nbytes = numel * dtype.itemsize
        path = self._folder / str(self._count)
        self._count += 1
        try:
            with open(path, "wb") as file:
                if hasattr(os, "posix_fallocate"):  # a hole that cannot be filled later would kill the process
                    os.posix_fallocate(file.fileno(), 0, nbytes)
                else:
                    file.truncate(nbytes)
        except OSError as error:
            raise disk_error("the replay buffer in the temporary folder", self._folder, error) from error
        tensor = torch.from_file(str(path), shared=True, size=numel, dtype=dtype).view(shape)
        if os.name != "nt":  # the mapping outlasts the name, and a killed process leaves no file
            path.unlink()
        return tensor


_unchecked: ContextVar[bool] = ContextVar("unchecked", default=False)


@contextlib.contextmanager
def no_memory_check() -> Iterator[None]:
    """Within this context, replay buffers are not checked for their size, as nothing will be added to them."""
    token = _unchecked.set(True)
    try:
        yield
    finally:
        _unchecked.reset(token)


class MemoryReservation:
    """Memory of a replay buffer that was created and is not allocated yet.

    Raises:
        UserError: If the buffer does not fit into memory next to the other reservations.
    """

    def __init__(self, spec: ReplaySpec):
        self.nbytes = expected_nbytes(spec)
        self.place = "disk" if spec.storage == "disk" else str(spec.storage_device)
        if not _unchecked.get():
            self._require_memory(spec)
        _reservations.add(self)

    def _free(self, spec: ReplaySpec) -> int | None:
        """Free bytes, minus those that other buffers reserved."""
        free = free_bytes(spec.storage, spec.device)
        reserved = sum(other.nbytes for other in _reservations if other.place == self.place)
        return None if free is None else max(0, free - reserved)

    def _require_memory(self, spec: ReplaySpec) -> None:
        if (free := self._free(spec)) is None or self.nbytes <= free:
            return
        gc.collect()  # others may be garbage
        if self.nbytes <= (free := self._free(spec) or 0):
            return
        where = "the temporary folder's disk" if spec.storage == "disk" else "memory"
        where = str(spec.storage_device) if spec.storage_device.type != "cpu" else where
        fits = free / self.nbytes * spec.capacity
        fits = int(fits // (unit := 10 ** max(0, int(math.log10(max(fits, 1))) - 1)) * unit)
        smaller = f"algo.buffer_size={fits} or " if fits else ""
        other = "TMPDIR to a folder on a larger disk"
        if spec.storage != "disk" and ((room := free_bytes("disk", spec.device)) is None or self.nbytes <= room):
            other = "algo.buffer_storage=disk"
        elif spec.storage != "disk":
            other = f"algo.buffer_storage=disk and {other}"
        raise UserError(
            f"algo.buffer_size={spec.capacity} does not fit: a replay buffer of {spec.capacity:,} steps needs "
            f"{format_bytes(self.nbytes)} of {where}, and {format_bytes(free)} are free. Set {smaller}{other}."
        )


_reservations: weakref.WeakSet[MemoryReservation] = weakref.WeakSet()


def expected_nbytes(spec: ReplaySpec) -> int:
    """Bytes of a full replay buffer: timesteps, stored hidden states and the index of its sequences."""
    per_timestep = sum(x.nbytes for x in tree_leaves(example_rollout(spec)))
    per_rollout = sum(x.nbytes for x in tree_leaves(spec.hidden_state))
    return (spec.timesteps + 1) * per_timestep + spec.max_rollouts * per_rollout + index_nbytes(spec)


def index_nbytes(spec: ReplaySpec) -> int:
    """Bytes of the index of sequences, to one percent."""
    marks = (spec.timesteps + 1) * spec.num_envs
    return marks + (8 * marks * 33 // 32 if spec.priority_alpha > 0 else 8 * spec.max_sequences)


def describe(spec: ReplaySpec, nbytes: int) -> str:
    """Returns one line for the user, such as `replay buffer of 5,200 steps: 1.2 MB in memory`."""
    where = "on disk" if spec.storage == "disk" else "in memory"
    if spec.storage_device.type != "cpu":
        where = f"on {spec.storage_device}"
    return f"replay buffer of {spec.timesteps * spec.num_envs:,} steps: {format_bytes(nbytes)} {where}"


def example_rollout(spec: ReplaySpec) -> tuple[Tree, Tree]:
    """Timesteps and steps [1, B, ..] on the meta device, as rollouts of the team are stored; all actions have masks."""
    team = spec.team

    def like(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((1, spec.num_envs, *shape), dtype=dtype, device="meta")

    def observation(space: spaces.Space, n: int) -> Tree:
        if isinstance(space, spaces.Dict):
            return {name: observation(part, n) for name, part in space.spaces.items()}
        kind = np.dtype(space.dtype or np.float32)
        dtype = torch.float32 if kind.kind == "f" else getattr(torch, kind.name, torch.int64)
        return like(n, *(space.shape or ()), dtype=dtype)

    def flag(*shape: int) -> Tensor:
        return like(*shape, dtype=torch.bool)

    def action(role: RoleSpec) -> Action:
        return Action(
            like(role.n, len(role.action.choices), dtype=spec.discrete_dtype) if role.action.choices else None,
            like(role.n, role.action.continuous) if role.action.continuous else None,
        )

    n = team.n
    timesteps: dict[str, Tree] = {
        "obs": {role.name: observation(role.observation_space, role.n) for role in team.roles},
        "action_mask": {r.name: flag(r.n, r.action.mask_size) for r in team.roles if r.action.mask_size},
        "state": {name: like(1 if name == TIME_LEFT else team.state_sizes[name]) for name in spec.states},
        "alive": flag(n), "first": flag(n), "acted": flag(),
    }  # fmt: skip
    if roles := spec.other_roles:
        timesteps["others"] = {
            "obs": {role.name: observation(role.observation_space, role.n) for role in roles},
            "action_mask": {r.name: flag(r.n, r.action.mask_size) for r in roles if r.action.mask_size},
            "alive": flag(sum(role.n for role in roles)),
            "action": {role.name: vars(action(role)) for role in roles},
        }
    steps = {
        "action": {role.name: action(role) for role in team.roles},
        "reward": like(n), "group_reward": like(len(team.groups)), "terminated": flag(n), "truncated": flag(n),
        "episode_terminated": flag(), "episode_truncated": flag(),
    }  # fmt: skip
    return timesteps, steps


def allocator(spec: ReplaySpec) -> Callable[[tuple[int, ...], torch.dtype], Tensor]:
    """Returns a function that allocates zeros of a shape and type where the data is stored."""

    def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=spec.storage_device)

    return MappedFiles().zeros if spec.storage == "disk" else zeros


def allocated_nbytes(spec: ReplaySpec, data: Tree) -> int:
    """Bytes of tensors and of the index of sequences."""
    return sum(x.nbytes for x in tree_leaves(data)) + index_nbytes(spec)
