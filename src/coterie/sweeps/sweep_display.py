"""Progress of a sweep: one live table with a row per run in a terminal, a line per start and end elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coterie.core.errors import UserError
from coterie.core.terminal import print_line
from coterie.core.text import printable, shell_word
from coterie.runs.activity import activity, last_rows, steps_per_second
from coterie.runs.folder import RunFolder
from coterie.runs.progress import duration, number

_INTERVAL_SECONDS = 1.0
"""Time between two readings of the logs of runs."""
_ACTIVE = ("running", "waiting for resources")
_STYLES = {"failed": "red", "interrupted": "yellow", "running": "cyan", "finished": "green", "resumed": "green"}


@dataclass
class SweepRow:
    """One row of the live table: a run and its progress.

    Attributes:
        name: Name of its job.
        total: Environment steps of the whole run.
        run: Its folder.
        state: `waiting`, `to resume`, `waiting for resources`, `running`, or the state of its outcome.
        steps: Environment steps done.
        speed: Environment steps per second; None if unknown.
        returns: Latest return by team, summed over its agents, of an evaluation if there is one.
        random: Return of the random policy by team.
    """

    name: str
    total: int
    run: Path
    state: str = "waiting"
    steps: int = 0
    speed: float | None = None
    returns: Mapping[str, float] = field(default_factory=dict)
    random: Mapping[str, float] = field(default_factory=dict)

    def read(self) -> None:
        """Reads the log of the run; nothing is changed as long as it has none."""
        folder = RunFolder(self.run)
        now = activity(folder, self.total)
        self.steps, self.returns = now.steps, now.evaluation or now.training or self.returns
        self.speed = steps_per_second(last_rows(folder.metrics_path))
        if not self.random:
            try:
                levels = folder.read_manifest().get("random") or {}
            except UserError:  # it is only being created
                return
            self.random = {team: value for team, value in levels.items() if value is not None}

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Takes the final values from the outcome of the job."""
        self.state, self.speed = str(outcome["state"]), None
        teams = outcome.get("teams", {})
        for name, shown in (("now", "returns"), ("random", "random")):
            values = {team: values[name] for team, values in teams.items() if values.get(name) is not None}
            setattr(self, shown, values or getattr(self, shown))
        self.steps = int(outcome.get("steps", self.steps))

    def levels(self, levels: Mapping[str, float]) -> str:
        """Formats returns by team, without the name of a single team; a dash if there are none."""
        if len(levels) == 1:
            return number(next(iter(levels.values())))
        return ", ".join(f"{team} {number(value)}" for team, value in levels.items()) or "-"


class SweepDisplay(ABC):
    """Display of the progress of a sweep.

    Args:
        rows: The runs.
    """

    def __init__(self, rows: Sequence[SweepRow]):
        self.rows = {row.name: row for row in rows}

    def __enter__(self) -> SweepDisplay:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027
        """Restores the terminal."""

    @abstractmethod
    def start(self, name: str, note: str = "", *, state: str = "running") -> None:
        """Shows that a run has started.

        Args:
            name: Name of its job.
            note: Further words, such as what it waits for.
            state: New state of the row.
        """

    @abstractmethod
    def end(self, name: str, outcome: Mapping[str, Any]) -> None:
        """Shows that a run has ended."""

    @abstractmethod
    def print_line(self, text: str) -> None:
        """Prints a permanent line."""

    def update(self) -> None:  # noqa: B027
        """Shows the progress of the runs. Cheap enough to call many times per second."""


@final
class SweepLines(SweepDisplay):
    """Prints a line per start and end on stderr."""

    def start(self, name: str, note: str = "", *, state: str = "running") -> None:
        row = self.rows[name]
        verb = "resumed" if row.state == "to resume" else "started"
        row.state = state
        self.print_line(f"[{name}] {note or verb + ' in ' + shell_word(row.run)}")

    def end(self, name: str, outcome: Mapping[str, Any]) -> None:
        row = self.rows[name]
        row.finish(outcome)
        self.print_line(f"[{name}] {end_line(row, outcome)}")

    def print_line(self, text: str) -> None:
        print_line(text, sys.stderr)


def end_line(row: SweepRow, outcome: Mapping[str, Any]) -> str:
    """Returns the end of a run as one line: its state and time, then its returns or its error."""
    parts = [f"{row.state} after {duration(outcome.get('wall_s', math.nan))}"]
    if outcome.get("exit_code"):
        parts[0] += f" with exit code {outcome['exit_code']}"
        parts += [outcome["error"]] if outcome.get("error") else []
    if row.returns:
        parts.append(f"team return {row.levels(row.returns)}")
    if row.random:
        parts.append(f"random policy {row.levels(row.random)}")
    return " · ".join(parts)


@final
class SweepTable(SweepDisplay):
    """Live table with a row per run on stderr, drawn on `update` at most every second.

    Args:
        rows: The runs.
        console: Where it is drawn; default: stderr.
        clock: Current time in seconds.
    """

    def __init__(
        self,
        rows: Sequence[SweepRow],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(rows)
        self._console, self._clock, self._last = console or Console(stderr=True), clock, -math.inf
        # A refresh thread would not survive the fork of the next job.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> SweepDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def start(self, name: str, note: str = "", *, state: str = "running") -> None:
        self.rows[name].state = state
        self._draw()

    def end(self, name: str, outcome: Mapping[str, Any]) -> None:
        row = self.rows[name]
        row.finish(outcome)
        if outcome.get("exit_code"):
            self.print_line(f"[{name}] {end_line(row, outcome)}")
        self._draw()

    def print_line(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False)

    def update(self) -> None:
        if self._clock() - self._last >= _INTERVAL_SECONDS:
            for row in self.rows.values():
                if row.state == "running":
                    row.read()
            self._draw()

    def _draw(self) -> None:
        self._last = self._clock()
        self._live.update(self.table(), refresh=True)

    def table(self) -> Table:
        """Returns the table as it is now."""
        rows = list(self.rows.values())
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("run", no_wrap=True, overflow="ellipsis")
        table.add_column("state", no_wrap=True)
        for heading in ("done", "steps/s", "team return", "random"):
            table.add_column(heading, justify="right", overflow="fold")
        shown = self._shown(rows, max(1, self._console.height - 4))
        for row in shown:
            share = min(1.0, row.steps / row.total) if row.total else 0.0
            table.add_row(
                Text(printable(row.name)),
                Text(row.state, style=_STYLES.get(row.state, "dim")),
                f"{math.floor(share * 100)}%",
                f"{row.speed:,.0f}" if row.speed else "-",
                Text(printable(row.levels(row.returns))),
                Text(printable(row.levels(row.random))),
            )
        states = [row.state for row in rows]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        hidden = f" · {len(rows) - len(shown)} not shown" if len(shown) < len(rows) else ""
        caption = f"{counts}{hidden}"
        table.caption, table.caption_justify = Text(caption, style="dim"), "left"
        return table

    def _shown(self, rows: list[SweepRow], limit: int) -> list[SweepRow]:
        """Returns the rows that fit the screen in their order: those that run first, then the others from the top."""
        if len(rows) <= limit:
            return rows
        kept = sorted(rows, key=lambda row: row.state not in _ACTIVE)[:limit]
        return [row for row in rows if row in kept]


def sweep_display(rows: Sequence[SweepRow]) -> SweepDisplay:
    """Returns the display of a sweep: a live table if stderr is a terminal, otherwise lines."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return SweepTable(rows) if is_terminal else SweepLines(rows)
