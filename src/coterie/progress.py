"""What a training shows of itself while it runs: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, TextIO, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.metrics import by_team
from coterie.plot import sparkline

Mode = Literal["auto", "rich", "lines", "off"]

_AREAS = {"rollout/return_mean": "training", "eval/return_mean": "evaluation"}
_LOSSES = {"loss/policy": "policy loss", "loss/value": "value loss", "policy/entropy": "entropy"}


# ------------------------------------------------------------------------------------------------------------- wording


def number(value: float | None) -> str:
    """A value with the digits that matter: 1,234 · 123.4 · 12.34 · 0.123 · 1.2e-05, a dash for none."""
    if value is None or math.isnan(value):
        return "-"
    size = abs(value)
    if size >= 1e7:
        return f"{value:.3g}"
    if size >= 1 or size == 0:
        return f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2}f}"
    return f"{value:.3f}" if size >= 1e-3 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: 8 s, 2 min 5 s, 3 h 12 min, 2 d 4 h; a dash if unknown."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-"
    whole = round(seconds)
    for unit, part, size in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if whole >= size:
            rest = whole % size // {86400: 3600, 3600: 60, 60: 1}[size]
            return f"{whole // size} {unit} {rest} {part}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


# ------------------------------------------------------------------------------------------------------- what is known


class _Course:
    """How far a training is, how fast it goes, and the latest values by team."""

    def __init__(self, start: int, clock: Callable[[], float]):
        self.steps, self.total = start, 0
        self.latest: dict[str, dict[str, float]] = {word: {} for word in _AREAS.values()}
        self.best: dict[str, float] = {}
        self.history: dict[str, list[float]] = {}
        self.losses: dict[str, dict[str, float]] = {word: {} for word in _LOSSES.values()}
        self._clock = clock
        self._marks = deque([(clock(), start)], maxlen=64)

    def take(self, steps: int, total: int, metrics: Mapping[str, float]) -> bool:
        """Notes an update; True if it brought an evaluation."""
        self.steps, self.total = steps, total
        now = self._clock()
        if now - self._marks[-1][0] >= 0.5 or len(self._marks) == 1:
            self._marks.append((now, steps))
        for name, word in _AREAS.items():
            self.latest[word] |= _finite(by_team(metrics, name))
        for name, word in _LOSSES.items():
            self.losses[word] |= _finite(by_team(metrics, name))
        evaluated = _finite(by_team(metrics, "eval/return_mean"))
        for team, value in evaluated.items():
            self.best[team] = max(value, self.best.get(team, value))
            self.history.setdefault(team, []).append(value)
        return bool(evaluated)

    @property
    def rate(self) -> float:
        """Steps a second over the last half a minute or more, NaN before any time has passed."""
        (then, before), (now, steps) = self._marks[0], self._marks[-1]
        return (steps - before) / (now - then) if now > then else math.nan

    @property
    def seconds_left(self) -> float:
        return max(0, self.total - self.steps) / self.rate if self.rate > 0 else math.nan

    @property
    def share(self) -> float:
        return min(1.0, self.steps / self.total) if self.total else 0.0

    def position(self) -> str:
        """Steps, speed and time left in words."""
        parts = [f"{self.steps:,} / {self.total:,} steps", f"{math.floor(self.share * 100)}%"]
        if self.rate > 0:
            parts.append(f"{self.rate:,.0f} steps/s")
            parts.append(f"{duration(self.seconds_left)} left" if self.steps < self.total else "done")
        return " · ".join(parts)

    def values(self) -> list[str]:
        """Latest losses in words."""
        return [f"{word} {_teams(values)}" for word, values in self.losses.items() if values]


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {team: float(value) for team, value in values.items() if value is not None and math.isfinite(value)}


def _teams(values: Mapping[str, float]) -> str:
    """Values in words, with the teams' names where there are several."""
    return ", ".join(f"{team} {number(value)}".strip() for team, value in values.items())


# ------------------------------------------------------------------------------------------------------------- displays


class Progress(ABC):
    """Shows how a training goes. To be closed, or used in a `with`, so that the terminal is given back."""

    @abstractmethod
    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        """Shows that `steps` of `total` environment steps are done; metrics: the row of this moment. Cheap."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Shows a line that stays, e.g. a warning."""

    @abstractmethod
    def close(self) -> None:
        """Shows the last state and gives the terminal back. May be called twice."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NullProgress(Progress):
    """Shows nothing."""

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class LineProgress(Progress):
    """A plain line at the first update, at an evaluation, at the end, and when `every_s` seconds have passed."""

    def __init__(
        self,
        title: str = "",
        start: int = 0,
        stream: TextIO | None = None,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._stream = stream or sys.stderr
        self._course, self._clock, self._every = _Course(start, clock), clock, every_s
        self._shown_at, self._unshown = -math.inf, False
        heading = _heading(title, start)
        if heading:
            self.note(heading)

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        evaluated = self._course.take(steps, total, metrics)
        now = self._clock()
        self._unshown = True
        if evaluated or now - self._shown_at >= self._every:
            self._shown_at = now
            self._show()

    def _show(self) -> None:
        self._unshown = False
        returns = [f"{word} {_teams(values)}" for word, values in self._course.latest.items() if values]
        self.note(" · ".join([self._course.position(), *returns, *self._course.values()]))

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._unshown:  # an evaluation of the last step would have shown it
            self._show()


class RichProgress(Progress):
    """A live display: bar, speed, time left, returns by team, losses. Drawn at most once in `every_s` seconds."""

    def __init__(
        self,
        title: str = "",
        start: int = 0,
        console: Console | None = None,
        every_s: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._console = console or Console(stderr=True)
        self._course, self._clock, self._every = _Course(start, clock), clock, every_s
        self._heading, self._shown_at = _heading(title, start), -math.inf
        # Drawn on update only: a thread that redraws would take the interpreter from the training.
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        self._course.take(steps, total, metrics)
        now = self._clock()
        if now - self._shown_at >= self._every:
            self._shown_at = now
            self._live.update(self._picture(), refresh=True)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._live.is_started:
            if self._course.total:
                self._live.update(self._picture(), refresh=True)
            self._live.stop()
            if not self._console.is_terminal:  # a terminal's cursor is moved on
                self._console.print()

    def _picture(self) -> RenderableType:
        course = self._course
        lines: list[RenderableType] = [Text(self._heading, style="bold")] if self._heading else []
        bar = Table.grid(padding=(0, 2, 0, 0), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=1.0, completed=course.share), course.position())
        lines.append(bar)
        if any(course.latest.values()):
            lines.append(self._returns())
        if course.values():
            lines.append(Text(" · ".join(course.values()), style="dim"))
        return Group(*lines)

    def _returns(self) -> Table:
        """Latest returns, a line a team."""
        course = self._course
        training, evaluation = course.latest["training"], course.latest["evaluation"]
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("return")
        for heading in ("training", "evaluation", "best"):
            table.add_column(heading, justify="right", min_width=10)
        table.add_column("")
        for team in dict.fromkeys([*training, *evaluation]):
            values = (training.get(team), evaluation.get(team), course.best.get(team))
            table.add_row(team, *map(number, values), sparkline(course.history.get(team, []), 24))
        return table


@final
class Waiting:
    """Tells how far something is that is not training, if it takes longer than `first_s` seconds, every `every_s`.

    note: shows a line; what: is done, in words that come before the numbers; unit: what is counted.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        what: str,
        first_s: float = 2.0,
        every_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "episodes",
    ):
        self._note, self._what, self._unit, self._every, self._clock = note, what, unit, every_s, clock
        self._next = clock() + first_s

    def __call__(self, done: int, total: int) -> None:
        """So much of so much is over."""
        now = self._clock()
        if now >= self._next and done < total:
            self._next = now + self._every
            self._note(f"{self._what}: {done:,} of {total:,} {self._unit}")


def progress(mode: Mode = "auto", title: str = "", start: int = 0) -> Progress:
    """The display of a training that begins at `start` steps (more than 0 for a resumed one).

    mode: `rich` live, `lines` plain, `off`, or `auto`: live where the standard error goes to a terminal, else lines.
    """
    if mode == "off":
        return NullProgress()
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return RichProgress(title, start) if mode == "rich" or (mode == "auto" and live) else LineProgress(title, start)


def _heading(title: str, start: int) -> str:
    return " · ".join(part for part in (title, f"resumed at {start:,} steps" if start else "") if part)
