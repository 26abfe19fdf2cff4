"""Checks that run an environment repeatedly: equal and different seeds, other actions, saved states, images, speed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import LimitExceededError, UserError
from coterie.core.specs import EnvSpec
from coterie.core.tree import tree_map
from coterie.core.types import Step, Timestep
from coterie.envs.contract.closing import close_limit
from coterie.envs.contract.invariants import InvariantChecker, call_env, check_spec, describe_error
from coterie.envs.contract.report import CheckAborted, FindingCollector
from coterie.envs.contract.traces import (
    Actions,
    Trace,
    first_difference,
    named_leaves,
    other_actions,
    random_actions,
    to_cpu,
)
from coterie.envs.contract.vector import VectorEnv

MakeEnv = Callable[[int, int], VectorEnv]
"""Makes an environment from `(num_envs, seed)`."""

SHORT_RUN = 20
"""Steps of the short checks."""
MIN_SPEED = 1000
"""Steps per second below which an environment is reported as slow."""


class ConsistencyChecks:
    """Records a main run with random actions, and compares further runs with it.

    Every check adds its findings to `findings`.

    Args:
        make: Makes an environment from `(num_envs, seed)`.
        num_envs: Number of environments.
        findings: Collects the violations.
    """

    def __init__(self, make: MakeEnv, num_envs: int, findings: FindingCollector):
        self._make, self._num_envs, self._findings = make, num_envs, findings
        self._close_blocks = False
        self.trace = Trace()
        self.name = "the environment"

    @contextmanager
    def environment(self, seed: int = 0, num_envs: int | None = None) -> Iterator[VectorEnv]:
        """Makes an environment and closes it twice at the end."""
        env = call_env(self._findings, "making the environment", self._make, num_envs or self._num_envs, seed)
        if not isinstance(env, VectorEnv):
            message = f"the factory returned a {type(env).__name__}, expected a coterie.envs.contract.vector.VectorEnv"
            self._findings.add("return-type", message, "make")
            raise CheckAborted
        try:
            yield env
        finally:
            self._close(env, "close()")
            self._close(env, "the second close()")

    def _close(self, env: VectorEnv, call: str) -> None:
        if self._close_blocks:
            return
        try:
            with close_limit(call):
                env.close()
        except LimitExceededError as error:
            self._close_blocks = True
            self._findings.add("close", str(error))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._findings.add("close", f"{call} raised {describe_error(error)}")

    def _reset(self, env: VectorEnv, call: str = "reset()", *args: Any) -> Timestep:
        return call_env(self._findings, call, env.reset, *args)

    def step(self, env: VectorEnv, actions: Actions, when: str = "") -> Any:
        """Calls `env.step` with a copy of the actions on its device, and checks that it does not modify them."""
        given = tree_map(lambda leaf: leaf.to(env.device, copy=True), actions)
        result = call_env(self._findings, f"{when}step()", env.step, given)
        if first_difference(tree_map(torch.Tensor.cpu, given), actions):
            self._findings.add("action-modified", f"{when}step() modified the actions passed to it")
        return result

    def replay(
        self, env: VectorEnv, start: int = 0, stop: int | None = None, when: str = ""
    ) -> Iterator[tuple[int, str | None]]:
        """Repeats the actions of the main run.

        Yields the step index and the name of the first tensor that differs from the main run.
        """
        end = len(self.trace.steps)
        for t in range(start, end if stop is None else min(stop, end)):
            step, timestep = to_cpu(self.step(env, self.trace.actions[t], when))
            yield t, self._difference(t, step, timestep)

    def _difference(self, t: int, step: Step, timestep: Timestep, env_mask: Tensor | None = None) -> str | None:
        return first_difference(step, self.trace.steps[t], env_mask) or first_difference(
            timestep, self.trace.timesteps[t + 1], env_mask
        )

    # -------------------------------------------------------------------------------------------------- the main run

    def main_run(self, steps: int) -> tuple[EnvSpec, InvariantChecker]:
        """Records `steps` steps, or enough for episodes to end twice, and checks all invariants."""
        findings = self._findings
        with self.environment() as env:
            self.name = str(getattr(getattr(env, "spec", None), "name", self.name))
            check_spec(env, self._num_envs, findings)
            spec, invariants = env.spec, InvariantChecker(env, findings)
            generator = torch.Generator().manual_seed(0)
            if spec.episode_limit is not None:
                steps = min(max(steps, 2 * spec.episode_limit + 3), 5 * steps)
            before = global_rng_states()
            returned = [self._reset(env)]
            self.trace.timesteps.append(invariants.check_reset(returned[0]))
            for _ in range(steps):
                actions = random_actions(spec, self.trace.timesteps[-1], generator)
                result = self.step(env, actions)
                step, timestep = invariants.check_step(result)
                returned += result
                self.trace.actions.append(actions)
                self.trace.steps.append(step)
                self.trace.timesteps.append(timestep)
            self._check_global_rng(before)
            self._check_reuse(returned)
        if not invariants.lengths:
            message = f"no episode ended within {steps} steps of {self._num_envs} environments"
            findings.add("no-episode-end", message)
        return spec, invariants

    def _check_global_rng(self, before: dict[str, Any]) -> None:
        after = global_rng_states()
        for name in [name for name, state in before.items() if not np.array_equal(state, after[name])]:
            self._findings.add("global-rng", f"the environment draws from the global generator of {name}", name)

    def _check_reuse(self, returned: list[Any]) -> None:
        """Compares returned objects (the first timestep, then step, timestep, step, ...) with copies made at once."""
        for i, value in enumerate(returned):
            copied = self.trace.steps[i // 2] if i % 2 else self.trace.timesteps[i // 2]
            name = first_difference(to_cpu(value), copied)
            if name is not None:
                message = f"{name}, returned at step {(i + 1) // 2}, changed during later steps"
                self._findings.add("output-reused", message, name)

    # -------------------------------------------------------------------------------------------------- other checks

    def same_seed(self) -> None:
        """Equal seeds and actions lead to equal timesteps."""
        with self.environment() as env:
            name = first_difference(to_cpu(self._reset(env)), self.trace.timesteps[0])
            if name is not None:
                message = f"with the same seed and actions, {name} differs at the first timestep"
                self._findings.add("determinism", message)
                return
            for t, name in self.replay(env):
                if name is not None:
                    message = f"with the same seed and actions, {name} differs at step {t + 1}"
                    self._findings.add("determinism", message)
                    return

    def different_seeds(self) -> None:
        """Episodes differ between seeds, environments and resets."""
        with self.environment(seed=1) as env:
            timestep = to_cpu(self._reset(env))
            if first_difference(timestep, self.trace.timesteps[0]) is None:
                if all(
                    first_difference(to_cpu(self.step(env, actions)[1]), self.trace.timesteps[t + 1]) is None
                    for t, actions in enumerate(self.trace.actions)
                ):
                    message = f"seeds 0 and 1 lead to the same {len(self.trace.timesteps)} timesteps"
                    self._findings.add("seed-ignored", message)
                return  # first timesteps do not depend on the seed, so environments and resets may be equal too
            if self._num_envs > 1 and all((leaf == leaf[:1]).all() for leaf in named_leaves(timestep.obs).values()):
                message = f"all {self._num_envs} environments start with the same observations"
                self._findings.add("envs-identical", message)
            if first_difference(to_cpu(self._reset(env)), timestep) is None:
                self._findings.add("reset-repeats", "a second reset() returned the same timestep as the first")

    def reset_in_mid_episode(self, spec: EnvSpec, seed: int = 5) -> None:
        """A reset during an episode starts new ones; after `reset(seed)`, everything is a function of the seed."""
        runs = []
        for env_seed, steps in ((0, 3), (1, 7)):
            with self.environment(env_seed) as env:
                invariants = InvariantChecker(env, self._findings, "with a reset() in mid-episode, ")
                generator = torch.Generator().manual_seed(1)
                timestep = invariants.check_reset(self._reset(env))
                for _ in range(steps):
                    _, timestep = invariants.check_step(self.step(env, random_actions(spec, timestep, generator)))
                invariants.check_reset(self._reset(env, "reset() in mid-episode"))
                timestep = invariants.check_reset(self._reset(env, "reset(seed)", seed))
                run, generator = [timestep], torch.Generator().manual_seed(2)
                for _ in range(SHORT_RUN):
                    step, timestep = invariants.check_step(self.step(env, random_actions(spec, timestep, generator)))
                    run += [step, timestep]
                runs.append(run)
        for i, (one, other) in enumerate(zip(*runs, strict=True)):
            name = first_difference(one, other)
            if name is not None:
                message = f"{name} differs between two environments {(i + 1) // 2} steps after reset({seed})"
                self._findings.add("reset-seed", message)
                return

    def ignored_actions(self, spec: EnvSpec) -> None:
        """Actions at final timesteps and actions of dead agents change nothing."""
        final = [~timestep.acted[:, None].expand_as(timestep.alive) for timestep in self.trace.timesteps]
        dead = [timestep.acted[:, None] & ~timestep.alive for timestep in self.trace.timesteps]
        for rule, where, whose in (
            ("reset-step-action", final, "at a final timestep"),
            ("dead-action", dead, "of an agent that is not alive"),
        ):
            if not any(mask.any() for mask in where):
                continue
            with self.environment() as env:
                self._reset(env)
                for t, actions in enumerate(self.trace.actions):
                    changed = other_actions(actions, spec, where[t])
                    step, timestep = to_cpu(self.step(env, changed, f"with another action {whose}, "))
                    name = self._difference(t, step, timestep)
                    if name is not None:
                        self._findings.add(rule, f"{name} at step {t + 1} depends on the action {whose}")
                        break

    def independence(self, spec: EnvSpec) -> None:
        """Actions in environment 0 change nothing in the others, until an episode ends (then draws may shift)."""
        first = torch.arange(self._num_envs) == 0
        with self.environment() as env:
            timestep, generator = to_cpu(self._reset(env)), torch.Generator().manual_seed(3)
            for t, actions in enumerate(self.trace.actions):
                mixed = tree_map(
                    lambda own, old: torch.where(first[:, None, None], own, old),
                    random_actions(spec, timestep, generator),
                    actions,
                )
                step, timestep = to_cpu(self.step(env, mixed, "with other actions in environment 0, "))
                if (step.episode_terminated | step.episode_truncated | self.trace.episode_ended(t)).any():
                    return
                name = self._difference(t, step, timestep, ~first)
                if name is not None:
                    message = f"{name} of other environments depends on the actions in environment 0"
                    self._findings.add("envs-not-independent", message)
                    return

    def action_clipping(self, spec: EnvSpec) -> None:
        """Continuous actions outside of [-1, 1] act like the nearest bound."""
        if not any(role.action.continuous for role in spec.roles):
            return
        with self.environment() as inside, self.environment() as outside:
            timestep, generator = to_cpu(self._reset(inside)), torch.Generator().manual_seed(4)
            self._reset(outside)
            for t in range(SHORT_RUN):
                actions = random_actions(spec, timestep, generator)
                wide = tree_map(lambda leaf: 5 * leaf if leaf.is_floating_point() else leaf, actions)
                clipped = tree_map(lambda leaf: leaf.clamp(-1, 1) if leaf.is_floating_point() else leaf, wide)
                step, timestep = to_cpu(self.step(inside, clipped))
                other = to_cpu(self.step(outside, wide, "with actions outside of [-1, 1], "))
                name = first_difference((step, timestep), other)
                if name is not None:
                    self._findings.add("action-clipping", f"{name} at step {t + 1} changes when actions exceed [-1, 1]")
                    return

    def saved_state(self, spec: EnvSpec) -> None:
        """A restored state leads to the same transitions."""
        # Early in the second half, so that episode ends of the first half and draws of the second both matter.
        middle = len(self.trace.steps) // 2
        with self.environment() as env:
            self._reset(env)
            for _ in self.replay(env, stop=middle):
                pass
            state = call_env(self._findings, "state_dict()", env.state_dict)
            other = sorted({type(leaf).__name__ for leaf in _unsupported(state) if leaf is not None})
            if other:
                self._findings.add("state-types", f"state_dict() contains {', '.join(other)}")
            if not spec.exact_resume:
                return
            state = copy.deepcopy(state)
            self._check_resumed(env, middle, "after state_dict()")
            call_env(self._findings, "load_state_dict()", env.load_state_dict, copy.deepcopy(state))
            self._check_resumed(env, middle, "after load_state_dict() in the same environment")
        with self.environment(seed=77) as env:
            call_env(self._findings, "load_state_dict() before reset()", env.load_state_dict, state)
            self._check_resumed(env, middle, "after load_state_dict() in a new environment")

    def _check_resumed(self, env: VectorEnv, start: int, when: str) -> None:
        for t, name in self.replay(env, start, when=f"{when}, "):
            if name is not None:
                self._findings.add("resume", f"{when}, {name} differs {t + 1 - start} steps later", when)
                return

    def render(self) -> None:
        """Images have the right format, and rendering changes nothing."""
        with self.environment() as env:
            self._reset(env)
            for t, name in self.replay(env, stop=SHORT_RUN):
                if name is not None:
                    self._findings.add("render-side-effect", f"after render(), {name} differs at step {t + 1}")
                    return
                if t < 3 and not self._check_image(env, (0, self._num_envs - 1, 0)[t], (480, 200, 64)[t]):
                    return

    def _check_image(self, env: VectorEnv, index: int, size: int) -> bool:
        call = f"render({index}, {size})"
        try:
            image = env.render(index, size)
        except UserError as error:
            self._findings.add("render-missing", f"render() raised a UserError: {error}")
            return False
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._findings.add("raises", f"{call} raised {describe_error(error)}", "render")
            return False
        if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3):
            what = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
            self._findings.add("render", f"{call} returned {what}")
            return False
        if image.shape[2] != 3 or max(image.shape[:2]) != size:
            self._findings.add("render", f"{call} returned an image of shape {list(image.shape)}")
        return True

    def single_env(self, spec: EnvSpec) -> None:
        """The contract holds for `num_envs=1` as well."""
        with self.environment(num_envs=1) as env:
            when = "with num_envs=1, "
            invariants, generator = InvariantChecker(env, self._findings, when), torch.Generator().manual_seed(6)
            timestep = invariants.check_reset(self._reset(env, "reset() with num_envs=1"))
            for _ in range(SHORT_RUN):
                _, timestep = invariants.check_step(self.step(env, random_actions(spec, timestep, generator), when))

    def speed(self, seconds: float = 0.5) -> float:
        """Measures steps per second over all environments for about `seconds`, with the actions of the main run."""
        with self.environment() as env:
            self._reset(env)
            given = [tree_map(lambda leaf: leaf.to(env.device), actions) for actions in self.trace.actions]
            for actions in given[:5]:
                env.step(actions)
            done, start = 0, perf_counter()
            for actions in given[5:]:
                env.step(actions)
                done += 1
                if perf_counter() - start > seconds:
                    break
            if env.device.type == "cuda":
                torch.cuda.synchronize(env.device)
            speed = done * self._num_envs / (perf_counter() - start)
        if speed < MIN_SPEED:
            message = (
                f"{speed:,.0f} steps/s with {self._num_envs} environments; at least {MIN_SPEED:,} are recommended for "
                "training"
            )
            self._findings.add("slow", message)
        return speed


def _unsupported(state: Any) -> Iterator[Any]:
    """Leaves of a saved state that are neither tensors nor plain values."""
    if isinstance(state, dict):
        for key, value in state.items():
            if not isinstance(key, str):
                yield key
            yield from _unsupported(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _unsupported(value)
    elif not isinstance(state, Tensor | bool | int | float | str | None):
        yield state


def global_rng_states() -> dict[str, Any]:
    """Returns the states of the global random generators, to be compared and never to be set."""
    _, words, at, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    python = np.array(random.getstate()[1], dtype=object)
    return {"torch": torch.get_rng_state().numpy(), "numpy": np.append(words, at), "python": python}
