"""Evaluation: a fixed quota of episodes a copy, so that short episodes are not favoured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from coterie.collect import due, labels_in, live, lost_in, stepping
from coterie.envs.vector import VectorEnv, begin
from coterie.episodes import Episodes, Finished
from coterie.errors import UserError
from coterie.policy import Mode, Policy
from coterie.seeds import generator, seed_of
from coterie.types import TeamSpec

CHUNK = 32
"""Steps between two looks at which copies have played their quota."""

Told = Callable[[int, int], None]
"""Is told now and then how many episodes of how many are played."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: the episodes, and the teams that played them."""

    episodes: Finished
    teams: dict[str, TeamSpec]

    def metrics(self) -> dict[str, float]:
        """Rows for the log: eval/return_mean and the rest, with the team's name where there are several."""
        return self.episodes.summary("eval", self.teams)

    def measured(self) -> dict[str, float]:
        """Means over episodes of the environment's own metrics, such as the share of battles won; {} if it has none."""
        return {name: float(value.double().mean()) for name, value in self.episodes.metrics.items()}

    def return_mean(self, team: str) -> float:
        """Mean over episodes of the team's return: its agents' rewards added up, and its groups' once."""
        return float(self.episodes.team_return(self.teams[team]).mean())

    def report(self) -> dict[str, Any]:
        """The teams' results as plain numbers: return_mean, return_std, return_by_agent, length_mean."""
        out = {}
        for name, team in self.teams.items():
            total = self.episodes.team_return(team)
            by_agent = self.episodes.returns[:, team.start : team.stop].mean(0).tolist()
            out[name] = {
                "return_mean": float(total.mean()),
                "return_std": float(total.std(correction=0)),
                "return_by_agent": dict(zip(team.agents, by_agent, strict=True)),
                "length_mean": float(self.episodes.length.double().mean()),
            }
        return out


class Evaluator:
    """Evaluates the present policies of a run on copies of its own; the seeds come from the run's and the step."""

    def __init__(self, env: VectorEnv, policies: dict[str, Policy], episodes: int, mode: dict[str, Mode], seed: int):
        self.env, self.policies = env, policies
        self._episodes, self._mode, self._seed = episodes, mode, seed
        self.task = 0
        """Number of what is evaluated; results of different ones do not compare."""

    def seat(self, policies: dict[str, Policy]) -> None:
        """From now on these act for their teams."""
        self.policies = self.policies | policies

    def __call__(self, steps: int, told: Told | None = None) -> Evaluation:
        """The evaluation at `steps` of the run; told: as in `evaluate`."""
        seed = seed_of(self._seed, "eval", steps)
        return evaluate(self.env, self.policies, self._episodes, self._mode, seed, told=told)


def evaluate(
    env: VectorEnv,
    policies: dict[str, Policy],
    episodes: int,
    mode: dict[str, Mode],
    seed: int,
    most_steps: int = 100_000,
    told: Told | None = None,
) -> Evaluation:
    """Plays at least `episodes` episodes: as many in every copy of `env`, the first ones that each copy finishes.

    mode: greedy or sample, a team; seed: of the environment and of the policies' noise; most_steps: UserError if a
    copy has not played its quota after so many steps; told: is called after every few steps.
    """
    quota = -(-episodes // env.copies)
    noises = {name: generator(seed, "noise", name, device=env.device) for name in policies}
    tracker = Episodes(env.spec, env.copies, env.device)
    played = torch.zeros(env.copies, dtype=torch.long, device=env.device)
    kept: list[Finished] = []
    with stepping(env, policies.values()):
        row = begin(env, seed)
        carry = {name: policy.start(env.copies) for name, policy in policies.items()}
        for _ in range(0, most_steps, CHUNK):
            noise = {name: p.noise(CHUNK, env.copies, noises[name]) for name, p in policies.items()}
            lived = live(env, policies, row, carry, noise, mode)
            rows, steps, row, carry = lived.rows[:-1], lived.steps, lived.rows[-1], lived.carry
            acted, lost = torch.stack([r.acted for r in rows]), lost_in(steps)
            if lost is not None:
                acted = acted & ~lost
            alive = torch.stack([r.alive for r in rows]) if env.spec.mortal else None
            finished = tracker.add(
                due(torch.stack([s.reward for s in steps]), acted, alive),
                due(torch.stack([s.group_reward for s in steps]), acted),
                acted,
                torch.stack([s.episode_terminated | s.episode_truncated for s in steps]),
                [s.metrics for s in steps],
                lost,
                labels_in(lived.records),
            )
            if len(finished.copy):
                finished = finished.pick(played[finished.copy] + _rank(finished.copy) < quota)
                kept.append(finished)
                played += torch.bincount(finished.copy, minlength=env.copies)
            if told is not None:
                told(int(played.sum()), quota * env.copies)
            if bool((played >= quota).all()):
                teams = {name: policy.team for name, policy in policies.items()}
                return Evaluation(Finished.joined(kept), teams)
    raise UserError(
        f"evaluation of {env.spec.name}: {int((played < quota).sum())} of {env.copies} copies did not finish {quota} "
        f"episodes within {most_steps} steps: give the environment an episode limit (env.episode_limit=...)"
    )


def _rank(copy: torch.Tensor) -> torch.Tensor:
    """How many entries before each one of a sorted vector [E] are equal to it."""
    places = torch.arange(len(copy), device=copy.device)
    begins = torch.cat([copy.new_ones(1, dtype=torch.bool), copy[1:] != copy[:-1]])
    return places - torch.where(begins, places, 0).cummax(0).values
