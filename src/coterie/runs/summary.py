"""Summary at the end of training: returns, time, files and commands to continue."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from coterie.core.markup import Markup, element, join, paragraphs, table
from coterie.core.metrics import by_team
from coterie.core.text import coterie_command, printable
from coterie.runs.evaluations import RETURN_CONVENTION, return_error
from coterie.runs.folder import RunFolder
from coterie.runs.outcome import LAST, Level, Outcome, outcome_of
from coterie.runs.plots import sparkline
from coterie.runs.progress import duration, number

_FILES = (
    ("metrics", "metrics.jsonl"),
    ("curves", "curves.png"),
    ("checkpoints", "checkpoints"),
    ("videos", "videos"),
)


@dataclass(frozen=True)
class TeamSummary:
    """Mean returns of one team.

    `team` is "" if there is only one. `area` is `evaluation`, or `training` without evaluations. `best` is the highest
    return after the start of training, NaN without one, and `best_steps` its step. `now_error` and `best_error` are
    standard errors of these means, NaN if unknown. `random` is the return of the random policy and `published` the
    score in the literature, None if unknown. `history` contains all returns, oldest first. `outcome` compares the last
    returns with the random policy and the best; None if lessons of a curriculum changed the task.
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
    outcome: Outcome | None = None

    @property
    def comparison(self) -> str:
        """Comparison of the last returns with the random policy, the published score and the best. "" if unknown."""
        outcome = self.outcome
        if outcome is None or (self.random is None and self.published is None and outcome.count < LAST):
            return ""
        if self.published is None:
            return f"ends {outcome.describe(number)}"
        end, published = outcome.end.mean, f"the published score ({number(self.published)})"
        if self.random is None:
            position = "above" if end >= self.published else "below"
            return f"ends {number(abs(end - self.published))} {position} {published}{outcome.describe_fall(number)}"
        if self.published <= self.random or end < self.random:
            return f"ends {outcome.describe(number)}"
        share = (end - self.random) / (self.published - self.random)
        way = f"ends {share:.0%} of the way from the random policy ({number(self.random)}) to {published}"
        return way + outcome.describe_fall(number)

    @property
    def is_below_random(self) -> bool:
        """True if the last returns are below those of the random policy by more than their errors explain."""
        return self.outcome is not None and self.outcome.is_random and self.outcome.is_below

    @property
    def problem(self) -> str:
        """`below random`, `fell` or `nothing learned`; "" if the run ended otherwise, or nothing is known."""
        return "" if self.outcome is None else self.outcome.problem

    @property
    def is_poor(self) -> bool:
        """True if the last returns are not above those of the random policy or the start, or fell since the best."""
        return self.outcome is not None and self.outcome.is_poor


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
    notes: tuple[str, ...] = ()
    """Facts about the teams, one line each, such as that execution is centralized."""
    findings: tuple[str, ...] = ()
    """Findings of high severity on the run, one line each, the worst first."""

    @property
    def needs_diagnosis(self) -> bool:
        """True if there are findings, or the only team has learned nothing or fell."""
        return bool(self.findings) or (not self.is_contested and any(team.is_poor for team in self.teams))

    @property
    def is_contested(self) -> bool:
        """True if the return of a team depends on others that may learn."""
        return len(self.teams) > 1 or bool(self.elo)

    @property
    def comparisons(self) -> tuple[str, ...]:
        """Comparison of every team's last returns, and the command to examine the run if something is wrong."""
        lines = [f"{team.team}: {team.comparison}".removeprefix(": ") for team in self.teams if team.comparison]
        if lines and self.needs_diagnosis:
            lines[-1] += f". Examine the run: {coterie_command('diagnose', self.run)}"
        return tuple(lines)

    @property
    def next_commands(self) -> tuple[tuple[str, str], ...]:
        """Useful next commands, each with a word that describes it."""
        more = [] if self.steps < self.total else [f"steps={2 * self.steps}"]
        opponents = (
            ("league", coterie_command("league", self.run, "random")),
            ("exploit", coterie_command("exploit", self.run)),
        )
        return (
            ("video", coterie_command("play", self.run, "--video", "out.gif")),
            ("evaluate", coterie_command("evaluate", self.run)),
            *(opponents if self.elo else ()),
            *([("diagnose", coterie_command("diagnose", self.run))] if self.needs_diagnosis else ()),
            ("continue", coterie_command("resume", self.run, *more)),
            ("plot", coterie_command("plot", self.run)),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(printable(self._headline()), style="bold")
        if self.teams:
            yield ""
            yield self._returns(history=options.max_width >= 100)
            yield Text(RETURN_CONVENTION, style="dim")
        comparisons = [*self.comparisons, *self._ratings()]
        for block in (
            [Text(printable(line), style="yellow") for line in (*self.warnings, *self.findings)],
            [Text(printable(line)) for line in (*comparisons, *self.notes)],
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

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the returns as a table, what is remarkable, and the folder."""
        columns, rows = self._cells()
        shown = [[*cells, sparkline(team.history, 16)] for team, cells in zip(self.teams, rows, strict=True)]
        return join(
            (
                element("p", element("b", self._headline())),
                table([*columns, ""], shown) if shown else None,
                paragraphs([RETURN_CONVENTION]) if shown else None,
                paragraphs((*self.warnings, *self.findings, *self.comparisons, *self._ratings(), *self.notes)),
                paragraphs([join(("run: ", element("code", self.run)))]),
            )
        )

    def numbers(self) -> dict[str, dict[str, float | None]]:
        """Returns the returns of each team as numbers, None where unknown."""
        names = ("random", "start", "now", "now_error", "best", "best_error", "best_steps", "published")
        found = {team.team or "team": {name: getattr(team, name) for name in names} for team in self.teams}
        return {
            team: {name: value if value is not None and math.isfinite(value) else None for name, value in own.items()}
            for team, own in found.items()
        }

    def _ratings(self) -> list[str]:
        """Returns a line per rating."""
        return [
            f"{team}: {rated}".removeprefix(": ")
            for team, (rating, error) in self.elo.items()
            for rated in [f"Elo of the newest snapshot: {rating:.0f} ± {error:.0f} (untrained policy: 0)"]
        ]

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
        (first, *others), rows = self._cells()
        shown = Table(box=None, pad_edge=False, header_style="dim")
        shown.add_column(first)
        for heading in others:
            style = "bold green" if heading == "highest" else ""
            shown.add_column(heading, justify="right", no_wrap=True, style=style)
        for team, (label, *cells) in zip(self.teams, rows, strict=True):
            bars = [sparkline(team.history, 16)] if history else []
            shown.add_row(Text(printable(label)), *cells, *bars)
        return shown

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Returns the headings of the table of returns, and its rows by team."""
        with_random = any(team.random is not None for team in self.teams)
        with_published = any(team.published is not None for team in self.teams)
        columns = [*["random"] * with_random, "start", "now", "best", *["published"] * with_published]
        rows = []
        for team in self.teams:
            errors = {"now": team.now_error, "best": team.best_error}
            values = [_with_error(getattr(team, name), errors.get(name, math.nan)) for name in columns]
            label = f"{team.team}, {team.area}".removeprefix(", ")
            rows.append([label, *values, f"{team.best_steps:,}" if math.isfinite(team.best) else "-"])
        # Which checkpoint is the best one is decided by other metrics, too, or by none.
        return ["team return", *("highest" if name == "best" else name for name in columns), "at step"], rows


def _with_error(value: float | None, error: float) -> str:
    return f"{number(value)} ± {number(error)}" if math.isfinite(error) else number(value)


def _history(rows: Sequence[Mapping[str, Any]], area: str) -> dict[str, list[Level]]:
    """Returns the finite values of a metric by team, in the order of the rows."""
    history: dict[str, list[Level]] = {}
    for row in rows:
        for team, value in by_team(row, area).items():
            if math.isfinite(value):
                name = area if not team else area.replace("/", f"/{team}/")
                level = Level(float(value), return_error(row, name), int(row["steps"]))
                history.setdefault(team, []).append(level)
    return history


def summarize(
    run: Path,
    rows: Sequence[Mapping[str, Any]],
    total: int,
    random: Mapping[str, float] | None = None,
    published: Mapping[str, float] | None = None,
    random_error: Mapping[str, float] | None = None,
) -> Summary:
    """Creates the summary of a run.

    Args:
        run: Folder of the run.
        rows: All rows of its metrics.
        total: Number of environment steps requested.
        random: Returns of the random policy by team. With one team, its name does not matter.
        published: Published scores by team.
        random_error: Standard errors of the returns of the random policy by team.
    """
    area = "eval/return_mean" if any(by_team(row, "eval/return_mean") for row in rows) else "rollout/return_mean"
    has_lessons = len({row["lesson/index"] for row in rows if "lesson/index" in row}) > 1
    teams = []
    for team, points in _history(rows, area).items():
        trained = [point for point in points if point.steps > 0]  # not of the untrained policy
        best = max(trained, key=lambda point: point.mean, default=Level(math.nan))
        level = _level(random, team)
        reference = None if level is None else Level(level, _level(random_error, team) or math.nan)
        teams.append(
            TeamSummary(
                team=team,
                area="evaluation" if area.startswith("eval") else "training",
                start=points[0].mean,
                now=points[-1].mean,
                best=best.mean,
                best_steps=best.steps,
                random=level,
                published=_level(published, team),
                history=tuple(point.mean for point in points),
                now_error=points[-1].error if area.startswith("eval") else math.nan,
                best_error=best.error if area.startswith("eval") else math.nan,
                outcome=None if has_lessons else outcome_of(points, reference),
            )
        )
    return Summary(
        run=run,
        steps=max((int(row["steps"]) for row in rows), default=0),
        total=total,
        wall_s=max((row["time/wall_s"] for row in rows if row.get("time/wall_s") is not None), default=math.nan),
        teams=tuple(teams),
        files=(
            *((name, run / file) for name, file in _FILES if (run / file).exists()),
            *([("TensorBoard", run)] if RunFolder(run).event_files() else []),
        ),
        elo=_elo(rows),
    )


def _elo(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Returns the latest Elo ratings by team with their standard errors. Empty without self-play."""
    for row in reversed(rows):
        rating, error = (by_team(row, f"selfplay/{name}") for name in ("elo", "elo_error"))
        if rating:
            return {team: (rating[team], error.get(team, math.nan)) for team in rating}
    return {}


def no_return_warnings(summary: Summary, num_envs: int, limit: int | None) -> tuple[str, ...]:
    """Returns a warning if no episode ended, so that a run has no returns: how long it was, and the settings to change.

    Args:
        summary: Summary of the run.
        num_envs: Number of environments.
        limit: Step limit of their episodes; None if unknown.
    """
    if summary.teams or not summary.steps:
        return ()
    steps = f"{summary.steps:,} steps, {summary.steps // num_envs:,} of each of the {num_envs:,} environments"
    fix = ", or end episodes by a limit that fits the task, such as env.episode_limit=200" if limit is None else ""
    return (f"no episode ended in {steps}, so that the return is unknown. Increase steps{fix}.",)


def no_gradient_step_warnings(
    learners: Mapping[str, Mapping[str, Any]],
    keys: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    steps: int,
    total: int,
) -> tuple[str, ...]:
    """Returns a warning for each off-policy learner that took no gradient step: the reason and the setting to change.

    Learners that may still start to learn after resuming are omitted.

    Args:
        learners: Settings of the algorithm of each team that learns.
        keys: Section of these settings by team: `algo` or `teams.NAME.algo`.
        rows: All rows of metrics of the run.
        steps: Environment steps done.
        total: Environment steps requested.
    """
    lines = []
    for team, settings in learners.items():
        if "learning_starts" not in settings or any(_values(rows, team, "replay/updates")):
            continue
        key = keys[team]
        starts, batch = settings["learning_starts"], settings["batch_size"]
        stored = int(max(_values(rows, team, "replay/sequences"), default=0))
        if steps < starts:
            if steps < total:
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
