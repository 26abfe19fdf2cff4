"""Evaluation with a fixed number of episodes per environment, which avoids a bias towards short episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.config import user_code
from coterie.core.errors import UserError
from coterie.core.seeds import generator, seed_of
from coterie.core.specs import TeamSpec
from coterie.envs.contract.vector import VectorEnv, reset_env
from coterie.functional.intervals import interval_95, standard_error
from coterie.policies.base import Mode, Policy
from coterie.training.episodes import EpisodeTracker, FinishedEpisodes
from coterie.training.rollout_builder import lost_steps, mask_rewards, opponent_labels, stack_time
from coterie.training.trajectory import Trajectory, Watch, collect, inference_context

CHUNK = 32
"""Steps between two checks of which environments have played their episodes."""

MAX_STEPS = 100_000
"""Steps per environment after which an evaluation or recording gives up."""

PATIENCE = 5_000
"""Steps per environment without the end of an episode after which a training continues without an evaluation: five
times the longest usual limit of episodes. It is longer if the environment declares a longer limit.
"""
_UNUSUAL = 10
"""Multiple of the longest episode so far that the next end may take."""

ProgressCallback = Callable[[int, int, str], None]
"""Called now and then with the number of episodes played, the total, and what an episode without an end waits for."""


class EndlessEpisodesError(UserError):
    """Episodes that do not end, so that an evaluation has no returns.

    Attributes:
        steps: Steps of each environment without the end of an episode that counts.
        episodes: Episodes that ended before.
    """

    def __init__(self, message: str, steps: int, episodes: int):
        super().__init__(message)
        self.steps, self.episodes = steps, episodes

    def in_training(self, what: str) -> str:
        """Returns the line that a training shows, which continues without the returns.

        Args:
            what: What was evaluated.
        """
        return (
            f"{what}: no {'further ' if self.episodes else ''}episode ended within {self.steps:,} steps of each "
            "environment, so that its return is unknown. Evaluations are left out until an episode ends in training. "
            "End episodes by a limit that fits the task, such as env.episode_limit=200"
        )


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        episodes: The episodes played.
        teams: The teams that played them, by name.
    """

    episodes: FinishedEpisodes
    teams: dict[str, TeamSpec]

    def metrics(self, rewarded: Collection[str] = ()) -> dict[str, float]:
        """Returns metrics for the log: `eval/return_mean` and others, with the team's name if there are several.

        Args:
            rewarded: Roles whose agents have got rewards of their own before.
        """
        return self.episodes.summary("eval", self.teams, rewarded)

    def env_metrics(self) -> dict[str, dict[str, Any]]:
        """Returns the environment's own metrics, such as the share of battles won, as `metrics` by name.

        `metrics_error` and `metrics_interval` are their standard errors and 95% intervals.
        """
        means = {name: float(value.double().mean()) for name, value in self.episodes.metrics.items()}
        errors = {name: standard_error(value) for name, value in self.episodes.metrics.items()}
        return {
            "metrics": means,
            "metrics_error": {name: _finite(error) for name, error in errors.items()},
            "metrics_interval": {name: _interval(mean, errors[name]) for name, mean in means.items()},
        }

    def report(self) -> dict[str, Any]:
        """Returns results by team as plain numbers.

        return_mean, return_error (its standard error), return_interval (its 95% interval), return_std,
        return_by_group (of group rewards only; {} in environments without them), return_by_agent (of an agent's own
        rewards only; None where group rewards are all that a role gets), and length_mean. Error and interval are None
        after a single episode.
        """
        out = {}
        for name, team in self.teams.items():
            total = self.episodes.team_return(team)
            mean, error = float(total.mean()), standard_error(total)
            out[name] = {
                "return_mean": mean,
                "return_error": _finite(error),
                "return_interval": _interval(mean, error),
                "return_std": float(total.std(correction=0)),
                "return_by_group": self.episodes.mean_by_group(team),
                "return_by_agent": self.episodes.mean_by_agent(team),
                "length_mean": float(self.episodes.length.double().mean()),
            }
        return out


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _interval(mean: float, error: float) -> list[float] | None:
    return list(interval_95(mean, error)) if math.isfinite(error) else None


class Evaluator:
    """Evaluates the current policies of a run in environments of its own, seeded by the run's seed and step.

    Args:
        env: Environments to evaluate in.
        policies: Policies by team.
        episodes: Minimum number of episodes per evaluation.
        modes: Action selection by team.
        seed: The evaluator's seed.
    """

    def __init__(
        self, env: VectorEnv, policies: dict[str, Policy], *, episodes: int, modes: dict[str, Mode], seed: int
    ):
        self.env, self.policies = env, policies
        self.episodes, self._modes, self._seed = episodes, modes, seed
        self.task = 0
        """Number of the task evaluated, such as a lesson. Results of different tasks are not comparable."""
        self.awaits_end = False
        """True if episodes did not end in the last evaluation, nor an episode in training since."""

    def set_policies(self, policies: dict[str, Policy]) -> None:
        """Replaces the policies of the given teams."""
        self.policies = self.policies | policies

    def __call__(self, steps: int, on_progress: ProgressCallback | None = None) -> Evaluation:
        """Evaluates after `steps` environment steps of the run.

        Raises:
            EndlessEpisodesError: If episodes do not end. `awaits_end` is then True.
        """
        try:
            return evaluate(
                self.env,
                self.policies,
                episodes=self.episodes,
                modes=self._modes,
                seed=seed_of(self._seed, "eval", steps),
                patience=PATIENCE,
                on_progress=on_progress,
            )
        except EndlessEpisodesError:
            self.awaits_end = True
            raise


@user_code.reported()
def evaluate(
    env: VectorEnv,
    policies: dict[str, Policy],
    *,
    episodes: int,
    modes: dict[str, Mode],
    seed: int,
    patience: int = MAX_STEPS,
    on_progress: ProgressCallback | None = None,
    watch: Watch | None = None,
) -> Evaluation:
    """Plays at least `episodes` episodes: the same number in every environment, the first ones that each finishes.

    Args:
        env: Environments to play in.
        policies: Policies by team.
        episodes: Minimum number of episodes in all.
        modes: Action selection by team.
        seed: Seed of the environments and of the policies' noise.
        patience: Maximum number of steps per environment until the next episode ends that counts. It is longer, up to
            100,000 steps, where the environment's limit or the episodes so far are.
        on_progress: Called after every few steps.
        watch: Reads what the environment returns.

    Raises:
        EndlessEpisodesError: If no episode has ended for so many steps.
    """
    quota = -(-episodes // env.num_envs)
    noise_generators = {name: generator(seed, "noise", name, device=env.device) for name in policies}
    tracker = EpisodeTracker(env.spec, env.num_envs, env.device)
    played = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
    kept: list[FinishedEpisodes] = []
    waited, most = 0, max(patience, min((env.spec.episode_limit or 0) + CHUNK, MAX_STEPS))
    with inference_context(env, policies.values()):
        timestep = reset_env(env, seed)
        if watch is not None:
            watch.reset(timestep)
        hidden_state = {name: policy.initial_hidden_state(env.num_envs) for name, policy in policies.items()}
        while waited < most:
            noise = {name: p.draw_noise(CHUNK, env.num_envs, noise_generators[name]) for name, p in policies.items()}
            trajectory = collect(env, policies, timestep, hidden_state, noise=noise, modes=modes, watch=watch)
            timestep, hidden_state = trajectory.timesteps[-1], trajectory.hidden_state
            finished, waited = _finished_episodes(trajectory, tracker, env.spec.agents_can_die), waited + CHUNK
            if len(finished):
                within_quota = played[finished.env_index] + _rank(finished.env_index) < quota
                finished = finished.select(within_quota)
            if len(finished):
                kept.append(finished)
                played += torch.bincount(finished.env_index, minlength=env.num_envs)
                waited, most = 0, max(most, min(_UNUSUAL * int(finished.length.max()), MAX_STEPS))
            if on_progress is not None:
                on_progress(int(played.sum()), quota * env.num_envs, waiting_text(waited, most))
            if bool((played >= quota).all()):
                teams = {name: policy.team for name, policy in policies.items()}
                return Evaluation(FinishedEpisodes.concatenate(kept), teams)
    raise EndlessEpisodesError(
        f"evaluation of {env.spec.name}: {int((played < quota).sum())} of {env.num_envs} environments did not finish "
        f"{quota} episodes, and no further one ended within {waited:,} steps. Set an episode limit "
        "(env.episode_limit=...).",
        waited,
        int(played.sum()),
    )


def waiting_text(steps: int, max_steps: int) -> str:
    """Returns what an evaluation or recording waits for after a number of steps per environment."""
    return (
        f"No further episode has ended, after {steps:,} of at most {max_steps:,} steps per environment. "
        "env.episode_limit ends them earlier"
    )


def _finished_episodes(trajectory: Trajectory, tracker: EpisodeTracker, agents_can_die: bool) -> FinishedEpisodes:
    """Returns the episodes that end within the trajectory."""
    timesteps, steps = trajectory.timesteps[:-1], trajectory.steps
    acted, lost = torch.stack([timestep.acted for timestep in timesteps]), lost_steps(steps)
    if lost is not None:
        acted = acted & ~lost
    alive = torch.stack([timestep.alive for timestep in timesteps]) if agents_can_die else None
    return tracker.add(
        reward=mask_rewards(torch.stack([step.reward for step in steps]), acted, alive),
        group_reward=mask_rewards(torch.stack([step.group_reward for step in steps]), acted),
        acted=acted,
        episode_end=torch.stack([step.episode_terminated | step.episode_truncated for step in steps]),
        episode_truncated=torch.stack([step.episode_truncated for step in steps]),
        metrics=[step.metrics for step in steps],
        lost=lost,
        labels=opponent_labels(stack_time(trajectory.extras)),
    )


def _rank(index: Tensor) -> Tensor:
    """Returns the number of equal entries before each entry of a sorted vector [E]."""
    positions = torch.arange(len(index), device=index.device)
    starts = torch.cat([index.new_ones(1, dtype=torch.bool), index[1:] != index[:-1]])
    return positions - torch.where(starts, positions, 0).cummax(0).values
