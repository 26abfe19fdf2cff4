"""Progress of training: a live display in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, TextIO, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.core.markup import Markup, element, folded, join, paragraphs, preformatted, table
from coterie.core.metrics import by_team
from coterie.core.terminal import in_notebook, message_stream, print_line, print_message
from coterie.core.text import printable
from coterie.runs.plots import sparkline

Mode = Literal["auto", "rich", "lines", "off"]

_AREAS = {"rollout/return_mean": "training", "eval/return_mean": "evaluation"}
_LOSSES = {"loss/policy": "policy loss", "loss/value": "value loss", "policy/entropy": "entropy"}


# ---------------------------------------------------------------------------------------------------------- formatting


def number(value: float | None) -> str:
    """Formats a value with significant digits: 1,234 · 123.4 · 12.34 · 0.123 · 1.2e-05, or a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    size = abs(value)
    if size >= 1e7:
        return f"{value:.3g}"
    if size >= 1 or size == 0:
        return f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2}f}"
    return f"{value:.3f}" if size >= 1e-3 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """Formats seconds: 8 s, 2 min 5 s, 3 h 12 min, 2 d 4 h, or a dash if unknown."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-"
    total = round(seconds)
    for unit, part, size in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if total >= size:
            rest = total % size // {86400: 3600, 3600: 60, 60: 1}[size]
            return f"{total // size} {unit} {rest} {part}" if rest else f"{total // size} {unit}"
    return f"{total} s"


# ------------------------------------------------------------------------------------------------------- state


class _ProgressState:
    """Steps, speed and the latest metrics of a training run by team."""

    def __init__(self, start: int, clock: Callable[[], float]):
        self.steps, self.total = start, 0
        self.latest: dict[str, dict[str, float]] = {label: {} for label in _AREAS.values()}
        self.highest: dict[str, float] = {}
        self.history: dict[str, list[float]] = {}
        self.losses: dict[str, dict[str, float]] = {label: {} for label in _LOSSES.values()}
        self._clock = clock
        self._samples = deque([(clock(), start)], maxlen=64)

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> bool:
        """Stores an update. Returns True if it contains an evaluation."""
        self.steps, self.total = steps, total
        now = self._clock()
        if now - self._samples[-1][0] >= 0.5 or len(self._samples) == 1:
            self._samples.append((now, steps))
        for name, label in _AREAS.items():
            self.latest[label] |= _finite(by_team(metrics, name))
        for name, label in _LOSSES.items():
            self.losses[label] |= _finite(by_team(metrics, name))
        evaluated = _finite(by_team(metrics, "eval/return_mean"))
        for team, value in evaluated.items():
            if steps > 0:  # not of the untrained policy
                self.highest[team] = max(value, self.highest.get(team, value))
            self.history.setdefault(team, []).append(value)
        return bool(evaluated)

    @property
    def rate(self) -> float:
        """Steps per second over at least the last half minute. NaN at the start."""
        (start_time, start_steps), (now, steps) = self._samples[0], self._samples[-1]
        return (steps - start_steps) / (now - start_time) if now > start_time else math.nan

    @property
    def seconds_left(self) -> float:
        return max(0, self.total - self.steps) / self.rate if self.rate > 0 else math.nan

    @property
    def share(self) -> float:
        return min(1.0, self.steps / self.total) if self.total else 0.0

    def position(self) -> str:
        """Formats steps, speed and time left."""
        parts = [f"{self.steps:,} / {self.total:,} steps", f"{math.floor(self.share * 100)}%"]
        if self.rate > 0:
            parts.append(f"{self.rate:,.0f} steps/s")
            parts.append(f"{duration(self.seconds_left)} left" if self.steps < self.total else "done")
        return " · ".join(parts)

    def values(self) -> list[str]:
        """Formats the latest losses."""
        return [f"{label} {_teams(values)}" for label, values in self.losses.items() if values]


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {team: float(value) for team, value in values.items() if value is not None and math.isfinite(value)}


def _teams(values: Mapping[str, float]) -> str:
    """Formats values by team, without the name of a single team."""
    return ", ".join(f"{team} {number(value)}".strip() for team, value in values.items())


# ------------------------------------------------------------------------------------------------------------- displays


class Progress(ABC):
    """Display of the progress of training. Close it, or use it in a `with` statement, to restore the terminal."""

    @abstractmethod
    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        """Shows the progress. Cheap enough to call after every update.

        Args:
            steps: Environment steps done.
            total: Environment steps of the whole run.
            metrics: Latest row of metrics.
        """

    @abstractmethod
    def print_line(self, text: str) -> None:
        """Prints a permanent line, such as a warning."""

    def print_note(self, text: str) -> None:
        """Prints a line that is always visible, such as one on a setting without effect."""
        self.print_line(text)

    @abstractmethod
    def close(self) -> None:
        """Shows the final state and restores the terminal. May be called twice."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NullProgress(Progress):
    """Shows nothing but notes."""

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        pass

    def print_line(self, text: str) -> None:
        pass

    def print_note(self, text: str) -> None:
        print_message(text)

    def close(self) -> None:
        pass


class LineProgress(Progress):
    """Prints a plain line at the first update, at evaluations, at the end, and every `interval_s` seconds."""

    def __init__(
        self,
        title: str = "",
        start: int = 0,
        stream: TextIO | None = None,
        interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._stream = stream or message_stream()
        self._state, self._clock, self._interval = _ProgressState(start, clock), clock, interval_s
        self._last_shown, self._pending = -math.inf, False
        heading = _heading(title, start)
        if heading:
            self.print_line(heading)

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        evaluated = self._state.update(steps, total, metrics)
        now = self._clock()
        self._pending = True
        if evaluated or now - self._last_shown >= self._interval:
            self._last_shown = now
            self._show()

    def _show(self) -> None:
        self._pending = False
        returns = ", ".join(f"{label} {_teams(values)}" for label, values in self._state.latest.items() if values)
        team_return = [f"team return: {returns}"] if returns else []
        self.print_line(" · ".join([self._state.position(), *team_return, *self._state.values()]))

    def print_line(self, text: str) -> None:
        print_line(text, self._stream)

    def close(self) -> None:
        if self._pending:  # not shown already by an evaluation at the last step
            self._show()


class RichProgress(Progress):
    """Live display of bar, speed, time left, returns by team and losses. Drawn at most every `interval_s` seconds."""

    def __init__(
        self,
        title: str = "",
        start: int = 0,
        console: Console | None = None,
        interval_s: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._console = console or Console(stderr=True)
        self._state, self._clock, self._interval = _ProgressState(start, clock), clock, interval_s
        self._heading, self._last_shown = _heading(title, start), -math.inf
        # Drawn on update only: a refresh thread would compete with training for the interpreter.
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        self._state.update(steps, total, metrics)
        now = self._clock()
        if now - self._last_shown >= self._interval:
            self._last_shown = now
            self._live.update(self._render(), refresh=True)

    def print_line(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        if self._live.is_started:
            if self._state.total:
                self._live.update(self._render(), refresh=True)
            self._live.stop()
            if not self._console.is_terminal:  # in a terminal the cursor has moved already
                self._console.print()

    def _render(self) -> RenderableType:
        state = self._state
        lines: list[RenderableType] = [Text(printable(self._heading), style="bold")] if self._heading else []
        bar = Table.grid(padding=(0, 2, 0, 0), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(total=1.0, completed=state.share), state.position())
        lines.append(bar)
        if any(state.latest.values()):
            lines.append(self._returns())
        if state.values():
            lines.append(Text(printable(" · ".join(state.values())), style="dim"))
        return Group(*lines)

    def _returns(self) -> Table:
        """Returns the table of the latest returns, one line per team."""
        state = self._state
        training, evaluation = state.latest["training"], state.latest["evaluation"]
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("team return")
        for heading in ("training", "evaluation", "highest"):
            table.add_column(heading, justify="right", min_width=10)
        table.add_column("")
        for team in dict.fromkeys([*training, *evaluation]):
            values = (training.get(team), evaluation.get(team), state.highest.get(team))
            table.add_row(Text(printable(team)), *map(number, values), sparkline(state.history.get(team, []), 24))
        return table


class NotebookProgress(Progress):
    """One bar below the cell of a notebook, updated in place at most every `interval_s` seconds. Needs no widgets.

    Lines before the first update are folded away, except notes. Later ones, such as warnings, stay below the bar.
    """

    def __init__(
        self,
        title: str = "",
        start: int = 0,
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._state, self._clock, self._interval = _ProgressState(start, clock), clock, interval_s
        self._heading, self._last_shown = _heading(title, start), -math.inf
        self._about: list[str] = []
        self._lines: list[str] = []
        self._is_closed = False
        self._display: Any = importlib.import_module("IPython.display").display(self, display_id=True)

    def update(self, steps: int, total: int, metrics: Mapping[str, float]) -> None:
        self._state.update(steps, total, metrics)
        if self._clock() - self._last_shown >= self._interval:
            self._show()

    def print_line(self, text: str) -> None:
        (self._lines if self._state.total else self._about).append(text)
        self._show()

    def print_note(self, text: str) -> None:
        self._lines.append(text)
        self._show()

    def _show(self) -> None:
        self._last_shown = self._clock()
        self._display.update(self)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._show()

    def __repr__(self) -> str:
        """Returns what is shown where HTML is not."""
        return " · ".join(filter(None, (self._heading, self._state.position() if self._state.total else "")))

    def _repr_html_(self) -> Markup:
        state = self._state
        bar = element("progress", value=f"{state.share:.4f}", max="1", style="width: 20em; vertical-align: middle")
        position = join((bar, " ", state.position())) if state.total else "starting"
        returns = [
            [team, *(number(values.get(team)) for values in (*state.latest.values(), state.highest))]
            for team in dict.fromkeys(name for values in state.latest.values() for name in values)
        ]
        return join(
            (
                paragraphs([element("b", self._heading), position]),
                table(["team return", *state.latest, "highest"], returns) if returns else None,
                paragraphs([" · ".join(state.values())]) if state.values() else None,
                folded("about this run", preformatted("\n".join(self._about))) if self._about else None,
                preformatted("\n".join(self._lines)) if self._lines else None,
            )
        )


@final
class PeriodicProgress:
    """Reports the progress of work other than training, such as an evaluation, if it takes long.

    Args:
        print_line: Prints one line.
        label: Name of the work, before the numbers.
        first_s: Seconds before the first line.
        interval_s: Seconds between lines.
        clock: Current time in seconds.
        unit: Unit of the numbers.
    """

    def __init__(
        self,
        print_line: Callable[[str], None],
        label: str,
        first_s: float = 2.0,
        interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "episodes",
    ):
        self._print_line, self._label, self._unit, self._interval, self._clock = (
            print_line,
            label,
            unit,
            interval_s,
            clock,
        )
        self._next, self._shown = clock() + first_s, 0

    def __call__(self, done: int, total: int, waiting: str = "") -> None:
        """Reports that `done` of `total` units are finished.

        Args:
            done: Number of finished units.
            total: Number of units.
            waiting: What the next unit waits for; shown if none has been finished since the line before.
        """
        now = self._clock()
        if now >= self._next and done < total:
            self._next = now + self._interval
            why = f". {waiting}" if waiting and done == self._shown else ""
            self._shown = done
            self._print_line(f"{self._label}: {done:,} of {total:,} {self._unit}{why}")


def progress(mode: Mode = "auto", title: str = "", start: int = 0) -> Progress:
    """Creates the display of a training run.

    Args:
        mode: `rich` for a live display, `lines` for plain lines, `off`, or `auto`: live in a notebook or if stderr is a
            terminal, otherwise lines.
        title: First line of the display.
        start: Steps at the start, more than 0 for a resumed run.
    """
    if mode == "off":
        return NullProgress()
    if mode != "lines" and in_notebook():
        return NotebookProgress(title, start)
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return (
        RichProgress(title, start) if mode == "rich" or (mode == "auto" and is_terminal) else LineProgress(title, start)
    )


def _heading(title: str, start: int) -> str:
    return " · ".join(part for part in (title, f"resumed at {start:,} steps" if start else "") if part)
