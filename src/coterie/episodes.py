"""Returns and lengths of the episodes that end in a stream of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from coterie.metrics import Metric, declare
from coterie.types import EnvSpec, TeamSpec

_KINDS = (("rollout", "while training"), ("eval", "in evaluation"))
for _area, _when in _KINDS:
    declare(
        Metric(f"{_area}/return_mean", "reward", f"mean return of a team's episodes {_when}", "up", "mean"),
        Metric(f"{_area}/return_std", "reward", f"spread of a team's returns {_when}", None, "mean"),
        Metric(f"{_area}/length_mean", "step", f"mean length of episodes {_when}", None, "mean"),
        Metric(f"{_area}/episodes", "episode", f"episodes that ended {_when}", None, "sum"),
        Metric(f"{_area}/metric", "", f"what the environment reports at an episode's last step {_when}", None, "mean"),
    )


@dataclass(frozen=True)
class Finished:
    """`E` episodes that ended: returns [E, N] by agent, group_returns [E, G], length [E], copy [E], metrics by name
    [E]; labels: by team [E] int64, as which of several its policy played, for policies that say so.
    """

    returns: Tensor
    group_returns: Tensor
    length: Tensor
    copy: Tensor
    metrics: dict[str, Tensor]
    labels: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def joined(parts: list[Finished]) -> Finished:
        """All of them. Who is several may have changed in between: only labels that all have are kept."""
        labelled = [team for team in parts[0].labels if all(team in p.labels for p in parts)]
        return Finished(
            torch.cat([p.returns for p in parts]),
            torch.cat([p.group_returns for p in parts]),
            torch.cat([p.length for p in parts]),
            torch.cat([p.copy for p in parts]),
            {name: torch.cat([p.metrics[name] for p in parts]) for name in parts[0].metrics},
            {team: torch.cat([p.labels[team] for p in parts]) for team in labelled},
        )

    def state_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def pick(self, which: Tensor) -> Finished:
        """The episodes at `which`, indices or a mask over [E]."""
        return Finished(
            self.returns[which],
            self.group_returns[which],
            self.length[which],
            self.copy[which],
            {name: x[which] for name, x in self.metrics.items()},
            {team: x[which] for team, x in self.labels.items()},
        )

    def team_return(self, team: TeamSpec) -> Tensor:
        """[E]: the returns of the team's agents added up, and its groups' once."""
        own = self.returns[:, team.start : team.stop].sum(-1)
        return own + self.group_returns[:, list(team.groups)].sum(-1)

    def summary(self, area: str, teams: dict[str, TeamSpec]) -> dict[str, float]:
        """Metrics of `area` (rollout or eval): by team, and by role and agent where there are not too many."""
        out: dict[str, float] = {}
        for name, team in teams.items():
            prefix = area if len(teams) == 1 else f"{area}/{name}"
            total = self.team_return(team)
            out[f"{prefix}/return_mean"] = float(total.mean())
            out[f"{prefix}/return_std"] = float(total.std(correction=0))
            if len(team.roles) > 1 or team.n <= 16:
                out |= {f"{prefix}/return_mean/{key}": value for key, value in self._parts(team).items()}
        out[f"{area}/length_mean"] = float(self.length.double().mean())
        out[f"{area}/episodes"] = len(self.length)
        out |= {f"{area}/metric/{name}": float(x.double().mean()) for name, x in self.metrics.items()}
        return out

    def _parts(self, team: TeamSpec) -> dict[str, float]:
        """Mean return of every role (its agents added up) and of every agent of a team of at most 16."""
        mean = self.returns[:, team.start : team.stop].mean(0).tolist()
        parts, at = {}, 0
        for role in team.roles:
            parts[role.name] = sum(mean[at : at + role.n])
            if team.n <= 16 and role.n > 1:
                parts |= dict(zip(role.agents, mean[at : at + role.n], strict=True))
            at += role.n
        return parts


class Episodes:
    """Adds up rewards a copy and cuts the sums where episodes end. No loop over copies or steps."""

    def __init__(self, spec: EnvSpec, copies: int, device: torch.device):
        self._n, self._groups = spec.n, len(spec.groups)
        self._metrics = spec.metrics
        # Sums of the running episodes: agents' returns, groups' returns, length.
        self._sums = torch.zeros(copies, self._n + self._groups + 1, dtype=torch.float64, device=device)

    def add(
        self,
        reward: Tensor,
        group_reward: Tensor,
        acted: Tensor,
        boundary: Tensor,
        metrics: list[dict[str, Tensor]],
        lost: Tensor | None = None,
        labels: dict[str, Tensor] | None = None,
    ) -> Finished:
        """The episodes that end within T steps, copy by copy in order.

        reward: [T, B, N]; group_reward: [T, B, G]; acted, boundary: [T, B]; metrics: T dicts by name [B]; lost: [T, B],
        where an episode is dropped: what it earned until then counts nowhere; labels: by team [T, B].
        """
        if lost is not None:
            boundary = boundary | lost
        sums = torch.cat([reward, group_reward, acted.unsqueeze(-1)], -1).double()
        sums[0] += self._sums
        sums = sums.cumsum_(0)
        copy, step = boundary.T.nonzero(as_tuple=True)
        totals = sums[step, copy]  # since the window's begin: what the episode before had is taken off
        if len(copy):
            same = copy[1:] == copy[:-1]
            before = torch.cat([torch.zeros_like(totals[:1]), torch.where(same[:, None], totals[:-1], 0.0)])
            last = torch.cat([~same, same.new_ones(1)])
            rest = sums[-1].clone()
            rest[copy[last]] -= totals[last]
            self._sums = rest
            totals = totals - before
        else:
            self._sums = sums[-1].clone()
        returns, group_returns, length = totals.split([self._n, self._groups, 1], -1)
        reported = {}
        if len(copy):
            reported = {name: torch.stack([m[name] for m in metrics])[step, copy] for name in self._metrics}
        told = {team: label[step, copy] for team, label in (labels or {}).items()}
        finished = Finished(returns, group_returns, length.squeeze(-1).long(), copy, reported, told)
        return finished if lost is None else finished.pick(~lost[step, copy])

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums = state["sums"].to(self._sums.device)
