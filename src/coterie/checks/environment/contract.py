"""Checks an environment against the contract of `coterie.envs.contract.vector`.

A main run with random actions is checked step by step. Further runs are compared with it: equal and different seeds,
other actions, saved states, images, speed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.checks import global_generators
from coterie.checks.environment.invariants import InvariantChecker, check_spec
from coterie.checks.environment.rules import CheckAborted, FindingCollector, Report
from coterie.core.errors import LimitExceededError, UserError
from coterie.core.specs import EnvSpec
from coterie.core.teams import describe_agents, describe_space, image_notes, why
from coterie.core.tree import tree_map
from coterie.core.types import Step, Timestep
from coterie.envs.contract.closing import close_limit
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


def check(make: MakeEnv, steps: int = 200, num_envs: int = 8) -> Report:
    """Tests an environment with random actions.

    Args:
        make: Called as `make(num_envs, seed)`, about a dozen times. It returns a new environment each time, which is
            closed afterwards.
        steps: Steps of the main run, at least 10. Up to five times as many are taken if a declared episode limit needs
            more.
        num_envs: Number of environments, at least 2.

    Returns:
        The report. Exceptions that the environment raises are findings, too.

    Raises:
        UserError: For too few steps or environments.
    """
    if steps < 10 or num_envs < 2:
        raise UserError(f"check: steps={steps}, num_envs={num_envs}; expected at least 10 steps and 2 environments")
    findings = FindingCollector()
    checks = ConsistencyChecks(make, num_envs, findings)

    def run(name: str, check: Callable[[], object]) -> None:
        """Runs one check. Whatever it raises becomes a finding, so that the others run as well."""
        with suppress(CheckAborted), findings.calling(name):
            check()

    main: list[tuple[EnvSpec, InvariantChecker]] = []
    run("the main run", lambda: main.append(checks.main_run(steps)))
    if not main:
        return Report(checks.name, findings.findings())
    spec, invariants = main[0]
    for note in image_notes(spec):
        findings.add("channels-first", note)
    run("the same-seed check", checks.same_seed)
    run("the seed check", checks.different_seeds)
    run("the reset check", lambda: checks.reset_in_mid_episode(spec))
    if not findings.has("determinism"):
        # These compare with the main run, which is meaningless if equal actions lead to different results.
        run("the ignored-action check", lambda: checks.ignored_actions(spec))
        run("the independence check", lambda: checks.independence(spec))
        run("the action-clipping check", lambda: checks.action_clipping(spec))
        run("the state_dict check", lambda: checks.saved_state(spec))
        run("the render check", checks.render)
    run("the single-environment check", lambda: checks.single_env(spec))
    speed: list[float] = []
    run("the speed check", lambda: speed.append(checks.speed()))
    summary = _summary(spec, trace=checks.trace, lengths=invariants.lengths, num_envs=num_envs, speed=speed)
    return Report(spec.name, findings.findings(), summary)


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
        with self._findings.calling("making the environment"):
            env = self._make(num_envs or self._num_envs, seed)
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
        with self._findings.calling(call, "close", subject="", aborts=False):
            try:
                with close_limit(call):
                    env.close()
            except LimitExceededError:
                self._close_blocks = True
                raise

    def _reset(self, env: VectorEnv, call: str = "reset()", *args: Any) -> Timestep:
        with self._findings.calling(call):
            return env.reset(*args)

    def step(self, env: VectorEnv, actions: Actions, when: str = "") -> Any:
        """Calls `env.step` with a copy of the actions on its device, and checks that it does not modify them."""
        given = tree_map(lambda leaf: leaf.to(env.device, copy=True), actions)
        with self._findings.calling(f"{when}step()"):
            result = env.step(given)
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
            with global_generators.watched() as drawn:
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
            for name in drawn:
                findings.add("global-rng", f"the environment draws from the global generator of {name}", name)
            self._check_reuse(returned)
        if not invariants.lengths:
            message = f"no episode ended within {steps} steps of {self._num_envs} environments"
            findings.add("no-episode-end", message)
        return spec, invariants

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

    def reset_in_mid_episode(self, spec: EnvSpec) -> None:
        """A reset during an episode starts new ones; after `reset(seed)`, everything is a function of the seed."""
        runs, seed = [], 5
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
            with self._findings.calling("state_dict()"):
                state = env.state_dict()
            other = sorted({type(leaf).__name__ for leaf in _unsupported(state) if leaf is not None})
            if other:
                self._findings.add("state-types", f"state_dict() contains {', '.join(other)}")
            if not spec.exact_resume:
                return
            state = copy.deepcopy(state)
            self._check_resumed(env, middle, "after state_dict()")
            with self._findings.calling("load_state_dict()"):
                env.load_state_dict(copy.deepcopy(state))
            self._check_resumed(env, middle, "after load_state_dict() in the same environment")
        with self.environment(seed=77) as env:
            with self._findings.calling("load_state_dict() before reset()"):
                env.load_state_dict(state)
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
        with self._findings.calling(call, subject="render"):
            try:
                image = env.render(index, size)
            except UserError as error:
                self._findings.add("render-missing", f"render() raised a UserError: {error}")
                return False
        if not is_image(image) or max(image.shape[:2]) != size:
            what = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
            self._findings.add("render", f"{call} returned {what}")
        return is_image(image)

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


def is_image(image: Any) -> bool:
    """True for an RGB image, a uint8 array [height, width, 3]."""
    return isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3


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


# -------------------------------------------------------------------------------------------------------- summary


def _summary(spec: EnvSpec, *, trace: Trace, lengths: list[int], num_envs: int, speed: list[float]) -> dict[str, str]:
    """Properties of the environment by name."""
    default = spec.default_teams()
    summary = {"teams": f"{len(default)}: {', '.join(team.name for team in default)}, because {why(spec)}"}
    for role in spec.roles:
        spaces = f"observes {describe_space(role.observation_space)}; acts in {describe_space(role.action_space)}"
        summary[f"role {role.name}"] = f"{describe_agents(role.agents)}, of team {role.group}; {spaces}"
        values = torch.cat(
            [
                leaf.float().flatten()
                for timestep in trace.timesteps
                for leaf in named_leaves(timestep.obs[role.name]).values()
            ]
        )
        seen = f"{values.min():.4g} to {values.max():.4g}, mean {values.mean():.4g}" if values.numel() else "nothing"
        summary[f"obs {role.name}"] = seen
    if spec.notes:
        summary["notes"] = "; ".join(spec.notes)
    summary["states"] = ", ".join(f"{name} [{size}]" for name, size in spec.state_sizes.items()) or "none"
    summary["agents"] = "can be absent or end early" if spec.agents_can_die else "end with their episode"
    summary["resume"] = "bit-for-bit" if spec.exact_resume else "starts new episodes"
    summary["tested"] = f"{len(trace.steps)} steps of {num_envs} environments with random actions"
    limit = "" if spec.episode_limit is None else f", limit {spec.episode_limit}"
    if lengths:
        mean = sum(lengths) / len(lengths)
        summary["episodes"] = f"{len(lengths)} of {min(lengths)} to {max(lengths)} steps, mean {mean:.1f}{limit}"
        summary["random return"] = _random_return(spec, trace, len(lengths))
    else:
        summary["episodes"] = f"none ended{limit}"
    if speed:
        summary["speed"] = f"{speed[0]:,.0f} steps/s with {num_envs} environments"
    return summary


def _random_return(spec: EnvSpec, trace: Trace, episodes: int) -> str:
    """Mean return of finished episodes by group if there are group rewards, and by role, averaged over its agents.

    With group rewards, roles whose agents got no reward of their own are left out.
    """
    num_envs = len(trace.timesteps[0].acted)
    returns = torch.zeros(num_envs, spec.n, dtype=torch.float64)
    group_returns = torch.zeros(num_envs, len(spec.groups), dtype=torch.float64)
    total, group_total = returns[0].clone(), group_returns[0].clone()
    for t, step in enumerate(trace.steps):
        returns, group_returns = returns + step.reward, group_returns + step.group_reward
        ended = trace.episode_ended(t)
        total += returns[ended].sum(0)
        group_total += group_returns[ended].sum(0)
        returns = returns.masked_fill(ended[:, None], 0)
        group_returns = group_returns.masked_fill(ended[:, None], 0)
    rewarded = torch.stack([step.reward != 0 for step in trace.steps]).flatten(0, 1).any(0)
    means = [
        f"{name} {total[agents].mean() / episodes:.4g}"
        for name, agents in spec.role_slices().items()
        if not spec.has_group_reward or bool(rewarded[agents].any())
    ]
    parts = []
    if spec.has_group_reward:
        groups = zip(spec.groups, group_total.tolist(), strict=True)
        parts.append("per group " + ", ".join(f"{name} {value / episodes:.4g}" for name, value in groups))
    if means:
        parts.append("per agent " + ", ".join(means))
    return "; ".join(parts)
