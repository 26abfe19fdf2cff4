"""Returns and lengths of finished episodes, computed from a stream of timesteps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from coterie.core.metrics import Metric, declare
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from coterie.functional.intervals import standard_error
from coterie.kernels import episodes as kernel
from coterie.kernels import switch
from coterie.kernels.episodes import EndedEpisodes

_MAX_LISTED_AGENTS = 16
"""Teams with more agents than this get no return per agent in the metrics."""

for _area, _when in (("rollout", "during training"), ("eval", "during evaluation")):
    declare(
        Metric(
            f"{_area}/return_mean", "reward", f"mean return per episode of a team {_when}", better="up", combine="mean"
        ),
        Metric(
            f"{_area}/group_return_mean",
            "reward",
            f"mean sum of group rewards per episode {_when}, without the agents' own rewards",
            better="up",
            combine="mean",
        ),
        Metric(
            f"{_area}/return_std",
            "reward",
            f"standard deviation of a team's returns {_when}",
            better=None,
            combine="mean",
        ),
        Metric(f"{_area}/length_mean", "step", f"mean episode length {_when}", better=None, combine="mean"),
        Metric(f"{_area}/episodes", "episode", f"episodes finished {_when}", better=None, combine="sum"),
        Metric(
            f"{_area}/metric",
            "",
            f"environment metric at the last step of an episode {_when}",
            better=None,
            combine="mean",
        ),
    )

declare(
    Metric("eval/return_error", "reward", "standard error of a team's mean return in an evaluation", better=None),
    Metric("eval/metric_error", "", "standard error of an environment metric in an evaluation", better=None),
    Metric(
        "rollout/truncated",
        "share",
        "share of the episodes that a limit ended during training",
        better=None,
        combine="mean",
    ),
)


@dataclass(frozen=True)
class FinishedEpisodes:
    """Results of `E` finished episodes.

    Attributes:
        returns: Sum of each agent's own rewards, [E, N].
        group_returns: Sum of each group's rewards, [E, G].
        length: Number of steps, [E].
        truncated: True where a limit ended the episode, not the task, [E] bool.
        env_index: Index of the environment that played the episode, [E].
        metrics: Environment metrics at the last step by name, [E] each.
        labels: For teams that play as one of several opponents, the opponent's number by team, [E] int64 each.
    """

    returns: Tensor
    group_returns: Tensor
    length: Tensor
    truncated: Tensor
    env_index: Tensor
    metrics: dict[str, Tensor]
    labels: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.length)

    @staticmethod
    def concatenate(parts: list[FinishedEpisodes]) -> FinishedEpisodes:
        """Concatenates the episodes; keeps only the labels that all parts have, since opponents may have changed."""
        labeled = [team for team in parts[0].labels if all(team in p.labels for p in parts)]
        return FinishedEpisodes(
            returns=torch.cat([p.returns for p in parts]),
            group_returns=torch.cat([p.group_returns for p in parts]),
            length=torch.cat([p.length for p in parts]),
            truncated=torch.cat([p.truncated for p in parts]),
            env_index=torch.cat([p.env_index for p in parts]),
            metrics={name: torch.cat([p.metrics[name] for p in parts]) for name in parts[0].metrics},
            labels={team: torch.cat([p.labels[team] for p in parts]) for team in labeled},
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def select(self, index: Tensor) -> FinishedEpisodes:
        """Returns the episodes at `index`, which is a tensor of indices or a mask over [E]."""
        return FinishedEpisodes(
            returns=self.returns[index],
            group_returns=self.group_returns[index],
            length=self.length[index],
            truncated=self.truncated[index],
            env_index=self.env_index[index],
            metrics={name: x[index] for name, x in self.metrics.items()},
            labels={team: x[index] for team, x in self.labels.items()},
        )

    def team_return(self, team: TeamSpec) -> Tensor:
        """Returns the team's return per episode [E]: its agents' own rewards plus its groups' rewards, counted once."""
        own = self.returns[:, team.start : team.stop].sum(-1)
        return own + self.group_returns[:, list(team.groups)].sum(-1)

    def rewarded_roles(self, teams: Iterable[TeamSpec]) -> set[str]:
        """Returns the roles whose agents' own rewards are known to count: in environments with group rewards, those
        with a return other than zero. Where only groups are rewarded, zeros of agents are not results.
        """
        rewarded, found = (self.returns != 0).any(0).tolist(), set()
        for team in teams:
            for role, agents in _role_slices(team):
                if not team.has_group_reward or any(rewarded[agents]):
                    found.add(role.name)
        return found

    def summary(self, area: str, teams: dict[str, TeamSpec], rewarded: Collection[str] = ()) -> dict[str, float]:
        """Returns the metrics of an area by team and, in small teams, by role and agent.

        Args:
            area: "rollout" or "eval".
            teams: Teams by name.
            rewarded: Roles whose agents have got rewards of their own in other episodes. Returns of roles and agents
                are those of own rewards, and left out for other roles unless they have `rewarded_roles` here.
        """
        out: dict[str, float] = {}
        rewarded = self.rewarded_roles(teams.values()) | set(rewarded)
        for name, team in teams.items():
            prefix = area if len(teams) == 1 else f"{area}/{name}"
            total = self.team_return(team)
            out[f"{prefix}/return_mean"] = float(total.mean())
            out[f"{prefix}/return_std"] = float(total.std(correction=0))
            if area == "eval":
                out[f"{prefix}/return_error"] = standard_error(total)
            by_group = self.mean_by_group(team)
            if by_group:
                out[f"{prefix}/group_return_mean"] = sum(by_group.values())
            if len(by_group) > 1:
                out |= {f"{prefix}/group_return_mean/{group}": value for group, value in by_group.items()}
            if len(team.roles) > 1 or team.n <= _MAX_LISTED_AGENTS:
                by_member = self._mean_by_member(team, rewarded)
                out |= {f"{prefix}/return_mean/{key}": value for key, value in by_member.items()}
        out[f"{area}/length_mean"] = float(self.length.double().mean())
        out[f"{area}/episodes"] = len(self)
        out |= {f"{area}/metric/{name}": float(x.double().mean()) for name, x in self.metrics.items()}
        if area == "eval":
            out |= {f"eval/metric_error/{name}": standard_error(x) for name, x in self.metrics.items()}
        else:
            out[f"{area}/truncated"] = float(self.truncated.double().mean())
        return out

    def mean_by_group(self, team: TeamSpec) -> dict[str, float]:
        """Returns the mean sum of rewards of each of the team's groups; {} without group rewards."""
        if not team.has_group_reward:
            return {}
        names = dict.fromkeys(role.group for role in team.roles)
        return dict(zip(names, self.group_returns[:, list(team.groups)].mean(0).tolist(), strict=True))

    def mean_by_agent(self, team: TeamSpec) -> dict[str, float | None]:
        """Returns the mean sum of each agent's own rewards; None for roles without `rewarded_roles`."""
        mean, rewarded = self.returns.mean(0).tolist(), self.rewarded_roles([team])
        found = {}
        for role, agents in _role_slices(team):
            values = mean[agents] if role.name in rewarded else [None] * role.n
            found |= dict(zip(role.agents, values, strict=True))
        return found

    def _mean_by_member(self, team: TeamSpec, rewarded: Collection[str]) -> dict[str, float]:
        """Returns the mean return of every rewarded role (its agents summed) and, in small teams, of every agent."""
        mean, found = self.returns.mean(0).tolist(), {}
        for role, agents in _role_slices(team):
            if role.name not in rewarded:
                continue
            found[role.name] = sum(mean[agents])
            if team.n <= _MAX_LISTED_AGENTS and role.n > 1:
                found |= dict(zip(role.agents, mean[agents], strict=True))
        return found


def _role_slices(team: TeamSpec) -> Iterator[tuple[RoleSpec, slice]]:
    """Yields the team's roles with their slices of the environment's agent axis."""
    start = team.start
    for role in team.roles:
        yield role, slice(start, start + role.n)
        start += role.n


class EpisodeTracker:
    """Accumulates rewards per environment and splits the sums where episodes end, without loops over environments."""

    def __init__(self, spec: EnvSpec, num_envs: int, device: torch.device):
        self._num_agents, self._num_groups = spec.n, len(spec.groups)
        self._metrics = spec.metrics
        # Sums over the unfinished episodes: returns of the agents, returns of the groups, length.
        self._sums = torch.zeros(num_envs, self._num_agents + self._num_groups + 1, dtype=torch.float64, device=device)

    def add(
        self,
        *,
        reward: Tensor,
        group_reward: Tensor,
        acted: Tensor,
        episode_end: Tensor,
        episode_truncated: Tensor,
        num_ended: int | None = None,
        metrics: list[dict[str, Tensor]],
        lost: Tensor | None = None,
        labels: dict[str, Tensor] | None = None,
    ) -> FinishedEpisodes:
        """Adds T steps of B environments and returns the episodes that end within them, ordered by environment.

        Args:
            reward: Rewards of the agents, [T, B, N].
            group_reward: Rewards of the groups, [T, B, G].
            acted: True where an action was taken, [T, B] bool.
            episode_end: True where an episode ends, [T, B] bool.
            episode_truncated: True where a limit ends an episode, [T, B] bool.
            num_ended: Number of episodes that end or are dropped, so that a GPU is not waited for; None to read it.
            metrics: Environment metrics of each step by name, T dicts of [B].
            lost: True where an episode is dropped because its worker failed, [T, B] bool. Its rewards are discarded.
            labels: Opponent numbers by team, [T, B] int64 each.
        """
        if lost is not None:
            episode_end = episode_end | lost
        arguments = (reward, group_reward, acted, episode_end, self._sums)
        found = kernel.sum_episodes(*arguments) if switch.on else None
        self._sums, totals, env, step = _sum_episodes(*arguments, num_ended) if found is None else found
        returns, group_returns, length = totals.split([self._num_agents, self._num_groups, 1], -1)
        finished = FinishedEpisodes(
            returns=returns,
            group_returns=group_returns,
            length=length.squeeze(-1).long(),
            truncated=episode_truncated[step, env],
            env_index=env,
            metrics={name: torch.stack([m[name] for m in metrics])[step, env] for name in self._metrics}
            if len(env)
            else {},
            labels={team: label[step, env] for team, label in (labels or {}).items()},
        )
        return finished if lost is None else finished.select(~lost[step, env])

    def state_dict(self) -> dict[str, Any]:
        """Returns the sums over the unfinished episodes."""
        return {"sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self._sums = state["sums"].to(self._sums.device)


def _sum_episodes(
    reward: Tensor, group_reward: Tensor, acted: Tensor, ended: Tensor, before: Tensor, num_ended: int | None
) -> EndedEpisodes:
    """Does what `coterie.kernels.episodes.sum_episodes` does. `num_ended` is read by GPUs only."""
    sums = torch.cat([reward, group_reward, acted.unsqueeze(-1)], -1).double()
    sums[0] += before
    sums = sums.cumsum_(0)
    if num_ended is None or not ended.is_cuda:
        env, step = ended.T.nonzero(as_tuple=True)
    else:
        ends = true_indices(ended.T.flatten(), num_ended)
        env, step = ends // len(reward), ends % len(reward)
    totals = sums[step, env]  # includes the earlier episodes of this rollout, which are subtracted below
    if not len(env):
        return EndedEpisodes(sums[-1].clone(), totals, env, step)
    same_env = env[1:] == env[:-1]
    earlier = torch.cat([torch.zeros_like(totals[:1]), torch.where(same_env[:, None], totals[:-1], 0.0)])
    last_of_env = torch.cat([~same_env, same_env.new_ones(1)])
    after = sums[-1].index_add(0, env, torch.where(last_of_env[:, None], totals, 0.0), alpha=-1)
    return EndedEpisodes(after, totals - earlier, env, step)


def true_indices(mask: Tensor, count: int) -> Tensor:
    """Returns the indices of the True entries of `mask` [M] bool in ascending order, [count] int64.

    `count` is their number. Unlike for `nonzero`, the host does not wait for a GPU.
    """
    place = torch.where(mask, mask.cumsum(0) - 1, count)  # False entries share the last place, which is dropped
    index = torch.arange(len(mask), device=mask.device)
    return torch.empty(count + 1, dtype=torch.int64, device=mask.device).scatter_(0, place, index)[:count]
