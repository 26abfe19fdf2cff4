"""An environment instance with known numbers, and functions to step it by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.external.hosting.instance import EnvBuffers, Instance, Layout
from coterie.envs.external.hosting.shared_arrays import SharedArrays
from coterie.envs.external.spaces import Observer

OBSERVATION, ACTION = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(100)


class Tape(Instance):
    """Two agents observe t and 100 + t and get rewards t and 10 t, their group 100, at step t.

    The second agent terminates at step 3 and returns at the timestep after step 5. The episode terminates at step 7.
    truncate: the second agent is truncated at step 3, and shows its last observation.
    """

    spec = EnvSpec(
        "tape",
        (RoleSpec("all", "all", ("a", "b"), OBSERVATION, ACTION),),
        {},
        agents_can_die=True,
        has_group_reward=True,
    )
    layout = Layout(spec, {"all": Observer(OBSERVATION)})

    def __init__(self, truncate: bool = False) -> None:
        self.truncate = truncate
        self.actions: list[list[Any]] = []
        self.seeds: list[int | None] = []

    def attach(self, buffers: EnvBuffers) -> None:
        self.buffers = buffers

    def reset(self, seed: int | None) -> None:
        self.t = 0
        self.seeds.append(seed)
        self.buffers.alive[...] = True
        self._write()

    def step(self, actions: list[Any]) -> None:
        buffers = self.buffers
        assert not np.concatenate([buffers.reward, buffers.group_reward, buffers.episode_end]).any()
        self.actions.append(list(actions))
        self.t += 1
        alive = buffers.alive.copy()
        buffers.reward[...] = np.array([self.t, 10 * self.t]) * alive
        buffers.group_reward[0] = 100
        if self.t == 3:
            (buffers.truncated if self.truncate else buffers.terminated)[1], buffers.alive[1] = True, False
        if self.t == 5:
            buffers.alive[1] = True
        if self.t == 7:
            buffers.terminated[...] = buffers.episode_end[0] = True
        self._write()

    def _write(self) -> None:
        observed = self.buffers.alive | self.buffers.truncated
        self.buffers.obs["all"][""][:, 0] = np.array([self.t, 100 + self.t]) * observed

    def render(self) -> np.ndarray | None:
        return np.full((2, 2, 3), 9, np.uint8)

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.t = state["t"]

    def close(self) -> None:
        self.buffers.alive[...] = False


def attached(instance: Instance, layout: Layout = Tape.layout, seed: int | None = 0) -> EnvBuffers:
    """Returns the buffers of an instance after its first reset."""
    buffers = SharedArrays(layout, 1).env_buffers(0)
    instance.attach(buffers)
    instance.reset(seed)
    return buffers


def step(instance: Instance, buffers: EnvBuffers, actions: list[Any]) -> None:
    """Clears the buffers as the caller of an instance does, and takes a step."""
    for array in (
        buffers.reward,
        buffers.group_reward,
        buffers.terminated,
        buffers.truncated,
        buffers.episode_end,
        buffers.metrics,
    ):
        array[...] = 0
    instance.step(actions)
