"""The vectorized environment interface: environments that are stepped together and reset on the next step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from coterie.core.errors import EnvironmentFailedError, ReportedError, UserError
from coterie.core.markup import Markup, element, join, paragraphs
from coterie.core.specs import EnvSpec
from coterie.core.teams import roles_table
from coterie.core.terminal import print_message
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.closing import close_reported


class VectorEnv(ABC):
    """`B = num_envs` environments of one kind that are reset and stepped together.

    Observations, masks and actions are dictionaries by role with tensors `[B, n, ...]`, `n` agents of the role. Rewards
    and flags are dense tensors `[B, N]` over all `N` agents, in the order of `spec.agents`. See `Timestep` and `Step`.

    **Next-step autoreset.** Episodes end and restart independently of each other:

    1. The step that ends an episode sets `episode_terminated` (the task is over) or `episode_truncated` (a limit was
       reached) and, for every agent that was alive, `terminated` or `truncated`. The timestep that it returns is the
       *final timestep* of the episode: it holds the true last observation, and `acted` is False.
    2. The next step ignores the action of this environment, returns zero rewards and metrics and no flags, and
       returns the first timestep of the next episode, with `first` True for every agent that is alive.

    The successor of every timestep with `acted` True is therefore the timestep that follows it, and
    `next_value = value[1:]`. This is Gymnasium's `AutoresetMode.NEXT_STEP`.

    **Agents that end before their episode.** An agent that is terminated is not alive in the next timestep, unless the
    next life of its slot begins in the same step: then `first` is True there. An agent that is truncated on its own is
    not alive there either, but its true last observation is still shown, so that its value can be bootstrapped. Agents
    that are not alive have zero observations and all-True masks, get no reward, and their actions are ignored.

    `reset` and `step` return new tensors, which callers may keep without copying.

    Attributes:
        spec: Roles, spaces, groups, states and metrics of the environment.
        num_envs: Number of environments `B`.
        device: Device of all tensors that are returned and expected.
    """

    spec: EnvSpec
    num_envs: int
    device: torch.device
    limits_close: bool = False
    """True if `close` returns in limited time by itself, otherwise `close_env` interrupts it."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> Timestep:
        """Starts a new episode in every environment.

        Args:
            seed: Seeds all random number generators: everything that follows is a function of it and of the actions.
                None continues from the current state of the generators.

        Returns:
            The first timestep of the episodes.
        """

    @abstractmethod
    def step(self, action: dict[str, Action]) -> tuple[Step, Timestep]:
        """Advances every environment by one step.

        Args:
            action: Actions by role: `discrete` `[B, n, K]` int64, `continuous` `[B, n, C]` float32 in [-1, 1].
                The environment must not modify them.

        Returns:
            The result of the step (rewards, end flags, metrics) and the next timestep.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns all that is needed to continue, nested dictionaries and lists of tensors and plain values.

        With `spec.exact_resume`, an environment that loads the state continues bit-for-bit.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned; may be called before `reset`."""

    @abstractmethod
    def render(self, env_index: int = 0, size: int = 480) -> np.ndarray:
        """Draws the current state of one environment without changing it.

        Args:
            env_index: Index of the environment, 0 to `num_envs - 1`.
            size: Pixels of the longer side.

        Returns:
            RGB image, uint8 `[H, W, 3]`.

        Raises:
            UserError: If the environment cannot be drawn.
        """

    @abstractmethod
    def close(self) -> None:
        """Releases processes, files and windows. May be called more than once."""

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the roles with their agents and spaces."""
        limit = self.spec.episode_limit
        facts = [f"{self.num_envs} environment{'s' * (self.num_envs != 1)} on {self.device}"]
        facts += ["no step limit" if limit is None else f"episodes of at most {limit} steps"]
        facts += [f"metrics: {', '.join(self.spec.metrics)}"] if self.spec.metrics else []
        title = element("p", element("b", self.spec.name))
        return join((title, paragraphs(["; ".join(facts)]), roles_table(self.spec.roles)))


@dataclass(frozen=True)
class GlobalSettings:
    """Settings of PyTorch and NumPy for the whole process, which an environment may change.

    Attributes:
        dtype: Type of new floating-point tensors.
        device: Device of new tensors.
        has_grad: True if gradients are recorded.
        threads: Number of PyTorch's threads.
        deterministic: True if PyTorch uses deterministic algorithms only.
        floating_errors: NumPy's treatment of floating-point errors, as `np.seterr` takes it.
    """

    dtype: torch.dtype
    device: torch.device
    has_grad: bool
    threads: int
    deterministic: bool
    floating_errors: tuple[tuple[str, Any], ...]

    @classmethod
    def now(cls) -> GlobalSettings:
        """Returns the present settings."""
        return cls(
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            tuple(np.geterr().items()),
        )

    def restore(self, environment: str) -> None:
        """Restores these settings, and prints a line, once for each setting, if an environment has changed any."""
        changed = self.now()
        if changed == self:
            return
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(None if self.device.type == "cpu" else self.device)
        torch.set_grad_enabled(self.has_grad)
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.deterministic)
        np.seterr(**dict(self.floating_errors))
        for field in fields(self):
            was, now = (getattr(settings, field.name) for settings in (self, changed))
            if was != now and (environment, field.name) not in _reported:
                _reported.add((environment, field.name))
                print_message(
                    f"environment '{environment}' changed {_LIBRARY_NAMES[field.name]} for the whole process, which is "
                    "restored after each call. Set the type or device of single tensors instead."
                )


_LIBRARY_NAMES = {
    "dtype": "torch's default dtype",
    "device": "torch's default device",
    "has_grad": "torch's gradient mode",
    "threads": "the number of torch's threads",
    "deterministic": "torch's deterministic mode",
    "floating_errors": "NumPy's treatment of floating-point errors",
}
_reported: set[tuple[str, str]] = set()


def reset_env(env: VectorEnv, seed: int | None = None) -> Timestep:
    """Calls `env.reset(seed)`.

    Raises:
        EnvironmentFailedError: For any exception that is not a one-line error of Coterie already.
    """
    before = GlobalSettings.now()
    try:
        return env.reset(seed)
    except (ReportedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EnvironmentFailedError.of(env.spec.name, "reset", error) from error
    finally:
        before.restore(env.spec.name)


def step_env(env: VectorEnv, action: dict[str, Action]) -> tuple[Step, Timestep]:
    """Calls `env.step(action)`.

    Raises:
        EnvironmentFailedError: For any exception that is not a one-line error of Coterie already, and for what the
            environment returns if it is invalid, such as an observation of another shape.
    """
    dtype, has_grad = torch.get_default_dtype(), torch.is_grad_enabled()  # the others take longer to read
    try:
        result = env.step(action)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UserError(
                f"{env.spec.name}: step() returned {type(result).__name__}, expected the pair (Step, Timestep)"
            )
        return result
    except UserError as error:
        raise EnvironmentFailedError(str(error)) from error
    except (ReportedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EnvironmentFailedError.of(env.spec.name, "a step", error) from error
    finally:
        if torch.get_default_dtype() is not dtype or torch.is_grad_enabled() is not has_grad:
            replace(GlobalSettings.now(), dtype=dtype, has_grad=has_grad).restore(env.spec.name)


def render_env(env: VectorEnv, env_index: int, size: int) -> np.ndarray:
    """Calls `env.render(env_index, size)`.

    Raises:
        EnvironmentFailedError: For any exception that is not a one-line error of Coterie already.
    """
    try:
        return env.render(env_index, size)
    except (ReportedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EnvironmentFailedError.of(env.spec.name, "render", error) from error


def close_env(env: VectorEnv) -> None:
    """Calls `env.close()` as `close_reported` does."""
    close_reported(env.spec.name, env.close, is_limited=env.limits_close)


@contextmanager
def closed(env: VectorEnv) -> Iterator[VectorEnv]:
    """Context manager: closes the environment at the end, see `close_env`."""
    try:
        yield env
    finally:
        close_env(env)
