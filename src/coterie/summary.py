"""What a training came to, told at its end: returns, time, where the files are, and what to do next."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from coterie.metrics import by_team
from coterie.plot import sparkline
from coterie.progress import duration, number
from coterie.schema import RunConfig

_FILES = (
    ("metrics", "metrics.jsonl"),
    ("curves", "curves.png"),
    ("checkpoints", "checkpoints"),
    ("TensorBoard", "tensorboard"),
    ("videos", "videos"),
)


@dataclass(frozen=True)
class TeamSummary:
    """One team's returns. team: "" where there is one only; area: `evaluation`, or `training` if none was evaluated.

    start, now, best: mean returns; best_steps: when the best was reached; random, published: what a random policy gets
    and what the literature reports, None if unknown; history: all of them, oldest first.
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

    @property
    def verdict(self) -> str:
        """The best return beside random and the published level, in words; "" if neither is known."""
        if self.random is None:
            if self.published is None:
                return ""
            return _beside(self.best - self.published, f"the published level ({number(self.published)})")
        if self.published is None or self.published <= self.random or self.best < self.random:
            return _beside(self.best - self.random, f"random ({number(self.random)})")
        share = (self.best - self.random) / (self.published - self.random)
        return (
            f"best is {share:.0%} of the way from random ({number(self.random)}) "
            f"to the published level ({number(self.published)})"
        )


def _beside(difference: float, what: str) -> str:
    word = "above" if difference >= 0 else "below"
    return f"best is {number(abs(difference))} {word} {what}"


@dataclass(frozen=True)
class Summary:
    """What a run came to. `print` shows it on a terminal, `text` gives the same words without colours.

    run: its folder; steps: done; total: wished for; wall_s: time of all its parts, NaN if unknown; files: what, where.
    """

    run: Path
    steps: int
    total: int
    wall_s: float
    teams: tuple[TeamSummary, ...]
    files: tuple[tuple[str, Path], ...]
    lesson: str = ""
    """The lesson that it came to, `lesson 2 of 3: far`."""
    ladder: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of self-play: the newest snapshot's Elo rating and its standard error by team, "" where one plays all sides."""
    warnings: tuple[str, ...] = ()
    """What went wrong without stopping it, a line each."""

    @property
    def next_commands(self) -> tuple[tuple[str, str], ...]:
        """What to do next and the command for it."""
        run = shlex.quote(str(self.run))
        more = "" if self.steps < self.total else f" steps={2 * self.steps}"
        rivals = (
            ("rivals", f"coterie league {run} random"),
            ("exploit", f"coterie exploit {run}"),
        )
        return (
            ("watch", f"coterie play {run} --video out.mp4"),
            ("evaluate", f"coterie evaluate {run}"),
            *(rivals if self.ladder else ()),
            ("go on", f"coterie resume {run}{more}"),
            ("plot", f"coterie plot {run}"),
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text(self._headline(), style="bold")
        if self.teams:
            yield ""
            yield self._returns(history=options.max_width >= 100)
        verdicts = [f"{team.team}: {team.verdict}".removeprefix(": ") for team in self.teams if team.verdict]
        verdicts += [
            f"{team}: {rated}".removeprefix(": ")
            for team, (rating, error) in self.ladder.items()
            for rated in [f"the newest snapshot is rated {rating:.0f} ± {error:.0f} Elo; the untrained policy is 0"]
        ]
        for block in (
            [Text(line, style="yellow") for line in self.warnings],
            [Text(verdict) for verdict in verdicts],
            _pairs([(name, str(path)) for name, path in self.files], "dim"),
            _pairs(self.next_commands, "cyan"),
        ):
            if block:
                yield ""
                yield from block

    def print(self, console: Console | None = None) -> None:
        """Prints the summary on the console, by default on the standard output; paths and commands are never cut."""
        (console or Console()).print(self, soft_wrap=True)

    def text(self, width: int = 120) -> str:
        """The summary as plain text; paths and commands may be longer than `width` characters."""
        console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, _environ={})
        self.print(console)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"

    def _headline(self) -> str:
        aim = "" if self.steps >= self.total else f" of {self.total:,}"
        came = f", {self.lesson}" if self.lesson else ""
        if not self.wall_s > 0:
            return f"{self.steps:,}{aim} steps{came}"
        return f"{self.steps:,}{aim} steps in {duration(self.wall_s)} ({self.steps / self.wall_s:,.0f} steps/s){came}"

    def _returns(self, history: bool) -> Table:
        """Returns, a line a team; columns for random and published only where known; history: with its bars."""
        with_random = any(team.random is not None for team in self.teams)
        with_published = any(team.published is not None for team in self.teams)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column(f"{self.teams[0].area} return")
        shown = [*["random"] * with_random, "start", "now", "best", *["published"] * with_published]
        for heading in shown:
            table.add_column(heading, justify="right", no_wrap=True, style="bold green" if heading == "best" else "")
        table.add_column("best at step", justify="right", no_wrap=True)
        for team in self.teams:
            values = (number(getattr(team, heading)) for heading in shown)
            bars = [sparkline(team.history, 16)] if history else []
            table.add_row(team.team, *values, f"{team.best_steps:,}", *bars)
        return table


def summarise(
    run: Path,
    rows: Sequence[Mapping[str, Any]],
    total: int,
    random: Mapping[str, float] | None = None,
    published: Mapping[str, float] | None = None,
) -> Summary:
    """The summary of the run in the folder `run`, whose metrics are `rows`.

    total: the steps that were wished for; random, published: returns by team (of a run with one team: any name).
    """
    area = "eval/return_mean" if any(by_team(row, "eval/return_mean") for row in rows) else "rollout/return_mean"
    history: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for team, value in by_team(row, area).items():
            if math.isfinite(value):
                history.setdefault(team, []).append((int(row["steps"]), float(value)))
    teams = []
    for team, points in history.items():
        best_steps, best = max(points, key=lambda point: point[1])
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
                history=tuple(value for _, value in points),
            )
        )
    return Summary(
        run=run,
        steps=max((int(row["steps"]) for row in rows), default=0),
        total=total,
        wall_s=max((row["time/wall_s"] for row in rows if row.get("time/wall_s") is not None), default=math.nan),
        teams=tuple(teams),
        files=tuple((name, run / file) for name, file in _FILES if (run / file).exists()),
        ladder=_ladder(rows),
    )


def _ladder(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """The latest ratings by team with their standard errors; {} without self-play."""
    for row in reversed(rows):
        rating, error = (by_team(row, f"selfplay/{name}") for name in ("elo", "elo_error"))
        if rating:
            return {team: (rating[team], error[team]) for team in rating}
    return {}


def unlearned(
    config: RunConfig, learners: Iterable[str], rows: Sequence[Mapping[str, Any]], steps: int
) -> tuple[str, ...]:
    """A line for each of the `learners` from replay that took no gradient step: why, and what to change. None for those
    whose time is still to come.

    rows: of metrics, all of the run; steps: done.
    """
    lines = []
    for team in learners:
        settings = vars(config.algo_of(team).params)
        if "learning_starts" not in settings or any(_of(rows, team, "replay/updates")):
            continue
        key = f"teams.{team}.algo" if team in config.teams else "algo"
        starts, batch = settings["learning_starts"], settings["batch"]
        held = int(max(_of(rows, team, "replay/sequences"), default=0))
        if steps < starts:
            if steps < config.steps:
                continue
            why = f"the run's {steps:,} steps end before {key}.learning_starts={starts}: lower that, or raise steps"
        elif held < batch:
            why = f"its replay came to {held:,} sequences, fewer than {key}.batch={batch}: lower that, or raise steps"
            if settings["memory"] != "none" and settings["sequence_start"] == "episode":
                why += f"; where episodes are long, give {key}.sequence_start=window"
        else:  # it learns by turns
            why = f"it was given fewer steps than {key}.learning_starts={starts}: lower that, or raise steps"
        lines.append(f"team {team}: the learner took no gradient step: {why}")
    return tuple(lines)


def _of(rows: Sequence[Mapping[str, Any]], team: str, name: str) -> list[float]:
    """The team's values of `area/name`, oldest first; metrics of a run with one team do not say its name."""
    found = (by_team(row, name) for row in rows)
    return [values[said] for values in found for said in (team, "") if said in values]


def _level(levels: Mapping[str, float] | None, team: str) -> float | None:
    """The team's entry; metrics of a run with one team do not say its name, so its single entry is meant."""
    if not levels:
        return None
    return next(iter(levels.values())) if team == "" and len(levels) == 1 else levels.get(team)


def _pairs(pairs: Sequence[tuple[str, str]], style: str) -> list[Text]:
    """Words and what belongs to them, a line each that is not broken, so that it can be copied."""
    return [Text.assemble(f"{word:<13}", (what, style), no_wrap=True, overflow="ignore") for word, what in pairs]
