"""Recording of demonstrations."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.seeds import generator
from coterie.core.specs import EnvSpec
from coterie.core.tree import Tree, tree_map
from coterie.core.types import Action, Step, Timestep
from coterie.envs.contract.vector import VectorEnv, reset_env
from coterie.imitation.demo_checks import episode_returns
from coterie.imitation.demo_roles import DemoRole, flatten_observation
from coterie.imitation.demonstrations import Demos
from coterie.policies.base import Mode, Policy
from coterie.training.evaluation import CHUNK, MAX_STEPS, ProgressCallback, waiting_text
from coterie.training.rollout_builder import lost_steps, mask_rewards
from coterie.training.trajectory import Trajectory, collect, inference_context

Tensors = dict[str, Tensor]
"""Tensors of demonstrations by name, with leading axes [T, B] or [timesteps]."""


@dataclass(frozen=True)
class DemoSource:
    """Source of demonstrations, see `Demos`.

    Attributes:
        env: Name of the environment.
        params: All settings of the environment.
        origin: Who plays, as plain strings and numbers.
    """

    env: str
    params: dict[str, Any]
    origin: dict[str, Any] = field(default_factory=dict)


def record(
    env: VectorEnv,
    policies: dict[str, Policy],
    source: DemoSource,
    *,
    episodes: int,
    modes: dict[str, Mode],
    seed: int,
    max_steps: int = MAX_STEPS,
    on_progress: ProgressCallback | None = None,
) -> Demos:
    """Records `episodes` episodes, divided evenly among environments, the first ones that each finishes.

    The result is a function of the arguments.

    Args:
        env: Environments to play in.
        policies: Policies by team.
        source: Description of the environment and of who plays.
        episodes: Number of episodes.
        modes: Action selection by team.
        seed: Seed of the environments and of the policies' noise.
        max_steps: Maximum number of steps per environment.
        on_progress: Called after every few steps.

    Raises:
        UserError: If an environment has not played its episodes after `max_steps` steps.
    """
    recording = _Recording(env, episodes)
    noise_generators = {team: generator(seed, "noise", team, device=env.device) for team in policies}
    with inference_context(env, policies.values()):
        timestep = reset_env(env, seed)
        hidden_state = {team: policy.initial_hidden_state(env.num_envs) for team, policy in policies.items()}
        for start in range(0, max_steps, CHUNK):
            noise = {team: p.draw_noise(CHUNK, env.num_envs, noise_generators[team]) for team, p in policies.items()}
            trajectory = collect(env, policies, timestep, hidden_state, noise=noise, modes=modes)
            timestep, hidden_state = trajectory.timesteps[-1], trajectory.hidden_state
            recording.add(trajectory)
            if on_progress is not None:
                on_progress(int(recording.played.sum()), episodes, waiting_text(start + CHUNK, max_steps))
            if recording.is_complete:
                break
        else:
            raise UserError(
                f"recording of {source.env}: {recording.unfinished} of {env.num_envs} environments did not finish "
                f"their episodes within {max_steps} steps. Set an episode limit (env.episode_limit=...)."
            )
    tensors = recording.tensors()
    roles = tuple(DemoRole.from_spec(role) for role in env.spec.roles)
    demos = Demos(source.env, source.params, roles, tensors, origin=source.origin, seed=seed)
    tensors["episode/return"] = episode_returns(demos)
    return demos


class _Recording:
    """Collects the timesteps of each environment's first episodes and drops those of incomplete episodes."""

    def __init__(self, env: VectorEnv, episodes: int):
        self._spec = env.spec
        self._env_index = torch.arange(env.num_envs, device=env.device)
        self._quota = episodes // env.num_envs + (self._env_index < episodes % env.num_envs)
        self.played = torch.zeros_like(self._quota)
        """Complete episodes per environment [B], at most the quota."""
        self._started = torch.zeros_like(self._quota)  # episodes per environment, incomplete ones included
        self._timesteps: list[Tensors] = []
        self._complete: list[Tensor] = []  # environment and number of complete episodes, [E, 2] each

    @property
    def is_complete(self) -> bool:
        return bool((self.played >= self._quota).all())

    @property
    def unfinished(self) -> int:
        """Number of environments that have not played their episodes."""
        return int((self.played < self._quota).sum())

    def add(self, trajectory: Trajectory) -> None:
        timesteps = _timestep_tensors(self._spec, trajectory)
        lost = lost_steps(trajectory.steps)
        ended, acted = timesteps.pop("ended"), timesteps.pop("acted")
        if lost is not None:
            acted, ended = acted & ~lost, ended | lost
        complete = ended if lost is None else ended & ~lost
        number = self._started + ended.long().cumsum(0) - ended.long()  # episode of the environment, [T, B]
        played = self.played + complete.long().cumsum(0) - complete.long()
        env_index = self._env_index.expand(len(acted), -1)
        timesteps |= {"env_index": env_index, "number": number}
        wanted = acted & (played < self._quota)
        self._timesteps.append({key: x[wanted].cpu() for key, x in timesteps.items()})
        self._complete.append(torch.stack([env_index, number], -1)[complete & (played < self._quota)].cpu())
        self._started = self._started + ended.sum(0)
        self.played = (self.played + complete.sum(0)).minimum(self._quota)

    def tensors(self) -> Tensors:
        """Returns the complete episodes, environment by environment in order of time, with their offsets."""
        timesteps = {key: torch.cat([part[key] for part in self._timesteps]) for key in self._timesteps[0]}
        complete = torch.cat(self._complete)
        size = int(max(timesteps["number"].max(), complete[:, 1].max())) + 1
        episode = timesteps.pop("env_index") * size + timesteps.pop("number")
        order = episode.argsort(stable=True)
        order = order[torch.isin(episode[order], complete[:, 0] * size + complete[:, 1])]
        found = {name: x[order].contiguous() for name, x in timesteps.items()}
        _, length = episode[order].unique_consecutive(return_counts=True)
        offset = length.cumsum(0) - length
        found |= {"episode/offset": offset, "episode/length": length}
        found["episode/terminated"] = found.pop("episode_terminated")[offset + length - 1]
        return found


def _timestep_tensors(spec: EnvSpec, trajectory: Trajectory) -> Tensors:
    """Returns the tensors of T timesteps of B environments, and `acted` and `ended`, where episodes end."""
    timesteps, step = trajectory.timesteps[:-1], _stack_steps(trajectory.steps)
    acted = torch.stack([timestep.acted for timestep in timesteps])
    alive = torch.stack([timestep.alive for timestep in timesteps])
    reward = mask_rewards(step.reward, acted, alive)
    found: Tensors = {
        "acted": acted,
        "ended": step.episode_terminated | step.episode_truncated,
        "episode_terminated": step.episode_terminated,
    }
    if spec.has_group_reward:
        found["group_reward"] = mask_rewards(step.group_reward, acted)
    for name in timesteps[0].state:
        found[f"state/{name}"] = torch.stack([timestep.state[name] for timestep in timesteps])
    for role, agents in spec.role_slices().items():
        role_alive = alive[..., agents]
        parts = _observations_and_actions(role, timesteps, [action[role] for action in trajectory.actions])
        if spec.agents_can_die:  # nothing of dead agents is recorded
            parts = {
                key: torch.where(role_alive.view(*role_alive.shape, *[1] * (x.ndim - 3)), x, 0)
                for key, x in parts.items()
            }
        found |= parts
        if role in timesteps[0].action_mask:
            found[f"{role}/action_mask"] = torch.stack([timestep.action_mask[role] for timestep in timesteps])
        found[f"{role}/alive"], found[f"{role}/reward"] = role_alive, reward[..., agents]
        found[f"{role}/terminated"] = step.terminated[..., agents] & role_alive
        found[f"{role}/truncated"] = step.truncated[..., agents] & role_alive & ~found[f"{role}/terminated"]
    return found


def _observations_and_actions(role: str, timesteps: list[Timestep], actions: list[Action]) -> Tensors:
    obs: Tree = tree_map(lambda *x: torch.stack(x), *(timestep.obs[role] for timestep in timesteps))
    action: Action = tree_map(lambda *x: torch.stack(x), *actions)
    found = flatten_observation(f"{role}/obs", obs)
    if action.discrete is not None:
        found[f"{role}/discrete"] = action.discrete
    if action.continuous is not None:
        found[f"{role}/continuous"] = action.continuous.clamp(-1, 1)  # as environments do
    return found


def _stack_steps(steps: list[Step]) -> Step:
    """Stacks rewards and flags to [T, B, ..]; leaves out metrics and lost steps."""
    names = [entry.name for entry in fields(Step) if entry.name not in ("metrics", "lost")]
    return Step(**{name: torch.stack([getattr(step, name) for step in steps]) for name in names}, metrics={})
