"""Choice of the best checkpoints of a run: one by the setting `eval.best`, and one for each team that learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.training.curriculum import check_metric

_UNKNOWN = -math.inf


@dataclass(frozen=True)
class BestRule:
    """The metric by which a checkpoint is the best.

    Attributes:
        metric: Name of the metric, such as `eval/adversary/return_mean`, or `selfplay/elo` for the sum of all ratings.
        team: The team that learns to which the metric belongs; None for a metric of no such team.
        lowest: True if lower values are better.
        value: Returns the value after an evaluation; None to read it from the evaluation's metrics.
    """

    metric: str
    team: str | None = None
    lowest: bool = False
    value: Callable[[], float] | None = None

    def score(self, metrics: Mapping[str, float]) -> float:
        """Returns the value of an evaluation, higher is better."""
        value = metrics.get(self.metric, math.nan) if self.value is None else self.value()
        return -value if self.lowest else value

    def describe(self) -> str:
        """Returns the metric, with a minus sign if lower values are better."""
        return f"-{self.metric}" if self.lowest else self.metric


@dataclass(frozen=True)
class BestRules:
    """The rules of a run.

    Attributes:
        run: Rule of the checkpoint `best`.
        teams: Rule of each team's own best checkpoint; empty if only one team learns.
        min_episodes: Episodes that an evaluation needs.
    """

    run: BestRule
    teams: Mapping[str, BestRule]
    min_episodes: int

    def describe(self) -> dict[str, str]:
        """Returns the metric of `best` under "" and those of the teams under their names."""
        return {"": self.run.describe(), **{team: rule.describe() for team, rule in self.teams.items()}}


@dataclass(frozen=True)
class Best:
    """Roles of the checkpoint after an evaluation: the best of the run, and of these teams."""

    of_run: bool = False
    of_teams: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.of_run or bool(self.of_teams)


class BestChoice:
    """Compares evaluations and remembers the best values.

    Evaluations before the first update, and those with too few episodes, are ignored.

    Args:
        rules: The rules of the run.
        task: Number of the task that is evaluated first, such as a lesson.
    """

    def __init__(self, rules: BestRules, task: int):
        self.rules, self._task = rules, task
        self._best: dict[str, float] = {}
        self._latest: list[str] = []  # for which the latest evaluation counts: "" is the run, others are teams

    def add(self, metrics: Mapping[str, float], *, task: int, trained: Collection[str]) -> Best:
        """Adds an evaluation.

        Args:
            metrics: Its metrics by name.
            task: Number of the task that was evaluated. Values of different tasks are not comparable.
            trained: Teams that have learned before the evaluation.

        Returns:
            The roles of the checkpoint of this step.
        """
        if task != self._task:
            self._task, self._best = task, {}
        self._latest = []
        if metrics["eval/episodes"] < self.rules.min_episodes:
            return Best()
        better = []
        for name, rule in {"": self.rules.run, **self.rules.teams}.items():
            if not (trained if rule.team is None else rule.team in trained):
                continue
            self._latest.append(name)
            score = rule.score(metrics)
            if score > self._best.get(name, _UNKNOWN):
                self._best[name] = score
                better.append(name)
        return _best_of(better)

    def only(self) -> Best:
        """Returns the roles of the only checkpoint that is kept: the best of all for which its evaluation counts."""
        return _best_of(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """Returns the best values."""
        return {"task": self._task, "best": dict(self._best), "latest": list(self._latest)}

    def restore(self, checkpoint: Mapping[str, Any], best_steps: int | None) -> None:
        """Restores the values of a checkpoint.

        Args:
            checkpoint: State of a run. `best` is the result of `state_dict`, None if there were no evaluations, or in
                runs of older versions a single number.
            best_steps: Steps of the checkpoint that is marked as best. That of step 0, which older versions may have
                marked, does not count.
        """
        state = checkpoint["best"]
        if isinstance(state, Mapping):
            self._task, self._best = state["task"], dict(state["best"])
            self._latest = list(state["latest"])
        elif state is not None and best_steps != 0:
            self._task, self._best = checkpoint["task"], {"": state} if math.isfinite(state) else {}


def _best_of(names: Sequence[str]) -> Best:
    return Best("" in names, tuple(name for name in names if name))


def best_rules(
    setting: str,
    min_episodes: int,
    *,
    teams: Sequence[str],
    learners: Sequence[str],
    env_metrics: Collection[str],
    has_group_reward: bool,
    ratings: Mapping[str, Callable[[], float]],
) -> BestRules:
    """Returns the rules that `eval.best` describes.

    Args:
        setting: `auto`, `METRIC` or `TEAM/METRIC`, each metric without `eval/`; with a minus sign, lower is better.
        min_episodes: Episodes that an evaluation needs.
        teams: All teams of the run.
        learners: The teams that learn.
        env_metrics: The environment's own metrics.
        has_group_reward: True if the environment gives group rewards.
        ratings: With self-play, the functions that return the rating of each team's newest snapshot.

    Raises:
        UserError: If the run never logs the metric.
    """
    several = len(teams) > 1

    def rule_of(team: str) -> BestRule:
        if team in ratings:
            return BestRule(f"selfplay/{team}/elo" if len(ratings) > 1 else "selfplay/elo", team, value=ratings[team])
        return BestRule(f"eval/{team}/return_mean" if several else "eval/return_mean", team)

    own = {team: rule_of(team) for team in learners} if len(learners) > 1 else {}
    if setting == "auto":
        if not ratings:
            return BestRules(rule_of(learners[0]), own, min_episodes)
        total = BestRule("selfplay/elo", value=lambda: sum(rating() for rating in ratings.values()))
        return BestRules(total, own, min_episodes)
    lowest, name = setting.startswith("-"), setting.removeprefix("-")
    rated, _, metric = name.rpartition("/")
    if metric == "elo" and rated in ratings:
        chosen = BestRule(rule_of(rated).metric, rated, lowest, ratings[rated])
    else:
        metric, team = _evaluation_metric(
            name, setting, teams=teams, env_metrics=env_metrics, has_group_reward=has_group_reward
        )
        chosen = BestRule(metric, team if team in learners else None, lowest)
    if chosen.team in own:
        own[chosen.team] = chosen
    return BestRules(chosen, own, min_episodes)


def _evaluation_metric(
    name: str, setting: str, *, teams: Sequence[str], env_metrics: Collection[str], has_group_reward: bool
) -> tuple[str, str | None]:
    """Returns the logged name of a metric and its team, if any. UserError if the run never logs it."""
    name = name.removeprefix("eval/")
    first, _, rest = name.partition("/")
    team = first if first in teams and rest else None
    if team is not None and (len(teams) == 1 or rest.startswith("metric/")):
        name = rest  # metrics of the environment, and those of a single team, are logged without the team
    waiting = f"eval.best={setting}: the best checkpoint"
    check_metric(
        waiting,
        f"eval/{name}",
        teams=teams,
        env_metrics=env_metrics,
        has_group_reward=has_group_reward,
        evaluates=True,
    )
    return f"eval/{name}", teams[0] if len(teams) == 1 else team
