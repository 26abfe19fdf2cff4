"""Summary at the end of training: returns, time, files and commands to continue."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from coterie.config.schema import RunConfig
from coterie.core.metrics import by_team
from coterie.core.shell import coterie_command
from coterie.core.text import printable
from coterie.runs.plots import sparkline
from coterie.runs.progress import duration, number

_FILES = (
    ("metrics", "metrics.jsonl"),
    ("curves", "curves.png"),
    ("checkpoints", "checkpoints"),
    ("TensorBoard", "tensorboard"),
    ("videos", "videos"),
)


@dataclass(frozen=True)
class TeamSummary:
    """Mean returns of one team.

    `team` is "" if there is only one. `area` is `evaluation`, or `training` without evaluations. `best` is the best
    return after the start of training and `best_steps` its step. `now_error` and `best_error` are standard errors of
    these means, NaN if unknown. `random` is the return of the random policy and `published` the score in the
    literature, None if unknown. `history` contains all returns, oldest first.
    """

    team: str
    area: str
    start: float
    now: float
    best: float
    best_steps: int
    random: float | None
    published: float | None
    history: tuple[float, ...]
    now_error: float = math.nan
    best_error: float = math.nan

    @property
    def comparison(self) -> str:
        """Comparison of the best return with the random policy and the published score. "" if neither is known."""
        if self.random is None:
            if self.published is None:
                return ""
            return _compare(self.best - self.published, f"the published score ({number(self.published)})")
        if self.published is None or self.published <= self.random or self.best < self.random:
            return _compare(self.best - self.random, f"the random policy ({number(self.random)})")
        share = (self.best - self.random) / (self.published - self.random)
        return (
            f"best is {share:.0%} of the way from the random policy ({number(self.random)}) "
            f"to the published score ({number(self.published)})"
        )


def _compare(difference: float, reference: str) -> str:
    position = "above" if difference >= 0 else "below"
    return f"best is {number(abs(difference))} {position} {reference}"


@dataclass(frozen=True)
class Summary:
    """Result of a run. `print` shows it in a terminal, `text` returns it without colors.

    `steps` is the number of steps done and `total` the number requested. `wall_s` is the time of all sessions of the
    run, NaN if unknown. `files` contains pairs of a name and a path.
    """

    run: Path
    steps: int
    total: int
    wall_s: float
    teams: tuple[TeamSummary, ...]
    files: tuple[tuple[str, Path], ...]
    lesson: str = ""
    """The latest lesson, e.g. `lesson 2 of 3: far`."""
    elo: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """With self-play: Elo rating of the newest snapshot and its standard error by team, "" if one team plays all sides.
    """
    warnings: tuple[str, ...] = ()
    """Problems that did not stop the run, one line each."""
    findings: tuple[str, ...] = ()
    """Findings of high severity on the run, one line each, the worst first."""

    @property
    def next_commands(self) -> tuple[tuple[str, str], ...]:
        """Useful next commands, each with a word that describes it."""
        more = [] if self.steps < self.total else [f"steps={2 * self.steps}"]
        opponents = (
            ("league", coterie_command("league", self.run, "random")),
            ("exploit", coterie_command("exploit", self.run)),
        )
        return (
            ("video", coterie_command("play", self.run, "--video", "out.mp4")),
            ("evaluate", coterie_command("evaluate", self.run)),
            *(opponents if self.elo else ()),
            *([("diagnose", coterie_command("diagnose", self.run))] if self.findings else ()),
            ("continue", coterie_command("resume", self.run, *more)),
            ("plot", coterie_command("plot", self.run)),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(printable(self._headline()), style="bold")
        if self.teams:
            yield ""
            yield self._returns(history=options.max_width >= 100)
        comparisons = [f"{team.team}: {team.comparison}".removeprefix(": ") for team in self.teams if team.comparison]
        comparisons += [
            f"{team}: {rated}".removeprefix(": ")
            for team, (rating, error) in self.elo.items()
            for rated in [f"Elo of the newest snapshot: {rating:.0f} ± {error:.0f} (untrained policy: 0)"]
        ]
        for block in (
            [Text(printable(line), style="yellow") for line in (*self.warnings, *self.findings)],
            [Text(printable(line)) for line in comparisons],
            _pairs([(name, str(path)) for name, path in self.files], "dim"),
            _pairs(self.next_commands, "cyan"),
        ):
            if block:
                yield ""
                yield from block

    def print(self, console: Console | None = None) -> None:
        """Prints the summary, to stdout by default. Paths and commands are never wrapped."""
        (console or Console()).print(self, soft_wrap=True)

    def text(self, width: int = 120) -> str:
        """Returns the summary as plain text. Paths and commands may be longer than `width` characters."""
        console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, _environ={})
        self.print(console)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"

    def _headline(self) -> str:
        target = "" if self.steps >= self.total else f" of {self.total:,}"
        lesson = f", {self.lesson}" if self.lesson else ""
        if not self.wall_s > 0:
            return f"{self.steps:,}{target} steps{lesson}"
        return (
            f"{self.steps:,}{target} steps in {duration(self.wall_s)} ({self.steps / self.wall_s:,.0f} steps/s){lesson}"
        )

    def _returns(self, history: bool) -> Table:
        """Returns the table of returns, one line per team. `random` and `published` are shown only if known."""
        with_random = any(team.random is not None for team in self.teams)
        with_published = any(team.published is not None for team in self.teams)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(f"{self.teams[0].area} return")
        columns = [*["random"] * with_random, "start", "now", "best", *["published"] * with_published]
        for heading in columns:
            table.add_column(heading, justify="right", no_wrap=True, style="bold green" if heading == "best" else "")
        table.add_column("best at step", justify="right", no_wrap=True)
        for team in self.teams:
            errors = {"now": team.now_error, "best": team.best_error}
            values = (_with_error(getattr(team, heading), errors.get(heading, math.nan)) for heading in columns)
            bars = [sparkline(team.history, 16)] if history else []
            table.add_row(Text(printable(team.team)), *values, f"{team.best_steps:,}", *bars)
        return table


def _with_error(value: float | None, error: float) -> str:
    return f"{number(value)} ± {number(error)}" if math.isfinite(error) else number(value)


def summarize(
    run: Path,
    rows: Sequence[Mapping[str, Any]],
    total: int,
    random: Mapping[str, float] | None = None,
    published: Mapping[str, float] | None = None,
) -> Summary:
    """Creates the summary of a run.

    Args:
        run: Folder of the run.
        rows: All rows of its metrics.
        total: Number of environment steps requested.
        random: Returns of the random policy by team. With one team, its name does not matter.
        published: Published scores by team.
    """
    area = "eval/return_mean" if any(by_team(row, "eval/return_mean") for row in rows) else "rollout/return_mean"
    history: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        errors = by_team(row, "eval/return_error")
        for team, value in by_team(row, area).items():
            if math.isfinite(value):
                history.setdefault(team, []).append((int(row["steps"]), float(value), errors.get(team, math.nan)))
    teams = []
    for team, points in history.items():
        trained = [point for point in points if point[0] > 0] or points  # the untrained policy is not the best
        best_steps, best, best_error = max(trained, key=lambda point: point[1])
        teams.append(
            TeamSummary(
                team=team,
                area="evaluation" if area.startswith("eval") else "training",
                start=points[0][1],
                now=points[-1][1],
                best=best,
                best_steps=best_steps,
                random=_level(random, team),
                published=_level(published, team),
                history=tuple(value for _, value, _ in points),
                now_error=points[-1][2],
                best_error=best_error,
            )
        )
    return Summary(
        run=run,
        steps=max((int(row["steps"]) for row in rows), default=0),
        total=total,
        wall_s=max((row["time/wall_s"] for row in rows if row.get("time/wall_s") is not None), default=math.nan),
        teams=tuple(teams),
        files=tuple((name, run / file) for name, file in _FILES if (run / file).exists()),
        elo=_elo(rows),
    )


def _elo(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Returns the latest Elo ratings by team with their standard errors. Empty without self-play."""
    for row in reversed(rows):
        rating, error = (by_team(row, f"selfplay/{name}") for name in ("elo", "elo_error"))
        if rating:
            return {team: (rating[team], error.get(team, math.nan)) for team in rating}
    return {}


def no_gradient_step_warnings(
    config: RunConfig, learners: Iterable[str], rows: Sequence[Mapping[str, Any]], steps: int
) -> tuple[str, ...]:
    """Returns a warning for each off-policy learner that took no gradient step: the reason and the setting to change.

    Learners that may still start to learn after resuming are omitted.

    Args:
        config: Configuration of the run.
        learners: Names of the teams that learn.
        rows: All rows of metrics of the run.
        steps: Environment steps done.
    """
    lines = []
    for team in learners:
        settings = vars(config.algo_of(team).params)
        if "learning_starts" not in settings or any(_values(rows, team, "replay/updates")):
            continue
        key = f"teams.{team}.algo" if team in config.teams else "algo"
        starts, batch = settings["learning_starts"], settings["batch_size"]
        stored = int(max(_values(rows, team, "replay/sequences"), default=0))
        if steps < starts:
            if steps < config.steps:
                continue
            reason = (
                f"the run ended after {steps:,} steps, before {key}.learning_starts={starts}. "
                "Reduce it or increase steps."
            )
        elif stored < batch:
            reason = (
                f"the replay buffer contains {stored:,} sequences, fewer than {key}.batch_size={batch}. "
                "Reduce it or increase steps."
            )
            if settings["rnn"] != "none" and settings["sequence_start"] == "episode":
                reason += f" For long episodes, set {key}.sequence_start=rollout."
        else:  # teams train alternately
            reason = f"it trained for fewer steps than {key}.learning_starts={starts}. Reduce it or increase steps."
        lines.append(f"team {team}: the learner took no gradient step because {reason}")
    return tuple(lines)


def _values(rows: Sequence[Mapping[str, Any]], team: str, name: str) -> list[float]:
    """Returns the team's values of the metric `name`, oldest first. With one team, metrics have no team name."""
    by_row = (by_team(row, name) for row in rows)
    return [values[key] for values in by_row for key in (team, "") if math.isfinite(values.get(key, math.nan))]


def _level(levels: Mapping[str, float] | None, team: str) -> float | None:
    """Returns the team's entry. With one team, metrics have no team name, so the single entry is returned."""
    if not levels:
        return None
    return next(iter(levels.values())) if team == "" and len(levels) == 1 else levels.get(team)


def _pairs(pairs: Sequence[tuple[str, str]], style: str) -> list[Text]:
    """Formats pairs as lines that are not wrapped, so that they can be copied."""
    return [
        Text.assemble(f"{name:<13}", (printable(value), style), no_wrap=True, overflow="ignore")
        for name, value in pairs
    ]
