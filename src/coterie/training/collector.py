"""Collection: steps environments with the teams' policies, without gradients and without critics."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import NonFiniteError
from coterie.core.metrics import Metric, declare
from coterie.core.seeds import generator, restore, seed_of
from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.core.types import TIME_LEFT, Rollout, Step, Timestep
from coterie.envs.contract.vector import VectorEnv, reset_env
from coterie.policies.base import Mode, Policy
from coterie.ranks.ranks import ONE, Ranks
from coterie.training.collection import CollectFunction
from coterie.training.episodes import EpisodeTracker, FinishedEpisodes
from coterie.training.other_teams import OtherTeamsRecorder
from coterie.training.rank_episodes import episodes_of_all_ranks
from coterie.training.rollout_builder import (
    contiguous,
    mask_rewards,
    opponent_labels,
    steps_done,
    team_rollout,
    truncate_before_lost,
    unset_lost,
    zero_invisible_obs,
)
from coterie.training.trajectory import (
    Actor,
    StackedTrajectory,
    Trajectory,
    Watch,
    inference_context,
    multiplications,
)

declare(
    Metric(
        "rollout/reward_abs_max",
        "reward",
        "largest absolute reward of a team in a step, summed over its agents; mean over rollouts",
        better=None,
        combine="max",
    )
)

LARGEST_REWARD = 1e15
"""Absolute reward above which float32 cannot hold the square of a return, so that losses are infinite."""


class Collector:
    """Steps an environment with one policy per team and returns each team's rollout.

    Also tracks the episodes that end during collection.

    Args:
        env: Environments to collect from.
        policies: Policies by team.
        seed: Seed of the policies' noise.
        readers: Teams whose rollouts include the other teams, for global critics.
        ranks: Ranks that collect together. Counts and finished episodes are those of all ranks.
        cuda_graphs: Capture rollouts as CUDA graphs where environment and policies permit it.
    """

    def __init__(
        self,
        env: VectorEnv,
        policies: dict[str, Policy],
        seed: int,
        readers: Collection[str] = (),
        ranks: Ranks = ONE,
        *,
        cuda_graphs: bool = False,
    ):
        self._ranks = ranks
        self.env, self.policies = env, dict(policies)
        self._seed = seed
        self._collect = CollectFunction(cuda_graphs)
        self._multiplications: tuple[float, float] | None = None  # to act once, by PyTorch and by kernels
        self._collected = 0  # timesteps per environment since the start of the run
        self._noise = {name: generator(seed, "noise", name, device=env.device) for name in policies}
        self._others = OtherTeamsRecorder(env.spec, readers, seed, env.device, ranks)
        self._timestep: Timestep | None = None
        self._hidden_state = {name: policy.initial_hidden_state(env.num_envs) for name, policy in policies.items()}
        self.episodes = EpisodeTracker(env.spec, env.num_envs, env.device)
        self._steps_done = self._no_steps()  # of the present episodes
        self.finished: list[FinishedEpisodes] = []
        """Episodes that ended since the last call of `pop_finished`."""
        self.last_finished: FinishedEpisodes | None = None
        """Episodes that ended within the last rollout; None before the first."""
        self.dropped = 0
        """Episodes dropped because a worker failed."""
        self.reward_abs_max: dict[str, float] = {}
        """Largest absolute reward of each team in one step of the last rollout, summed over its agents and groups."""
        self.watch: Watch | None = None
        """Reads what the environment returns, from the first reset on."""
        self._truncated_agents: Tensor | None = None  # [B, N]: truncated alone by the last step; None before it

    def advance(self, steps: int) -> tuple[dict[str, Rollout], int]:
        """Collects `steps` timesteps in every environment.

        Returns the rollout of each team, and the number of environment steps taken (timesteps that were acted on).
        """
        if self._timestep is None:
            self._timestep = reset_env(self.env)
            if self.watch is not None:
                self.watch.reset(self._timestep)
        initial_hidden_state = {name: tree_map(torch.clone, hidden) for name, hidden in self._hidden_state.items()}
        noise = self._draw_noise(steps)
        modes: dict[str, Mode] = dict.fromkeys(self.policies, "explore")
        self._multiplications = self._multiplications or multiplications(self.env, self.policies.values())
        with inference_context(self.env, self.policies.values(), self._multiplications):
            collected = self._collect(
                self.env,
                self.policies,
                self._timestep,
                self._hidden_state,
                noise=noise,
                modes=modes,
                watch=self.watch,
            )
        trajectory = collected.stacked(self.env.spec) if isinstance(collected, Trajectory) else collected
        self._timestep = now = tree_map(contiguous, trajectory.last)
        self._hidden_state = tree_map(contiguous, trajectory.hidden_state)
        self._collected += steps
        lost, actions, extras = trajectory.lost, trajectory.actions, trajectory.extras
        observed = self._observed(trajectory.timesteps, lost)
        outcome = self._outcome(trajectory.steps, observed)
        visible = self._visible(observed, outcome)
        num_acted = self._track(trajectory, observed, outcome, visible)
        if lost is not None:
            outcome = truncate_before_lost(outcome, lost, observed.alive[:-1])
        rollouts = {
            name: team_rollout(
                policy.team,
                replace(observed, obs=zero_invisible_obs(observed.obs, visible, policy.team)),
                outcome,
                actions=actions,
                extras=extras[name],
                hidden_state=initial_hidden_state[name],
            )
            for name, policy in self.policies.items()
        }
        last = self._others.last_actions(self.env, self.policies, now, self._hidden_state)
        return self._others.add(rollouts, self.policies, observed, visible, actions, last), num_acted

    def _track(self, trajectory: StackedTrajectory, observed: Timestep, outcome: Step, visible: Tensor) -> int:
        """Adds a rollout to the counts, the largest rewards and the episodes. Returns the environment steps taken.

        Raises:
            NonFiniteError: If there is a NaN or infinity that counts.
        """
        lost, episode_end = trajectory.lost, outcome.episode_terminated | outcome.episode_truncated
        if lost is not None:
            episode_end |= lost
        num_acted, num_ended, largest_rewards = self._checked_counts(observed, outcome, visible, episode_end)
        self.last_finished = self.episodes.add(
            reward=outcome.reward,
            group_reward=outcome.group_reward,
            acted=observed.acted[:-1],
            episode_end=episode_end,
            episode_truncated=outcome.episode_truncated,
            num_ended=num_ended,
            metrics=trajectory.metrics,
            lost=lost,
            labels=opponent_labels(trajectory.extras),
        )
        dropped = 0 if lost is None else int(lost.sum())
        num_acted, dropped, largest_rewards = self._of_all_ranks(num_acted, dropped, largest_rewards)
        self.reward_abs_max = dict(zip(self.policies, largest_rewards, strict=True))
        if len(self.last_finished):
            self.finished.append(self.last_finished)
        self.dropped += dropped
        return num_acted

    def _draw_noise(self, steps: int) -> dict[str, list[Tree]]:
        """Draws the noise of the policies, by team and timestep. All ranks draw that of all environments."""
        num_envs = self.env.num_envs * self._ranks.size
        return {
            name: self._ranks.own_envs(policy.draw_noise(steps, num_envs, self._noise[name]), num_envs)
            for name, policy in self.policies.items()
        }

    def _of_all_ranks(self, num_acted: int, dropped: int, largest_rewards: list[float]) -> tuple[int, int, list[float]]:
        """Returns the counts and the largest rewards of all ranks. Episodes that ended are those of all ranks, too."""
        if self._ranks.size == 1 or self.last_finished is None:
            return num_acted, dropped, largest_rewards
        own = [num_acted, dropped, len(self.last_finished), *largest_rewards]
        table = torch.stack(self._ranks.gather(torch.tensor(own, dtype=torch.float64)))
        self.last_finished = episodes_of_all_ranks(
            self.last_finished,
            self.env.spec.metrics,
            num_envs=self.env.num_envs,
            ranks=self._ranks,
            counts=table[:, 2].long().tolist(),
        )
        num_acted, dropped = table[:, :2].sum(0).long().tolist()
        return num_acted, dropped, table[:, 3:].amax(0).tolist()

    @property
    def actors(self) -> dict[str, Actor]:
        """Policies, or traces of them, that acted in the last rollout, by team; {} with CUDA graphs."""
        return self._collect.actors

    def set_policies(self, policies: dict[str, Policy]) -> None:
        """Replaces the policies of the given teams from the next rollout on, with fresh hidden states."""
        self._multiplications = None
        for name, policy in policies.items():
            self.policies[name], self._hidden_state[name] = policy, policy.initial_hidden_state(self.env.num_envs)

    def hidden_state(self, team: str) -> Tree:
        """Returns the current hidden state of the team's policy for every environment."""
        return self._hidden_state[team]

    def restart(self) -> None:
        """Starts a new episode in every environment and discards the unfinished ones."""
        self._timestep, self._truncated_agents = reset_env(self.env), None
        self._hidden_state = {
            name: policy.initial_hidden_state(self.env.num_envs) for name, policy in self.policies.items()
        }
        self.episodes = EpisodeTracker(self.env.spec, self.env.num_envs, self.env.device)
        self._steps_done = self._no_steps()

    def _no_steps(self) -> Tensor:
        return torch.zeros(self.env.num_envs, dtype=torch.int64, device=self.env.device)

    def pop_finished(self) -> FinishedEpisodes | None:
        """Returns the episodes that ended since the last call; None if none did."""
        taken, self.finished = self.finished, []
        return FinishedEpisodes.concatenate(taken) if taken else None

    def _observed(self, observed: Timestep, lost: Tensor | None) -> Timestep:
        """Returns timesteps [T + 1, B, ..] with the time left in the state if the environment has a limit."""
        if lost is not None:
            observed = replace(observed, acted=unset_lost(observed.acted, lost))
        if (limit := self.env.spec.episode_limit) is not None:
            done = steps_done(observed.acted, self._steps_done)
            self._steps_done = done[-1].clone()
            left = 1 - done.unsqueeze(-1).to(torch.float32) / limit
            observed = replace(observed, state=observed.state | {TIME_LEFT: left})
        return observed

    def _outcome(self, steps: Step, observed: Timestep) -> Step:
        """Returns steps [T, B, ..] whose rewards are zero for dead agents, and at timesteps without an action."""
        spec, acted = self.env.spec, observed.acted[:-1]
        reward = mask_rewards(steps.reward, acted, observed.alive[:-1] if spec.agents_can_die else None)
        group_reward = mask_rewards(steps.group_reward, acted) if spec.has_group_reward else steps.group_reward
        return replace(steps, reward=reward, group_reward=group_reward)

    def _visible(self, observed: Timestep, outcome: Step) -> Tensor:
        """Returns whose observations count, [T + 1, B, N].

        These are the agents that are alive, and those that were truncated alone, in the timestep after the truncation,
        because their value is bootstrapped from it. Remembers whom the last step truncated.
        """
        if not self.env.spec.agents_can_die:
            return observed.alive
        alive, acted = observed.alive[:-1], observed.acted[:-1, :, None]
        truncated = outcome.truncated & ~outcome.terminated & alive & acted
        previous = self._truncated_agents
        before = torch.zeros_like(truncated[0]) if previous is None else previous
        self._truncated_agents = truncated[-1].clone()
        return observed.alive | torch.cat([before[None], truncated])

    def _checked_counts(
        self, observed: Timestep, outcome: Step, visible: Tensor, episode_end: Tensor
    ) -> tuple[int, int, list[float]]:
        """Returns the rollout's only read by the host: timesteps that were acted on, episodes that ended, and the
        largest absolute reward of each team.

        Raises:
            NonFiniteError: If there is a NaN or infinity that counts. Names the environment, agent and step.
        """
        checked = (observed.obs, observed.state, outcome.reward, outcome.group_reward)
        sums = [x.sum(dtype=torch.float32) for x in tree_leaves(checked) if x.is_floating_point() and x.numel()]
        rewards = [_largest_reward(policy.team, outcome) for policy in self.policies.values()]
        counts = torch.stack([observed.acted[:-1].count_nonzero(), episode_end.count_nonzero()])
        num_acted, num_ended, *read = torch.cat([counts.double(), torch.stack([*rewards, *sums]).double()]).tolist()
        if not all(map(math.isfinite, read)) or max(read[: len(rewards)], default=0.0) > LARGEST_REWARD:
            self._report_non_finite(observed, outcome, visible)
        return int(num_acted), int(num_ended), read[: len(rewards)]

    def _report_non_finite(self, observed: Timestep, outcome: Step, visible: Tensor) -> None:
        """Raises NonFiniteError with the environment, agent and step of a NaN or infinity that counts."""
        spec = self.env.spec
        slices = spec.role_slices()
        for name, x in observed.obs.items():
            for leaf in tree_leaves(x):
                bad = ~leaf.flatten(3).isfinite().all(-1) & visible[..., slices[name]]
                self._raise_non_finite(bad, f"observation of role '{name}'", spec.agents[slices[name]])
        for name, x in observed.state.items():
            self._raise_non_finite(~x.isfinite().all(-1), f"state '{name}'", None)
        self._raise_non_finite(~outcome.reward.isfinite(), "reward", spec.agents)
        self._raise_non_finite(~outcome.group_reward.isfinite(), "group reward", spec.groups, kind="group")
        self._raise_too_large(outcome.reward, "reward", spec.agents, "agent")
        self._raise_too_large(outcome.group_reward, "group reward", spec.groups, "group")

    def _raise_too_large(self, reward: Tensor, what: str, names: tuple[str, ...], kind: str) -> None:
        """Raises NonFiniteError for the first reward [T, B, names] of which returns and losses would be infinite."""
        places = (reward.abs() > LARGEST_REWARD).nonzero()
        if len(places):
            t, env, owner = places[0].tolist()
            step = self._collected - len(reward) + t
            raise NonFiniteError(
                f"the {what} is {reward[t, env, owner].item():.3g}: environment {self.env.spec.name}, number {env}, "
                f"{kind} {names[owner]}, step {step}. Returns and losses of rewards above {LARGEST_REWARD:g} are "
                "infinite. Scale the reward (env.wrappers.reward_scale)."
            )

    def _raise_non_finite(self, bad: Tensor, what: str, names: tuple[str, ...] | None, *, kind: str = "agent") -> None:
        """Raises NonFiniteError for the first True of `bad`, [T, B] or [T, B, names]."""
        places = bad.nonzero()
        if len(places):
            place = places[0].tolist()
            owner = "" if names is None else f", {kind} {names[place[2]]}"
            step = self._collected - len(bad) + place[0]
            raise NonFiniteError(
                f"the {what} is NaN or infinite: environment {self.env.spec.name}, number {place[1]}{owner}, "
                f"step {step} ({len(places)} such values). Look for a division by zero or an unbounded state in the "
                "environment (coterie check-env)."
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the environment, its current timestep, hidden states, noise and unfinished episodes."""
        timestep = self._timestep
        return {
            "env": self.env.state_dict() if self.env.spec.exact_resume else {},
            "timestep": None if timestep is None else {k: x for k, x in vars(timestep).items() if k != "others"},
            "truncated_agents": self._truncated_agents,
            "steps_done": self._steps_done,
            "hidden_state": self._hidden_state,
            "noise": {name: g.get_state() for name, g in self._noise.items()},
            "collected": self._collected,
            "episodes": self.episodes.state_dict(),
            "finished": [f.state_dict() for f in self.finished],
        } | self._others.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`.

        Environments start new episodes if they cannot be restored, or if the state has none because another number of
        ranks saved it. Their seeds depend on the progress, so that the start of the run is not repeated.
        """
        device = self.env.device
        for name, noise_state in state["noise"].items():
            restore(self._noise[name], noise_state)
        self._others.load_state_dict(state)
        self._collected = state["collected"]
        self.finished = [FinishedEpisodes(**tree_map(lambda x: x.to(device), f)) for f in state["finished"]]
        if state["timestep"] is None and not self._collected:
            return
        if state["timestep"] is None or not self.env.spec.exact_resume:
            seed, rank = seed_of(self._seed, "resumed", self._collected), self._ranks.rank
            self._timestep = reset_env(self.env, seed_of(seed, "rank", rank) if rank else seed)
            return
        self.env.load_state_dict(state["env"])
        self._timestep = Timestep(**tree_map(lambda x: x.to(device), state["timestep"]))
        truncated: Tensor | None = state["truncated_agents"]
        self._truncated_agents = None if truncated is None else truncated.to(device)
        self._steps_done = state["steps_done"].to(device)
        self._hidden_state = tree_map(lambda x: x.to(device), state["hidden_state"])
        self.episodes.load_state_dict(state["episodes"])


def _largest_reward(team: TeamSpec, outcome: Step) -> Tensor:
    """Returns the largest sum of a team's absolute rewards in a step []."""
    reward = outcome.reward[..., team.start : team.stop].abs().sum(-1)
    if team.has_group_reward:
        groups = slice(team.groups[0], team.groups[-1] + 1)  # consecutive, as roles are ordered by group
        reward = reward + outcome.group_reward[..., groups].abs().sum(-1)
    return reward.amax()
