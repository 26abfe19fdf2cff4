"""The rows of a replay: one ring of tensors, in memory, on a device, or in files that are mapped into memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.rundir import disk_error
from coterie.types import Action, TeamSpec, Tree, Window, tree_leaves, tree_map

Store = Literal["device", "cpu", "disk"]

ROWS = ("obs", "action_mask", "state", "alive", "first", "acted")
STEPS = ("action", "reward", "group_reward", "terminated", "truncated", "episode_terminated", "episode_truncated")


class Ring:
    """The newest rows of a stream of windows, `size` of them; row `r` of the stream lies at place `r % size`.

    Every leaf of a window is one contiguous tensor [size, B, ...], so that any rows of any copies are read by one
    `index_select` a leaf. `rows` holds what is seen (also of the row to look ahead), `steps` what acting on it brought.
    """

    def __init__(self, size: int, copies: int, store: Store, device: torch.device, rows: Tree, steps: Tree):
        """rows, steps: trees of tensors [any, B, ...] that have the types and shapes of what will be stored."""
        self.size, self.copies = size, copies
        self.device = device if store == "device" else torch.device("cpu")
        self._files = _Files() if store == "disk" else None
        self.rows = tree_map(lambda x: self.zeros(size, x), rows)
        self.steps = tree_map(lambda x: self.zeros(size, x), steps)

    def zeros(self, count: int, like: Tensor) -> Tensor:
        """A tensor [count, ..] for entries like those of `like` [any, ..], where the ring has its memory."""
        shape = (count, *like.shape[1:])
        if self._files is not None:
            return self._files.zeros(shape, like.dtype)
        return torch.zeros(shape, dtype=like.dtype, device=self.device)

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in tree_leaves((self.rows, self.steps)))

    def write(self, at: int, rows: Tree, steps: Tree) -> None:
        """Puts trees of tensors [n, B, ...] at the rows `at`, `at + 1`, ... of the stream."""
        tree_map(lambda store, x: self._put(store, at, x), self.rows, rows)
        tree_map(lambda store, x: self._put(store, at, x), self.steps, steps)

    def _put(self, store: Tensor, at: int, x: Tensor) -> None:
        begin = at % self.size
        fits = min(len(x), self.size - begin)
        store[begin : begin + fits].copy_(x[:fits])
        if fits < len(x):
            store[: len(x) - fits].copy_(x[fits:])

    def read(self, start: int, stop: int) -> tuple[Tree, Tree]:
        """Copies of the rows [start, stop) of the stream: rows and steps, [stop - start, B, ...] each."""
        places = torch.arange(start, stop, device=self.device) % self.size
        return tree_map(lambda x: x.index_select(0, places), (self.rows, self.steps))

    def take(self, places: Tensor, steps: int) -> tuple[Tree, Tree]:
        """Rows [M, S, ..] and the first `steps` of the M steps [steps, S, ..] at `places` [M, S] = row place x B +
        copy.
        """
        count = places.shape[1]
        flat = places.reshape(-1)
        head = flat[: steps * count]

        def gather(index: Tensor, x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, index).view(len(index) // count, count, *x.shape[2:])

        return tree_map(lambda x: gather(flat, x), self.rows), tree_map(lambda x: gather(head, x), self.steps)


class _Files:
    """Tensors in files of a temporary folder, mapped into memory; the disk gets its space back however this ends."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="coterie-replay-"))
        self._count = 0
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros in a file of its own. UserError if the disk has no room for it."""
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
            raise disk_error("the replay in the temporary folder", self._folder, error) from error
        tensor = torch.from_file(str(path), shared=True, size=numel, dtype=dtype).view(shape)
        if os.name != "nt":  # the mapping lives on without the name, and a killed process leaves nothing behind
            path.unlink()
        return tensor


def split(window: Window, states: tuple[str, ...], small: torch.dtype) -> tuple[Tree, Tree]:
    """What a replay stores of a window: rows [T + 1, B, ..] and steps [T, B, ..].

    states: names of the states that are stored; small: the type that holds every discrete choice.
    """
    rows: dict[str, Any] = {name: getattr(window, name) for name in ROWS}
    rows["state"] = {name: window.state[name] for name in states}
    steps = {name: getattr(window, name) for name in STEPS}
    steps["action"] = tree_map(lambda x: x if x.is_floating_point() else x.to(small), window.action)
    return tree_map(_single, (rows, steps))


def _single(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def join(rows: Tree, steps: Tree, carry: Tree, device: torch.device) -> Window:
    """The window of rows and steps that `split` made, on `device`."""
    rows, steps, carry = tree_map(lambda x: x.to(device, non_blocking=True), (rows, steps, carry))
    steps["action"] = tree_map(lambda x: x if x.is_floating_point() else x.long(), steps["action"])
    return Window(**rows, **steps, record={}, carry=carry)


def plain(steps: Tree) -> dict[str, Any]:
    """Steps as dicts of tensors alone, which a checkpoint can hold; `record_of` makes steps of them again."""
    return steps | {"action": {role: vars(action) for role, action in steps["action"].items()}}


def record_of(steps: dict[str, Any]) -> Tree:
    """What `plain` was given."""
    names = {field.name for field in fields(Action)}
    return steps | {
        "action": {r: Action(**{k: v for k, v in a.items() if k in names}) for r, a in steps["action"].items()}
    }


def likeness(team: TeamSpec, copies: int, states: tuple[str, ...], small: torch.dtype) -> tuple[Tree, Tree]:
    """Rows and steps [1, B, ..] as windows of the team will have them, without memory; every choice has a mask."""

    def like(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((1, copies, *shape), dtype=dtype, device="meta")

    def seen(space: spaces.Space, n: int) -> Tree:
        if isinstance(space, spaces.Dict):
            return {name: seen(part, n) for name, part in space.spaces.items()}
        kind = np.dtype(space.dtype or np.float32)
        dtype = torch.float32 if kind.kind == "f" else getattr(torch, kind.name, torch.int64)
        return like(n, *(space.shape or ()), dtype=dtype)

    def flag(*shape: int) -> Tensor:
        return like(*shape, dtype=torch.bool)

    n = team.n
    rows = {
        "obs": {role.name: seen(role.observation_space, role.n) for role in team.roles},
        "action_mask": {r.name: flag(r.n, r.action.mask_size) for r in team.roles if r.action.mask_size},
        "state": {name: like(team.state_sizes[name]) for name in states},
        "alive": flag(n), "first": flag(n), "acted": flag(),
    }  # fmt: skip
    steps = {
        "action": {
            role.name: Action(
                like(role.n, len(role.action.choices), dtype=small) if role.action.choices else None,
                like(role.n, role.action.continuous) if role.action.continuous else None,
            )
            for role in team.roles
        },
        "reward": like(n), "group_reward": like(len(team.groups)), "terminated": flag(n), "truncated": flag(n),
        "episode_terminated": flag(), "episode_truncated": flag(),
    }  # fmt: skip
    return rows, steps
