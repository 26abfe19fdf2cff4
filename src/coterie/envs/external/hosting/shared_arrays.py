"""The arrays that environment instances write to and read actions from, in memory that processes can share."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.envs.external.hosting.instance import EnvBuffers, Layout

_ALIGNMENT = 64  # bytes of a cache line


class SharedArrays:
    """Arrays [B, ...] of all observations, results and actions of `num_envs` instances in one block of memory.

    Args:
        layout: Description of the environment.
        num_envs: Number of instances.
        memory: A buffer of `size(layout, num_envs)` bytes; by default newly allocated.

    Attributes:
        block: The whole memory as bytes.
        arrays: Every array by name.
        obs: By role and sensor.
        mask, discrete, continuous: By role.
        state: By name.
        flags: [B, 2 N + 2] bool, of which `terminated`, `truncated` and `episode_end` are views.
        final: [B] bool, the current timestep is the final one of its episode.
        lost: [B] bool, the instance was recreated because its worker failed.
    """

    def __init__(self, layout: Layout, num_envs: int, memory: memoryview | None = None):
        self.layout, self.num_envs = layout, num_envs
        offsets, size = _offsets(layout, num_envs)
        block = np.zeros(size, np.uint8) if memory is None else np.frombuffer(memory, np.uint8, size)
        found = {
            name: block[at : at + dtype.itemsize * int(np.prod(shape))].view(dtype).reshape(shape)
            for name, (at, shape, dtype) in offsets.items()
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
        self.episode_end = self.flags[:, 2 * spec.n :]
        self.final, self.lost = found["final"], found["lost"]

    @staticmethod
    def size(layout: Layout, num_envs: int) -> int:
        """Returns the number of bytes of the arrays."""
        return _offsets(layout, num_envs)[1]

    def env_buffers(self, env_index: int) -> EnvBuffers:
        """Returns the views that one instance writes to."""
        return EnvBuffers(
            obs={role: {name: x[env_index] for name, x in arrays.items()} for role, arrays in self.obs.items()},
            action_mask={role: x[env_index] for role, x in self.mask.items()},
            state={name: x[env_index] for name, x in self.state.items()},
            alive=self.alive[env_index],
            reward=self.reward[env_index],
            group_reward=self.group_reward[env_index],
            terminated=self.terminated[env_index],
            truncated=self.truncated[env_index],
            episode_end=self.episode_end[env_index],
            metrics=self.metrics[env_index],
        )


def _offsets(layout: Layout, num_envs: int) -> tuple[dict[str, tuple[int, tuple[int, ...], np.dtype]], int]:
    """Offset, shape and dtype of every array by name, and the number of bytes in all."""
    spec, real, logical = layout.spec, np.float32, np.bool_
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {}
    for role in spec.roles:
        for sensor in layout.observers[role.name].sensors:
            shapes[f"obs {role.name} {sensor.name}"] = (role.n, *sensor.space.shape), sensor.space.dtype
        if role.action.choices:
            shapes[f"discrete {role.name}"] = (role.n, len(role.action.choices)), np.int64
        if role.action.continuous:
            shapes[f"continuous {role.name}"] = (role.n, role.action.continuous), real
        if role.name in layout.masked:
            shapes[f"mask {role.name}"] = (role.n, role.action.mask_size), logical
    shapes |= {f"state {name}": ((size,), real) for name, size in spec.state_sizes.items()}
    shapes |= {"alive": ((spec.n,), logical), "flags": ((2 * spec.n + 2,), logical)}
    shapes |= {"reward": ((spec.n,), real), "group_reward": ((len(spec.groups),), real)}
    shapes |= {"metrics": ((len(spec.metrics),), real), "final": ((), logical), "lost": ((), logical)}
    offsets, at = {}, 0
    for name, (shape, kind) in shapes.items():
        dtype, batched = np.dtype(kind), (num_envs, *shape)
        offsets[name] = at, batched, dtype
        at += -(-dtype.itemsize * int(np.prod(batched)) // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(at, _ALIGNMENT)
