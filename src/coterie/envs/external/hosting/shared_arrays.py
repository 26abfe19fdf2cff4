"""Environment instances that one process steps one after the other, and the arrays that they write to and read actions
from, in memory that processes can share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.config.samplers import Sampler
from coterie.core.seeds import seed_of
from coterie.core.waiting import Interruption
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout
from coterie.envs.external.hosting.randomized import EnvFactory, RandomizedInstance
from coterie.envs.external.spaces import Actuator

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


class SerialEnvs:
    """Consecutive instances of shared arrays: resets them and steps them with the actions found there.

    Args:
        make: Makes an instance.
        shared: Arrays of all instances of the backend.
        start: Index of the first instance within the arrays.
        count: Number of instances.
        first_index: Index of the first instance within the whole vectorized environment; by default `start`.
    """

    def __init__(
        self,
        make: Callable[[], Instance],
        shared: SharedArrays,
        *,
        start: int,
        count: int,
        first_index: int | None = None,
    ):
        self._spec, self._first_index = shared.layout.spec, start if first_index is None else first_index
        self.instances = [make() for _ in range(count)]
        self._layout, self._buffers = shared.layout, [shared.env_buffers(start + k) for k in range(count)]
        for instance, buffers in zip(self.instances, self._buffers, strict=True):
            instance.attach(buffers)
        own = slice(start, start + count)
        self._roles = [
            (
                role.n,
                Actuator(role.action_space),
                shared.discrete[role.name][own] if role.name in shared.discrete else None,
                shared.continuous[role.name][own] if role.name in shared.continuous else None,
            )
            for role in self._spec.roles
        ]
        self._final, self._flags = shared.final[own], shared.flags[own]
        self._terminated, self._truncated = shared.episode_end[own, 0], shared.episode_end[own, 1]
        self._step_results = [x[own] for x in (shared.reward, shared.group_reward, shared.metrics) if x.size]

    def reset(self, seed: int | None, only: Sequence[int] | None = None) -> None:
        """Starts new episodes.

        Args:
            seed: Seed of the whole vectorized environment, from which every instance derives its own.
            only: Indices of the instances to reset, 0 to `count - 1`; by default all.
        """
        for k in range(len(self.instances)) if only is None else only:
            own = None if seed is None else seed_of(seed, "env", self._spec.name, self._first_index + k) >> 32
            self.instances[k].reset(own)  # 31 bits, which every library accepts
            self._final[k] = False

    def set_samplers(self, factory: EnvFactory, samplers: Mapping[str, Sampler]) -> None:
        """Samples these parameters for every episode that starts from now on.

        Raises:
            UserError: For parameters that the environment does not have.
        """
        for k, instance in enumerate(self.instances):
            if not isinstance(instance, RandomizedInstance):
                seed = seed_of(0, "parameters", self._first_index + k)
                instance = self.instances[k] = RandomizedInstance(
                    instance, factory, layout=self._layout, buffers=self._buffers[k], seed=seed
                )
            instance.set_samplers(samplers)

    def step(self) -> None:
        """Steps every instance; those at the final timestep of an episode are reset instead."""
        for array in self._step_results:
            array.fill(0)
        self._flags.fill(False)
        actions = self._native_actions()
        if not np.count_nonzero(self._final):
            for instance, own in zip(self.instances, actions, strict=True):
                instance.step(own)
        else:
            for instance, own, final in zip(self.instances, actions, self._final.tolist(), strict=True):
                if final:
                    instance.reset(None)
                else:
                    instance.step(own)
        np.logical_or(self._terminated, self._truncated, out=self._final)

    def _native_actions(self) -> list[list[Any]]:
        """Native actions by instance and agent, agents in the order of the spec."""
        by_role = [
            (
                n,
                actuator(
                    None if choices is None else choices.reshape(-1, choices.shape[-1]),
                    None if numbers is None else numbers.reshape(-1, numbers.shape[-1]),
                ),
            )
            for n, actuator, choices, numbers in self._roles
        ]
        if len(by_role) == 1 and by_role[0][0] == 1:
            return [[action] for action in by_role[0][1]]
        return [
            [action for n, native in by_role for action in native[k * n : (k + 1) * n]]
            for k in range(len(self.instances))
        ]

    def state_dict(self) -> list[dict[str, Any]]:
        """Returns the state of every instance."""
        return [
            instance.state_dict() | {"final": bool(final)}
            for instance, final in zip(self.instances, self._final, strict=True)
        ]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores the states that `state_dict` returned."""
        for k, (instance, state) in enumerate(zip(self.instances, states, strict=True)):
            instance.load_state_dict({name: value for name, value in state.items() if name != "final"})
            self._final[k] = state["final"]

    def close(self) -> None:
        """Closes all instances. The first exception that one of them raises is raised after all are closed."""
        errors = [_close(instance) for instance in self.instances]
        first = next((error for error in errors if error is not None), None)
        if first is not None:
            raise first


def _close(instance: Instance) -> BaseException | None:
    """Closes an instance, and returns the exception that it raises, if any."""
    try:
        instance.close()
    except (KeyboardInterrupt, Interruption):
        raise
    except BaseException as error:
        return error
    return None
