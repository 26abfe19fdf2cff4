"""Stepping environments and acting: the inner loop of collection, evaluation and recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree
from coterie.core.types import Action, HiddenState, Step, Timestep
from coterie.envs.contract.partial_step import EnvPart, concat_envs, concat_steps, env_parts, split_envs
from coterie.envs.contract.vector import VectorEnv
from coterie.policies.base import Mode
from coterie.training.rollout_builder import zero_obs


class Actor(Protocol):
    """The part of a `Policy` that acting needs."""

    team: TeamSpec

    def act(
        self, timestep: Timestep, hidden_state: HiddenState, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], HiddenState, dict[str, Any]]: ...


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


def collect(
    env: VectorEnv,
    policies: Mapping[str, Actor],
    timestep: Timestep,
    hidden_state: dict[str, Tree],
    *,
    noise: dict[str, list[Tree]],
    modes: dict[str, Mode],
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
                _receive(part, trajectory)
            actions, extras, trajectory.hidden_state = act(
                policies, trajectory.timesteps[-1], trajectory.hidden_state, noise=own_noise, modes=modes
            )
            part.send(actions)
            trajectory.actions.append(actions)
            trajectory.extras.append(extras)
    for part, trajectory in zip(parts, trajectories, strict=True):
        _receive(part, trajectory)
    if len(trajectories) == 1:
        return trajectories[0]
    return Trajectory(
        timesteps=[timestep, *(concat_envs(x) for x in zip(*(own.timesteps[1:] for own in trajectories), strict=True))],
        steps=[concat_steps(x) for x in zip(*(own.steps for own in trajectories), strict=True)],
        actions=[concat_envs(x) for x in zip(*(own.actions for own in trajectories), strict=True)],
        extras=[concat_envs(x) for x in zip(*(own.extras for own in trajectories), strict=True)],
        hidden_state=concat_envs([own.hidden_state for own in trajectories]),
    )


def _receive(part: EnvPart, trajectory: Trajectory) -> None:
    """Waits for the result of a part's step."""
    step, timestep = part.receive()
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
