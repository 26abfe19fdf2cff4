"""`coterie reproduce`: runs that are trained, continued and compared with published values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tinyruns
from coterie.__main__ import main
from coterie.algos import registry
from coterie.commands import reproduce
from coterie.commands.reproduce import Budget, Value, choose, peak_of_mean
from coterie.core.errors import UserError
from coterie.reports.published import Level, load
from coterie.reports.records import EvaluationSeries
from coterie.sweeps.sweep import Job
from places import ROOT

TABLE = load("papoudakis2021")
TINY = dict(word.split("=", 1) for word in tinyruns.TINY)


def _series(steps: list[float], mean: list[float]) -> EvaluationSeries:
    unknown = np.full(len(steps), math.nan)
    return EvaluationSeries(np.array(steps), unknown, np.array(mean), unknown, unknown)


def test_the_peak_is_the_highest_mean_over_seeds_not_the_mean_of_peaks() -> None:
    series = [_series([0, 10, 20], [0.0, 9.0, 3.0]), _series([0, 10, 20, 30], [0.0, 1.0, 8.0, 100.0])]
    level, steps = peak_of_mean(series)
    # At step 20 the mean is 5.5; 30 is not an evaluation of both. t(0.975, 1) = 12.7062, s = 5 / sqrt(2).
    assert steps == 20
    assert level is not None
    assert level.half_width is not None
    assert (level.mean, round(level.half_width, 3)) == (5.5, 31.766)
    halved, _ = peak_of_mean(series, divisor=2)
    assert halved == Level(2.75, pytest.approx(level.half_width / 2))
    assert peak_of_mean(series[:1]) == (Level(9.0), 10)
    assert peak_of_mean([_series([0], [1.0]), _series([1, 2], [1.0, 1.0])]) == (None, None)
    assert peak_of_mean([]) == (None, None)


def test_evaluations_of_episodes_of_different_lengths_belong_together_by_their_number() -> None:
    series = [_series([0, 10, 21], [0.0, 2.0, 4.0]), _series([0, 12, 20], [0.0, 2.0, 6.0])]
    level, steps = peak_of_mean(series)
    assert level is not None
    assert (level.mean, steps) == (5.0, 21)


def test_evaluations_that_overlap_do_not_belong_together() -> None:
    # The second evaluation of one seed is later than the third of the other, so only step 0 is shared.
    series = [_series([0, 10, 20], [1.0, 2.0, 4.0]), _series([0, 30, 40], [1.0, 2.0, 6.0])]
    assert peak_of_mean(series) == (Level(1.0, 0.0), 0)


@pytest.mark.parametrize(
    ("peak", "below"), [(Level(4.0, 0.5), True), (Level(4.0, 1.5), False), (Level(7.0), False), (None, False)]
)
def test_a_value_is_below_if_the_intervals_do_not_meet(peak: Level | None, below: bool) -> None:
    value = Value(TABLE.row("spread"), "mappo", 10, (1, 2), peak=peak, published=Level(6.0, 1.0))
    assert value.below is below
    assert not replace(value, published=None).below


def test_a_value_that_rounds_to_the_published_one_is_not_below() -> None:
    value = Value(TABLE.row("spread"), "mappo", 10, (1, 2), peak=Level(0.997, 0.001), published=Level(1.0))
    assert not value.below
    assert replace(value, peak=Level(0.99, 0.001)).below


def test_wrong_choices_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(registry, "ALGOS", {name: x for name, x in registry.ALGOS.items() if name != "maa2c"})
        with pytest.raises(UserError, match=r"--algo maa2c: Coterie does not have it\. Columns: iql, ia2c, ippo"):
            choose(TABLE, algorithms=["maa2c"])
    with pytest.raises(UserError, match=r"--algo mapo: not a column of papoudakis2021\. Did you mean 'mappo'"):
        choose(TABLE, algorithms=["mapo"])
    with pytest.raises(UserError, match=r"--seeds 6: papoudakis2021 has 5 seeds\. Choose 1 to 5\."):
        choose(TABLE, num_seeds=6)


@pytest.fixture
def tiny_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values take tiny runs, which have the table's environments and algorithms."""
    settings = type(TABLE).settings

    def tiny(table, row, algo, steps):
        words = dict(word.split("=", 1) for word in settings(table, row, algo, steps) if not word.startswith("algo."))
        return [
            f"{key}={value}"
            for key, value in (TINY | {"algo": algo, **words, "num_envs": "4", "eval.episodes": "8"}).items()
        ]

    monkeypatch.setattr(type(TABLE), "settings", tiny)
    monkeypatch.setattr("coterie.sweeps.job_runs.draw_curves", tinyruns.draw_nothing)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_runs")
def test_rows_are_trained_once_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "papoudakis2021", f"--out={tmp_path}", "--algo=mappo", "--seeds=2", "--steps=400"]
    assert main([*command, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert len(values) == 20
    assert not any(value["seeds"] for value in values)

    assert main([*command, "climbing", "--json"]) == 0
    (value,) = json.loads(capsys.readouterr().out)["values"]
    assert (value["row"], value["algo"], value["seeds"]) == ("climbing", "mappo", [10, 11])
    assert -750 <= value["peak"]["mean"] <= 275
    assert value["absolute"]["mean"] <= 275
    assert value["published"] == {"mean": 175.0, "half_width": 0.0}
    stamp = (tmp_path / "papoudakis2021" / "climbing" / "mappo" / "seed10" / "metrics.jsonl").stat().st_mtime_ns

    page = tmp_path / "table.md"
    assert main([*command, "climbing", f"--markdown={page}"]) == 0  # trains nothing
    assert (tmp_path / "papoudakis2021" / "climbing" / "mappo" / "seed10" / "metrics.jsonl").stat().st_mtime_ns == stamp
    shown = capsys.readouterr().out
    assert "not run" not in shown
    assert "At most 400 steps instead of the published number" in shown
    assert "| climbing | mappo | 2 | 400 |" in page.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_runs")
def test_opponents_are_trained_first_and_stay_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = TABLE.row("adversary")
    assert row.opponents is not None
    short = replace(row, opponents=replace(row.opponents, algo="mappo", steps=400))
    choice = replace(choose(TABLE, algorithms=["mappo"], num_seeds=1, budget=Budget(400), out=tmp_path), rows=(short,))

    def run_all(jobs: list[Job], **_: Any) -> int:
        """Trains in this process, in place of others that would import PyTorch first."""
        return max(main(["train", *job.overrides]) for job in jobs)

    monkeypatch.setattr("coterie.sweeps.sweep.run_all", run_all)
    assert reproduce.train(choice) == 0
    (value,) = reproduce.values(choice)
    assert value.peak is not None
    run = choice.out / "adversary" / "mappo" / "seed10"
    assert f"run: {choice.out / 'adversary' / 'opponents'}" in (run / "config.yaml").read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    returns = [row["eval/agent/return_mean"] for row in rows if "eval/agent/return_mean" in row]
    assert value.peak.mean == pytest.approx(max(returns) / 2)  # per good agent, of which there are two


def test_commands_can_be_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        main(["reproduce", "papoudakis2021", "spread", "--algo=qmix", "--seeds=1", "--print", f"--out={tmp_path}"]) == 0
    )
    line = capsys.readouterr().out.strip()
    assert line.startswith("coterie train algo=qmix env=particle/simple_spread")
    assert f"out={tmp_path}/papoudakis2021/spread/qmix/seed10" in line


def test_the_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    assert capsys.readouterr().out.startswith("papoudakis2021: Papoudakis et al. 2021")
    assert main(["reproduce", "papoudakis2021", "--steps=many"]) == 2
    assert "--steps many: neither a number of environment steps nor a percentage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "steps"),
    [(None, (20_000_000, 2_000_000)), ("100k", (100_000, 100_000)), ("3M", (3_000_000, 2_000_000))]
    + [("5%", (1_000_000, 100_000)), ("2.5%", (500_000, 50_000)), ("100%", (20_000_000, 2_000_000))],
)
def test_steps_are_a_number_or_a_percentage_of_the_published_ones(text: str | None, steps: tuple[int, int]) -> None:
    choice = choose(TABLE, ["spread"], budget=Budget.parse(text))
    assert tuple(choice.steps_of(TABLE.row("spread"), algo) for algo in ("mappo", "qmix")) == steps
    assert any("as --steps asks" in line for line in reproduce.notes(choice)) == (text not in (None, "100%"))


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-5%", "%", "5 %%", "nan%", "1e9%", "1.5"])
def test_other_steps_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"neither a number of environment steps nor a percentage .* 100k or 5%\."):
        Budget.parse(text)


def test_a_percentage_leaves_opponents_at_full_length(tmp_path: Path) -> None:
    for budget, steps in ((Budget.parse("5%"), 2_000_000), (Budget(400), 400)):
        choice = choose(TABLE, ["tag"], budget=budget, out=tmp_path)
        ((_, job),) = reproduce.opponent_jobs(choice)
        assert job.config.steps == steps


def test_rows_whose_opponents_fail_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[str] = []

    def fail_for_opponents(jobs, **options) -> int:
        started.extend(job.name for job in jobs)
        assert all(job.config.steps == 400 for job in jobs)
        return 3 if jobs[0].name.endswith("/opponents") else 0

    monkeypatch.setattr("coterie.sweeps.sweep.run_all", fail_for_opponents)
    choice = choose(TABLE, ["adversary", "spread"], algorithms=["mappo"], num_seeds=1, budget=Budget(400), out=tmp_path)
    assert reproduce.train(choice) == 3
    assert started == ["adversary/opponents", "spread/mappo/seed10"]


# ------------------------------------------------------------------------------------------------- committed results

RESULTS = ROOT / "benchmarks" / "results"


@pytest.fixture
def reproduction(script: Callable[[str], ModuleType]) -> ModuleType:
    """The script that collects runs as committed results."""
    return script("reproduction")


def _cell(algo: str, seeds: tuple[int, ...], *, peak: Level) -> dict[str, Any]:
    row = TABLE.row("spread")
    value = Value(row, algo, 2_000_000, seeds, peak=peak, peak_steps=1000, published=row.published[algo])
    made = {"revisions": ["0123456789"], "dates": ["2026-01-02"], "machines": ["Some CPU"], "threads": [1]}
    return json.loads(json.dumps({**value.report(), **made}))


def test_the_page_of_results_names_what_was_not_run_and_what_is_below(reproduction: Any) -> None:
    full, few = _cell("vdn", TABLE.seeds, peak=Level(-131.0, 1.0)), _cell("qmix", (10, 11), peak=Level(-140.0, 2.0))
    short = _cell("mappo", TABLE.seeds, peak=Level(-130.0, 1.0))
    content = {"command": "python benchmarks/reproduction.py", "date": "2026-01-03"}
    lines = reproduction.page(
        TABLE, {**content, "cells": {"spread/mappo": short, "spread/vdn": full, "spread/qmix": few}}
    ).splitlines()
    (spread,) = [line for line in lines if line.startswith("| spread | not run<br>")]
    cells = [cell.strip() for cell in spread.split("|")][2:-1]
    assert dict(zip(TABLE.columns, cells, strict=True)) == {
        **{algo: f"not run<br>{TABLE.row('spread').published[algo]}" for algo in TABLE.columns},
        "mappo": "-130 ± 1 (2 M of 20 M steps)<br>-133.54 ± 3.08",
        "vdn": "-131 ± 1<br>-131.03 ± 1.85",
        "qmix": "**-140 ± 2** (2 seeds)<br>-126.62 ± 2.96",
    }
    assert "| spread | qmix | 10, 11 | 2 M | 2 M | -140 ± 2 | 1 k |  | 0123456789 | 2026-01-02 |" in lines


@pytest.mark.parametrize("git", [{"revision": "0" * 40, "modified": True}, {"revision": None, "modified": False}])
def test_runs_of_code_that_was_not_committed_are_no_results(reproduction: Any, tmp_path: Path, git: dict) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"git": git}))
    with pytest.raises(UserError, match="was trained with code that was not committed"):
        reproduction.provenance([tmp_path])


def test_the_committed_page_is_that_of_the_committed_results(reproduction: Any) -> None:
    content = json.loads((RESULTS / "papoudakis2021.json").read_text())
    assert reproduction.page(TABLE, content) == (RESULTS / "papoudakis2021.md").read_text()
    assert content["cells"]
    for name, cell in content["cells"].items():
        assert (name, cell["below"]) == (
            f"{cell['row']}/{cell['algo']}",
            Value(
                TABLE.row(cell["row"]),
                cell["algo"],
                cell["steps"],
                tuple(cell["seeds"]),
                peak=Level(**cell["peak"]),
                published=TABLE.row(cell["row"]).published[cell["algo"]],
            ).below,
        ), name
        assert cell["revisions"], name
