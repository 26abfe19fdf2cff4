"""Instances of another library's environment as one vectorized environment, whatever steps them.

With double buffering, workers step one half of the environments while the policies act on the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from coterie.config.samplers import Sampler
from coterie.core.errors import EnvironmentFailedError, ReportedError, UserError
from coterie.core.tree import Tree
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.parameters import Parameter, RandomizableEnv
from coterie.envs.contract.partial_step import PartitionedEnv, concat_envs, concat_steps, split_envs
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.hosting.randomized import EnvFactory
from coterie.envs.external.hosting.shared_arrays import SerialEnvs, SharedArrays
from coterie.envs.registry import place_of


class EnvBackend(ABC):
    """Steps environment instances, in this process or by workers.

    Actions are in the shared arrays when `send` is called, and results when `receive` returns. Every `send` is followed
    by `receive` before anything else.
    """

    shared: SharedArrays
    factory: EnvFactory | None
    """Recreates instances with other parameters; None if parameters cannot be randomized."""
    limits_close: bool = False
    """True if `close` returns in limited time by itself."""
    dropped: np.ndarray = np.zeros(0, np.bool_)
    """Environments whose episodes were dropped since the last step, which the next step returns as lost; or empty."""

    @abstractmethod
    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        """Samples these parameters for every episode that starts from now on.

        Raises:
            UserError: For parameters that the environment does not have.
        """

    @abstractmethod
    def reset(self, seed: int | None) -> None:
        """Starts a new episode in every instance. Each derives its own seed from `seed`."""

    @abstractmethod
    def send(self) -> None:
        """Starts a step of every instance. It may be over when this returns."""

    @abstractmethod
    def receive(self) -> None:
        """Waits until the step is over."""

    @abstractmethod
    def state_dict(self) -> list[dict[str, Any]]:
        """Returns the state of every instance."""

    @abstractmethod
    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restores the states that `state_dict` returned."""

    @abstractmethod
    def render(self, env_index: int) -> np.ndarray | None:
        """Returns an image of one instance at the library's own size, None if it has no images."""

    @abstractmethod
    def close(self) -> None:
        """Releases what the instances hold. May be called more than once."""


@final
class SerialBackend(EnvBackend):
    """Steps all instances in this process, one after the other.

    Exceptions of an instance are raised as EnvironmentFailedError, a UserError as it is.

    Args:
        make: Makes an instance.
        layout: Description of the environment.
        num_envs: Number of instances.
        first_index: Index of the first instance within the whole vectorized environment.
        factory: As in `EnvBackend`.
    """

    def __init__(
        self,
        make: Callable[[], Instance],
        layout: Layout,
        num_envs: int,
        *,
        first_index: int = 0,
        factory: EnvFactory | None = None,
    ):
        self.shared, self.factory = SharedArrays(layout, num_envs), factory
        self._envs = SerialEnvs(make, self.shared, start=0, count=num_envs, first_index=first_index)

    @property
    def instances(self) -> list[Instance]:
        return self._envs.instances

    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        assert self.factory is not None
        self._envs.set_samplers(self.factory, samplers)

    def reset(self, seed: int | None) -> None:
        with self._wrap_errors("reset", "reset"):
            self._envs.reset(seed)

    def send(self) -> None:
        with self._wrap_errors("a step", "step"):
            self._envs.step()

    @contextmanager
    def _wrap_errors(self, when: str, method: str) -> Iterator[None]:
        """Adds the name of the environment and the place of its code to errors."""
        name = self.shared.layout.spec.name
        try:
            yield
        except UserError as error:
            raise located(error, name, method) from error
        except (ReportedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise EnvironmentFailedError.of(name, when, error, place_of(name, method)) from error

    def receive(self) -> None:
        pass  # the step was over when `send` returned

    def state_dict(self) -> list[dict[str, Any]]:
        return self._envs.state_dict()

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        self._envs.load_state_dict(states)

    def render(self, env_index: int) -> np.ndarray | None:
        with self._wrap_errors("render", "render"):
            return self._envs.instances[env_index].render()

    def close(self) -> None:
        self._envs.close()


def located(error: Exception, name: str, method: str) -> UserError:
    """Returns the error of what an environment returned, with its name and the place of its `method` if it is known."""
    place = place_of(name, method)
    return UserError(f"{name} ({place}): {error}" if place else str(error))


@final
class BackendVectorEnv(RandomizableEnv):
    """The instances of a backend as a vectorized environment. Timesteps and steps are copied from its shared arrays.

    Args:
        backend: Steps the instances.
        seed: Seed of the first reset, if `reset` is not given one.
        device: Device of the tensors.
    """

    def __init__(self, backend: EnvBackend, seed: int, device: torch.device | str):
        self.backend, self.limits_close = backend, backend.limits_close
        self.spec, self.num_envs = backend.shared.layout.spec, backend.shared.num_envs
        self.device = torch.device(device)
        self._seed: int | None = seed  # None after the first reset
        n = self.spec.n
        self._all_true = torch.ones(self.num_envs, n, dtype=torch.bool, device=self.device)
        self._all_false = torch.zeros_like(self._all_true)
        self._zero_group_reward = torch.zeros(self.num_envs, len(self.spec.groups), device=self.device)
        self._was_alive = np.zeros((self.num_envs, n), np.bool_)  # at the previous timestep
        self._was_final = np.zeros(self.num_envs, np.bool_)  # the previous timestep was the final one of its episode
        self._dropped: np.ndarray | None = None  # as `EnvBackend.dropped`, in a state that was loaded
        self._is_cpu = self.device.type == "cpu"

    def parameters(self) -> dict[str, Parameter]:
        return {} if self.backend.factory is None else self.backend.factory.parameters()

    def check_parameters(self, samplers: Mapping[str, Sampler]) -> None:
        if self.backend.factory is None:
            raise UserError(f"{self.spec.name} was not made by name, so its parameters cannot be changed")
        self.backend.factory.check(self.backend.shared.layout, samplers)

    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        if self.backend.factory is None:
            self.check_parameters(samplers)
        self.backend.set_samplers(samplers)

    def reset(self, seed: int | None = None) -> Timestep:
        seed, self._seed = self._seed if seed is None else seed, None
        self.backend.reset(seed)
        self._dropped = None
        self._was_alive[...] = False
        self._was_final[...] = True
        return self._timestep()

    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        self.send(action)
        return self.receive()

    def send(self, action: dict[str, Action]) -> None:
        """Starts a step, which `receive` waits for. Workers step their environments meanwhile."""
        shared = self.backend.shared
        for role, choices in shared.discrete.items():
            np.copyto(choices, _numpy(action[role].discrete))
        for role, numbers in shared.continuous.items():
            np.copyto(numbers, _numpy(action[role].continuous))
        np.copyto(self._was_final, shared.final)
        if self.spec.agents_can_die:
            np.copyto(self._was_alive, shared.alive)
        self.backend.send()

    def receive(self) -> tuple[Step, Timestep]:
        """Waits for the step that `send` started, and returns its result and the next timestep."""
        self.backend.receive()
        if self._dropped is None:
            return self._step(), self._timestep()
        lost = self.backend.shared.lost
        lost |= self._dropped
        self._dropped = None
        result = self._step(), self._timestep()
        lost[...] = False
        return result

    def _step(self) -> Step:
        shared = self.backend.shared
        has_group_reward, flagged = self.spec.has_group_reward, bool(np.count_nonzero(shared.flags))
        false, env_false = self._all_false, self._all_false[:, 0]  # mostly; nothing has to be allocated then
        return Step(
            reward=self._copy(shared.reward),
            group_reward=self._copy(shared.group_reward) if has_group_reward else self._zero_group_reward,
            terminated=self._copy(shared.terminated) if flagged else false,
            truncated=self._copy(shared.truncated) if flagged else false,
            episode_terminated=self._copy(shared.episode_end[:, 0]) if flagged else env_false,
            episode_truncated=self._copy(shared.episode_end[:, 1]) if flagged else env_false,
            metrics={name: self._copy(shared.metrics[:, k]) for k, name in enumerate(self.spec.metrics)},
            lost=self._copy(shared.lost) if np.count_nonzero(shared.lost) else None,
        )

    def _timestep(self) -> Timestep:
        shared = self.backend.shared
        obs: dict[str, Tree] = {}
        for role, arrays in shared.obs.items():
            sensors = {name: self._copy(x) for name, x in arrays.items()}
            obs[role] = sensors.get("", sensors)
        starts = self._was_final | shared.lost
        alive, first = self._all_true, self._all_false
        if self.spec.agents_can_die:
            alive = self._copy(shared.alive)
            respawned = shared.terminated & ~shared.final[:, None]  # alive again in the step that ended its last life
            first = self._to_device(shared.alive & (starts[:, None] | ~self._was_alive | respawned))
        elif np.count_nonzero(starts):
            first = self._to_device(starts[:, None].repeat(self.spec.n, axis=1))
        return Timestep(
            obs=obs,
            action_mask={role: self._copy(x) for role, x in shared.mask.items()},
            state={name: self._copy(x) for name, x in shared.state.items()},
            alive=alive,
            first=first,
            acted=self._to_device(~shared.final) if np.count_nonzero(shared.final) else self._all_true[:, 0],
        )

    def _copy(self, array: np.ndarray) -> Tensor:
        """A new tensor with the values of a shared array."""
        return self._to_device(array.copy())

    def _to_device(self, array: np.ndarray) -> Tensor:
        """The tensor of an array that nothing else refers to."""
        tensor = torch.from_numpy(array)
        return tensor if self._is_cpu else tensor.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        if not self.spec.exact_resume:
            return {}
        envs = [] if self._seed is not None else self.backend.state_dict()
        state = {"seed": self._seed, "envs": envs, "alive": torch.from_numpy(self.backend.shared.alive.copy())}
        dropped = [x for x in (self.backend.dropped, self._dropped) if x is not None and x.any()]
        return state | ({"dropped": torch.from_numpy(np.logical_or.reduce(dropped))} if dropped else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.spec.exact_resume:
            raise UserError(f"{self.spec.name} cannot save its state. Start new episodes with reset(seed).")
        self._seed = state["seed"]
        if self._seed is None:
            self.backend.load_state_dict(state["envs"])
            self.backend.shared.alive[...] = state["alive"].cpu().numpy()
        self._dropped = state["dropped"].cpu().numpy() if "dropped" in state else None

    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        native = self.backend.render(env_index)
        if not isinstance(native, np.ndarray) or native.ndim != 3:
            raise UserError(f"{self.spec.name} cannot be drawn: it has no render mode 'rgb_array'")
        scale = size / max(native.shape[:2])
        height, width = (max(1, round(scale * side)) for side in native.shape[:2])
        image = Image.fromarray(np.ascontiguousarray(native, dtype=np.uint8))
        return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS)).copy()

    def close(self) -> None:
        self.backend.close()


def _numpy(component: Tensor | None) -> np.ndarray:
    assert component is not None
    return component.numpy() if component.is_cpu else component.cpu().numpy()


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
