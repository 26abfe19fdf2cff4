"""The arrays that copies write to and read actions from, in the memory of this process or shared with others."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.envs.hosting.instance import Layout, Place

_ALIGN = 64  # bytes of a line of cache


class Board:
    """Arrays [B, ...] of everything that `copies` copies show, bring and are told, side by side in one block.

    obs: by role, by sensor; mask, discrete, continuous: by role; flags: [B, 2 N + 2] bool, what `terminated`,
    `truncated` and `ended` are views of; closing: [B] bool, the row shown ends an episode; lost: [B] bool, the copy was
    begun anew because its worker failed. memory: a buffer of `size(layout, copies)` bytes; its own if not given.
    block, arrays: all of it as bytes, and every array by what it is.
    """

    def __init__(self, layout: Layout, copies: int, memory: memoryview | None = None):
        self.layout, self.copies = layout, copies
        places, size = _places(layout, copies)
        block = np.zeros(size, np.uint8) if memory is None else np.frombuffer(memory, np.uint8, size)
        found = {
            name: block[at : at + dtype.itemsize * int(np.prod(shape))].view(dtype).reshape(shape)
            for name, (at, shape, dtype) in places.items()
        }
        self.block, self.arrays = block, found
        spec = layout.spec
        self.obs = {
            role: {sensor.name: found[f"obs {role} {sensor.name}"] for sensor in observer.sensors}
            for role, observer in layout.observers.items()
        }
        self.mask = {role: found[f"mask {role}"] for role in layout.masked}
        self.state = {name: found[f"state {name}"] for name in spec.state_sizes}
        self.discrete = {r.name: found[f"discrete {r.name}"] for r in spec.roles if r.action.choices}
        self.continuous = {r.name: found[f"continuous {r.name}"] for r in spec.roles if r.action.continuous}
        self.alive, self.reward, self.group_reward = found["alive"], found["reward"], found["group_reward"]
        self.metrics, self.flags = found["metrics"], found["flags"]
        self.terminated, self.truncated = self.flags[:, : spec.n], self.flags[:, spec.n : 2 * spec.n]
        self.ended = self.flags[:, 2 * spec.n :]
        self.closing, self.lost = found["closing"], found["lost"]

    @staticmethod
    def size(layout: Layout, copies: int) -> int:
        """Bytes of memory that a board takes."""
        return _places(layout, copies)[1]

    def place(self, copy: int) -> Place:
        """Where one copy writes."""
        return Place(
            obs={role: {name: x[copy] for name, x in arrays.items()} for role, arrays in self.obs.items()},
            action_mask={role: x[copy] for role, x in self.mask.items()},
            state={name: x[copy] for name, x in self.state.items()},
            alive=self.alive[copy],
            reward=self.reward[copy],
            group_reward=self.group_reward[copy],
            terminated=self.terminated[copy],
            truncated=self.truncated[copy],
            ended=self.ended[copy],
            metrics=self.metrics[copy],
        )


def _places(layout: Layout, copies: int) -> tuple[dict[str, tuple[int, tuple[int, ...], np.dtype]], int]:
    """Where every array lies: offset, shape and dtype by name, and the bytes of all."""
    spec, real, logical = layout.spec, np.float32, np.bool_
    wanted: dict[str, tuple[tuple[int, ...], Any]] = {}
    for role in spec.roles:
        for sensor in layout.observers[role.name].sensors:
            wanted[f"obs {role.name} {sensor.name}"] = (role.n, *sensor.space.shape), sensor.space.dtype
        if role.action.choices:
            wanted[f"discrete {role.name}"] = (role.n, len(role.action.choices)), np.int64
        if role.action.continuous:
            wanted[f"continuous {role.name}"] = (role.n, role.action.continuous), real
        if role.name in layout.masked:
            wanted[f"mask {role.name}"] = (role.n, role.action.mask_size), logical
    wanted |= {f"state {name}": ((size,), real) for name, size in spec.state_sizes.items()}
    wanted |= {"alive": ((spec.n,), logical), "flags": ((2 * spec.n + 2,), logical)}
    wanted |= {"reward": ((spec.n,), real), "group_reward": ((len(spec.groups),), real)}
    wanted |= {"metrics": ((len(spec.metrics),), real), "closing": ((), logical), "lost": ((), logical)}
    found, at = {}, 0
    for name, (shape, kind) in wanted.items():
        dtype, whole = np.dtype(kind), (copies, *shape)
        found[name] = at, whole, dtype
        at += -(-dtype.itemsize * int(np.prod(whole)) // _ALIGN) * _ALIGN
    return found, max(at, _ALIGN)
