"""Progress of a sweep: the live table in a terminal, and lines elsewhere."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
from rich.console import Console

from coterie.sweeps.sweep_display import SweepLines, SweepRow, SweepTable

DONE = {"state": "finished", "exit_code": 0, "wall_s": 65.0, "teams": {"team": {"now": -42.0, "random": -80.0}}}


def written_run(path: Path, *, returns: dict[str, float]) -> Path:
    """Writes what the display reads of a run: its log and the returns of the random policy."""
    path.mkdir()
    manifest = {"env": "x", "algo": "y", "random": {"agent": -80.0}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    rows = [{"steps": 100 * k, "time/wall_s": 2.0 * k, **returns} for k in range(6)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(rows: list[SweepRow], height: int = 24) -> SweepTable:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=height, color_system=None)
    return SweepTable(rows, console, clock=itertools.count(0.0, 10.0).__next__)


def screen(display: SweepTable) -> list[str]:
    """Returns the lines of the table."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(display.table())
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_has_a_row_per_run_with_state_progress_speed_and_returns(tmp_path: Path) -> None:
    run = written_run(tmp_path / "a", returns={"eval/return_mean": -50.0, "rollout/return_mean": -60.0})
    rows = [SweepRow("seed0", 1000, run), SweepRow("seed1", 1000, tmp_path / "b"), SweepRow("seed2", 1000, tmp_path)]
    display = table(rows)
    with display:
        display.start("seed0")
        display.start("seed2")
        display.end("seed2", DONE | {"steps": 1000})
        display.update()
        lines = screen(display)
    assert lines[0].split() == ["run", "state", "done", "steps/s", "team", "return", "random"]
    assert lines[1].split() == ["seed0", "running", "50%", "50", "-50.00", "-80.00"]
    assert lines[2].split() == ["seed1", "waiting", "0%", "-", "-", "-"]
    assert lines[3].split() == ["seed2", "finished", "100%", "-", "-42.00", "-80.00"]
    assert lines[4] == "1 running, 1 waiting, 1 finished"
    assert max(map(len, lines)) <= 80


def test_returns_of_several_teams_have_their_names(tmp_path: Path) -> None:
    run = written_run(tmp_path / "a", returns={"eval/red/return_mean": 1.0, "eval/blue/return_mean": -2.0})
    row = SweepRow("a", 1000, run)
    row.read()
    assert row.levels(row.returns) == "red 1.00, blue -2.00"


def test_more_runs_than_lines_show_those_that_run(tmp_path: Path) -> None:
    rows = [SweepRow(f"seed{k}", 1000, tmp_path / str(k)) for k in range(50)]
    display = table(rows, height=12)
    with display:
        display.start("seed49")
        lines = screen(display)
    assert len(lines) <= 11
    assert any(line.startswith("seed49") for line in lines)
    assert lines[-1] == "49 waiting, 1 running · 42 not shown"


def test_without_a_terminal_there_is_a_line_per_start_and_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = SweepLines([SweepRow("seed0", 1000, Path("runs/a")), SweepRow("seed1", 1000, Path("runs/b"))])
    with display:
        display.start("seed0")
        for _ in range(100):
            display.update()
        display.end("seed0", DONE)
        display.rows["seed1"].state = "to resume"
        display.start("seed1")
        display.end("seed1", {"state": "failed", "exit_code": 2, "wall_s": 1.0, "error": "no luck"})
    assert capsys.readouterr().err.splitlines() == [
        "[seed0] started in runs/a",
        "[seed0] finished after 1 min 5 s · team return -42.00 · random policy -80.00",
        "[seed1] resumed in runs/b",
        "[seed1] failed after 1 s with exit code 2 · no luck",
    ]
