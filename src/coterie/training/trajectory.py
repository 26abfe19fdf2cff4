"""Stepping environments and acting: the inner loop of collection, evaluation and recording.

It runs without gradients, and with no more threads than help.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from gymnasium.spaces import flatdim
from torch import Tensor

from coterie.core.specs import EnvSpec, TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Step, Timestep
from coterie.envs.contract.partial_step import EnvPart, concat_envs, concat_steps, env_parts, split_envs
from coterie.envs.contract.vector import VectorEnv
from coterie.kernels import native
from coterie.policies.base import Mode, Policy
from coterie.training.rollout_builder import lost_steps, stack_steps, stack_time, zero_obs


class Actor(Protocol):
    """The part of a `Policy` that acting needs."""

    team: TeamSpec

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Any]]: ...


class Watch(Protocol):
    """Reads what an environment returns, before anything else does.

    Of an environment that consists of parts it is the first part.
    """

    def reset(self, timestep: Timestep) -> None:
        """Reads the first timestep."""
        ...

    def step(self, step: Step, timestep: Timestep) -> None:
        """Reads the result of a step and the next timestep."""
        ...


@dataclass
class Trajectory:
    """T steps of all environments.

    Attributes:
        timesteps: T + 1 timesteps.
        steps: Outcomes of the T steps.
        actions: Actions by role, T entries.
        extras: Outputs of the policies besides actions by team, T entries.
        hidden_state: Hidden states by team after the last timestep that was acted on.
    """

    timesteps: list[Timestep]
    steps: list[Step]
    actions: list[dict[str, Tree]]
    extras: list[dict[str, Tree]]
    hidden_state: dict[str, Tree]

    def stacked(self, spec: EnvSpec) -> StackedTrajectory:
        """Returns the trajectory with a time axis; `spec` is that of the environments."""
        return StackedTrajectory(
            timesteps=stack_time(self.timesteps),
            last=self.timesteps[-1],
            steps=stack_steps(self.steps, spec),
            metrics=[step.metrics for step in self.steps],
            actions=stack_time(self.actions),
            extras=stack_time(self.extras),
            hidden_state=self.hidden_state,
            lost=lost_steps(self.steps),
        )


@dataclass
class StackedTrajectory:
    """T steps of all environments with a time axis.

    Attributes:
        timesteps: [T + 1, B, ..].
        last: The last timestep [B, ..].
        steps: Outcomes of the T steps [T, B, ..] without metrics.
        metrics: Metrics of the environments by name [B], T entries.
        actions: Actions by role [T, B, ..].
        extras: Outputs of the policies besides actions by team [T, B, ..].
        hidden_state: Hidden states by team after the last timestep that was acted on.
        lost: Where steps were lost because a worker failed [T, B]; None if none was.
    """

    timesteps: Timestep
    last: Timestep
    steps: Step
    metrics: list[dict[str, Tensor]]
    actions: dict[str, Tree]
    extras: dict[str, Tree]
    hidden_state: dict[str, Tree]
    lost: Tensor | None = None


def collect(
    env: VectorEnv,
    policies: Mapping[str, Actor],
    timestep: Timestep,
    hidden_state: dict[str, Tree],
    *,
    noise: dict[str, list[Tree]],
    modes: dict[str, Mode],
    watch: Watch | None = None,
) -> Trajectory:
    """Acts on `timestep` and its successors, once per entry of the noise.

    If the environment consists of parts, all parts but the one that is acted on are stepped at the same time.

    Args:
        env: Environments to step.
        policies: Policies by team.
        timestep: The current timestep.
        hidden_state: Hidden states by team.
        noise: Noise of T steps by team.
        modes: Action selection by team.
        watch: Reads the results of all steps.
    """
    parts = env_parts(env)
    sizes = [part.num_envs for part in parts]
    trajectories = [
        Trajectory(timesteps=[own], steps=[], actions=[], extras=[], hidden_state=hidden)
        for own, hidden in zip(split_envs(timestep, sizes), split_envs(hidden_state, sizes), strict=True)
    ]
    steps = len(next(iter(noise.values())))
    split_noise = [split_envs({name: n[t] for name, n in noise.items()}, sizes) for t in range(steps)]
    for t, noise_of_parts in enumerate(split_noise):
        for part, trajectory, own_noise in zip(parts, trajectories, noise_of_parts, strict=True):
            if t:
                _receive(part, trajectory, watch if part is parts[0] else None)
            actions, extras, trajectory.hidden_state = act(
                policies, trajectory.timesteps[-1], trajectory.hidden_state, noise=own_noise, modes=modes
            )
            part.send(actions)
            trajectory.actions.append(actions)
            trajectory.extras.append(extras)
    for part, trajectory in zip(parts, trajectories, strict=True):
        _receive(part, trajectory, watch if part is parts[0] else None)
    if len(trajectories) == 1:
        return trajectories[0]
    return Trajectory(
        timesteps=[timestep, *(concat_envs(x) for x in zip(*(own.timesteps[1:] for own in trajectories), strict=True))],
        steps=[concat_steps(x) for x in zip(*(own.steps for own in trajectories), strict=True)],
        actions=[concat_envs(x) for x in zip(*(own.actions for own in trajectories), strict=True)],
        extras=[concat_envs(x) for x in zip(*(own.extras for own in trajectories), strict=True)],
        hidden_state=concat_envs([own.hidden_state for own in trajectories]),
    )


def _receive(part: EnvPart, trajectory: Trajectory, watch: Watch | None) -> None:
    """Waits for the result of a part's step."""
    step, timestep = part.receive()
    if watch is not None:
        watch.step(step, timestep)
    trajectory.steps.append(step)
    trajectory.timesteps.append(timestep)


def act(
    policies: Mapping[str, Actor],
    timestep: Timestep,
    hidden_state: dict[str, Tree],
    *,
    noise: dict[str, Tree],
    modes: dict[str, Mode],
) -> tuple[dict[str, Tree], dict[str, Tree], dict[str, Tree]]:
    """Acts for every team on one timestep.

    Returns:
        Actions by role, further outputs of the policies by team, and the next hidden states by team.
    """
    actions, extras, hidden_states = {}, {}, {}
    for name, policy in policies.items():
        action, hidden_states[name], extras[name] = policy.act(
            team_view(policy.team, timestep), hidden_state[name], noise[name], modes[name]
        )
        actions.update(action)
    return actions, extras, hidden_states


def team_view(team: TeamSpec, timestep: Timestep) -> Timestep:
    """Returns the part of a timestep that a team's policy reads."""
    view = timestep.team(team)
    if team.agents_can_die:  # a dead agent's NaN would stay in its hidden state, since 0 x NaN is NaN
        view = replace(view, obs=zero_obs(view.obs, view.alive, team))
    return view


_MAX_OBSERVED_NUMBERS = 1 << 14
_MAX_MULTIPLICATIONS, _MAX_KERNEL_MULTIPLICATIONS = 1 << 24, 1 << 22
"""Size of a batch of observations, and multiplications needed to act on it by PyTorch and by kernels, up to which one
thread is at least as fast as two. Measured on an AMD EPYC without kernels: 25 timesteps of 128 spread environments
(7,000 numbers) take 12.5 ms with one thread and 15 ms with two; of 512 environments 29 ms and 23 ms. With a GRU, 26
timesteps of 10 M multiplications take the same time with either, of 20 M 26 ms and 22 ms, and 128 timesteps of 40 M
211 ms and 145 ms. Other operations are too small for two threads then, but some of PyTorch's use them: a log_softmax of
48 rows takes 7 us with one and 12 to 98 us with two.

With kernels, the collection of IPPO and of recurrent MAPPO and QMIX took the same time with limits of one and four
million multiplications, in three turns of two threads each.
"""


@contextmanager
def inference_context(
    env: VectorEnv, policies: Iterable[Policy], work: tuple[float, float] | None = None
) -> Iterator[None]:
    """Disables gradients and, where acting on one batch is little work, restricts PyTorch to one thread.

    Matrix products of a few dozen rows are finished before a second thread has taken its share. Kernels have a limit of
    their own.

    Args:
        env: Environments.
        policies: Policies that act in them.
        work: Their `multiplications`, if they are known.
    """
    threads, kernel_threads, single_thread = torch.get_num_threads(), native.num_threads(), False
    if env.device.type == "cpu" and max(threads, kernel_threads) > 1:
        by_torch, by_kernels = work or multiplications(env, policies)
        single_thread = by_torch <= _MAX_MULTIPLICATIONS
        kernel_threads = 1 if by_kernels <= _MAX_KERNEL_MULTIPLICATIONS else kernel_threads
    if single_thread:
        torch.set_num_threads(1)
    try:
        with torch.inference_mode(), native.threads(kernel_threads):
            yield
    finally:
        if single_thread:
            torch.set_num_threads(threads)


def multiplications(env: VectorEnv, policies: Iterable[Policy]) -> tuple[float, float]:
    """Returns the multiplications to act on one batch by PyTorch and by kernels; infinity if the batch itself is large.

    Every agent reads every weight once, but by kernels only its own one of the sets in weights [G, in, out].
    """
    observed = sum(role.n * flatdim(role.observation_space) for role in env.spec.roles)
    if env.num_envs * observed > _MAX_OBSERVED_NUMBERS:
        return math.inf, math.inf
    weights = [(w, p.team.n) for p in policies for net in p.networks for w in net.parameters()]
    by_torch = sum(w.numel() * agents for w, agents in weights)
    by_kernels = sum(w.numel() * (1 if w.ndim == 3 else agents) for w, agents in weights)
    return env.num_envs * by_torch, env.num_envs * by_kernels
