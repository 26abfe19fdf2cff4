"""Double buffering: workers step one half of the environments while the policies act on the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch

from coterie.config.samplers import Sampler
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.parameters import Parameter, RandomizableEnv
from coterie.envs.contract.partial_step import PartitionedEnv, concat_envs, concat_steps, split_envs
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv


@final
class DoubleBufferedEnv(PartitionedEnv, RandomizableEnv):
    """Two environments with backends of their own as one. Environments of the second follow those of the first."""

    def __init__(self, first: BackendVectorEnv, second: BackendVectorEnv):
        self._halves = first, second
        self._sizes = first.num_envs, second.num_envs
        self.limits_close = first.limits_close and second.limits_close
        self.spec, self.num_envs, self.device = first.spec, sum(self._sizes), first.device

    @property
    def parts(self) -> tuple[BackendVectorEnv, BackendVectorEnv]:
        return self._halves

    def parameters(self) -> dict[str, Parameter]:
        return self._halves[0].parameters()

    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        self._halves[0].check_parameters(samplers)

    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        for half in self._halves:
            half.set_samplers(samplers)

    def reset(self, seed: int | None = None) -> Timestep:
        return concat_envs([half.reset(seed) for half in self._halves])

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        for half, own in zip(self._halves, split_envs(action, self._sizes), strict=True):
            half.send(own)
        steps, timesteps = zip(*(half.receive() for half in self._halves), strict=True)
        return concat_steps(steps), concat_envs(timesteps)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of a single environment of the same size: a run can be resumed with either."""
        one, other = (half.state_dict() for half in self._halves)
        if not one:
            return {}
        return {
            "seed": one["seed"],
            "envs": one["envs"] + other["envs"],
            "alive": torch.cat([one["alive"], other["alive"]]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        middle, envs, alive = self._sizes[0], state.get("envs", []), state.get("alive")
        for half, own in zip(self._halves, (slice(None, middle), slice(middle, None)), strict=True):
            half.load_state_dict(state | {"envs": envs[own], "alive": None if alive is None else alive[own]})

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        second = env_index >= self._sizes[0]
        return self._halves[second].render(env_index - second * self._sizes[0], size)

    def close(self) -> None:
        for half in self._halves:
            half.close()
