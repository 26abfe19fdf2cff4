"""Returns of episodes that are played one after the other, by team."""

from __future__ import annotations

import torch

from coterie.core.specs import TeamSpec
from coterie.core.terminal import print_line
from coterie.core.types import Step, Timestep
from coterie.envs.contract.vector import VectorEnv
from coterie.math.intervals import standard_error
from coterie.training.episodes import EpisodeTracker
from coterie.training.rollout_builder import mask_rewards


class ReturnCounter:
    """Adds up the rewards of one environment.

    Args:
        env: A single environment.
        teams: Teams by name.

    Attributes:
        returns: Return of each finished episode by team.
    """

    def __init__(self, env: VectorEnv, teams: dict[str, TeamSpec]):
        self._teams, self._agents_can_die = teams, env.spec.agents_can_die
        self._tracker = EpisodeTracker(env.spec, 1, env.device)
        self.returns: dict[str, list[float]] = {name: [] for name in teams}

    def add(self, timestep: Timestep, step: Step) -> None:
        """Adds a step from a timestep, which may be the last one of an episode."""
        acted = timestep.acted.unsqueeze(0)
        alive = timestep.alive.unsqueeze(0) if self._agents_can_die else None
        finished = self._tracker.add(
            reward=mask_rewards(step.reward.unsqueeze(0), acted, alive),
            group_reward=mask_rewards(step.group_reward.unsqueeze(0), acted),
            acted=acted,
            episode_end=(step.episode_terminated | step.episode_truncated).unsqueeze(0),
            metrics=[step.metrics],
        )
        for name, team in self._teams.items():
            self.returns[name] += finished.team_return(team).tolist()


def print_returns(returns: dict[str, list[float]]) -> None:
    """Prints the mean return of each team on stdout, with its standard error after several episodes."""
    for team, values in returns.items():
        if len(values) == 1:
            print_line(f"return of {team}: {values[0]:.4g}")
        elif values:
            mean, error = sum(values) / len(values), standard_error(torch.tensor(values))
            print_line(f"return of {team}: {mean:.4g} ± {error:.2g} (mean and standard error, {len(values)} episodes)")
