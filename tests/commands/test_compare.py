"""`coterie compare`, `coterie ps`, and their Python functions."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import coterie
from coterie.__main__ import main
from coterie.commands.fresh_evaluation import evaluate_fresh
from coterie.reports.collection import collect
from coterie.reports.figures import draw
from coterie.reports.fresh_evaluations import FILE, read_fresh
from coterie.reports.grouping import Selection, group
from coterie.runs.activity import status, steps_per_second
from tinyruns import train
from writtenruns import write_marl_eval, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three algorithms on two tasks with three seeds each."""
    for task in ("particle/simple_spread", "particle/simple_tag"):
        for place, algo in enumerate(("mappo", "ippo", "qmix")):
            for seed in range(3):
                end = 10.0 - 2 * place + seed
                write_run(tmp_path / "runs" / task / algo / str(seed), seed, algo, task, values=(-10.0, 0.0, end))
    return tmp_path / "runs"


def compare(*words: str | Path) -> int:
    return main(["compare", *map(str, words)])


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are not folded."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("option", ["--latex", "--csv", "--json"])
def test_documents_go_to_a_file_or_alone_to_stdout(folder: Path, option: str, capsys: pytest.CaptureFixture) -> None:
    file, folder = folder.parent / "new" / "document", folder / "particle" / "simple_tag"
    assert compare(folder, option, file) == 0
    written = file.read_text()
    capsys.readouterr()
    assert compare(folder, option, "-") == 0
    out = capsys.readouterr().out
    if option == "--json":
        assert json.loads(out) == json.loads(written)
    else:
        assert out == written


def test_csv_has_every_score_and_statistic(folder: Path, capsys: pytest.CaptureFixture) -> None:
    compare(folder, "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    means = {(row["task"], row["algo"]): float(row["value"]) for row in rows if row["statistic"] == "mean"}
    assert means["particle/simple_tag", "qmix"] == 7
    assert sum(row["table"] == "run" for row in rows) == 18
    assert sum(row["table"] == "pair" and row["statistic"] == "p_holm" for row in rows) == 9


def test_markdown_and_latex_escape_names_and_set_the_best_values_in_bold(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    compare(folder / "particle" / "simple_tag", "--markdown", "-")
    markdown = capsys.readouterr().out
    assert "| mappo | 3 | **11.0 [10.0, 12.0]** |" in markdown
    assert r"particle/simple\_tag" in markdown
    compare(folder / "particle" / "simple_tag", "--latex", "-")
    latex = capsys.readouterr().out
    assert r"mappo & 3 & \textbf{11.0 [10.0, 12.0]} &" in latex
    assert r"simple\_tag" in latex
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 3


def test_compact_latex_is_one_table_of_tasks_and_algorithms(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert compare(folder, "--latex", "compact") == 0
    latex = capsys.readouterr().out
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 1
    lines = latex.splitlines()
    head = next(k for k, line in enumerate(lines) if line.startswith("task & "))
    algorithms = lines[head].removesuffix(r" \\").split(" & ")[1:]
    rows = lines[head + 2 : lines.index(r"\midrule", head + 2)]
    assert [row.split(" & ")[0] for row in rows] == [r"particle/simple\_spread", r"particle/simple\_tag"]
    assert all(row.count(" & ") == len(algorithms) for row in rows)
    assert all(row.count(r"\textbf{") <= 1 for row in rows)
    assert any(r"\textbf{11.0 [10.0, 12.0]}" in row for row in rows)
    assert any(line.startswith("all tasks, normalized & ") for line in lines)
    assert "With fewer than 5 seeds, such intervals cover clearly less than 95" in latex
    assert compare(folder, "--latex", f"compact:{tmp_path / 'table.tex'}") == 0
    assert (tmp_path / "table.tex").read_text() == latex


HOSTILE = ("=1+2", "*a[x](http://x.y)&amp;", "[b]", "+c|d")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A file of marl-eval whose algorithms have names with effects in spreadsheets, Markdown and LaTeX."""
    runs = {f"seed_{seed}": {"step_0": {"step_count": 9, "return": [1.0, 2.0 + seed]}} for seed in range(2)}
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps({"@env": {"task": dict.fromkeys(HOSTILE, runs)}}))
    return file


def test_names_have_no_effects_in_documents(hostile: Path, capsys: pytest.CaptureFixture) -> None:
    """They are no formulas of spreadsheets, no links of Markdown and no options of LaTeX."""
    assert compare(hostile, "--csv", "-") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["algo"] for row in rows} == {"'=1+2", "*a[x](http://x.y)&amp;", "[b]", "'+c|d"}
    assert {row["task"] for row in rows} == {"'@env/task"}
    assert not any(row[name][:1] in tuple("=+-@") for row in rows for name in ("task", "algo", "other", "statistic"))
    assert compare(hostile, "--markdown", "-") == 0
    text = capsys.readouterr().out
    assert r"| \*a[x\](http://x.y)\&amp; |" in text
    assert r"| +c\|d |" in text
    assert compare(hostile, "--latex", "-") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("%")]
    assert any(line.startswith(r"{*}a[x](http://x.y)\&amp; & 2 &") for line in lines)
    assert any(line.startswith("{[}b] & 2 &") for line in lines)
    assert not any(line.startswith(("[", "*")) for line in lines)


def test_an_evaluation_that_is_not_finite_is_named(folder: Path, capsys: pytest.CaptureFixture) -> None:
    run = folder / "particle" / "simple_tag" / "mappo" / "1"
    log = run / "metrics.jsonl"
    *rows, last = map(json.loads, log.read_text().splitlines())
    log.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**last, "eval/return_mean": None}]))
    assert compare(run, run.with_name("0")) == 0
    text = capsys.readouterr().out
    note = (
        f"eval/return_mean of {run} is not finite at step 2,000, left out. The value of step 1,000 counts as its last"
    )
    assert note in " ".join(text.split())


def test_a_figure_has_curves_intervals_profiles_and_pairs(folder: Path) -> None:
    figure = draw(coterie.compare(folder))
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figure.get_axes()]
    assert [title for title in titles if title] == [
        *("particle/simple_spread", "particle/simple_tag", "2 tasks", "mean", "median", "IQM", "optimality gap"),
        *("performance profile", "probability of improvement (dark: significant)"),
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ippo", "mappo", "qmix", "random policy"]


@pytest.mark.slow
def test_figures_of_one_group_are_written(folder: Path) -> None:
    file = folder.parent / "new" / "one.png"
    assert compare(folder / "particle" / "simple_tag" / "mappo", "--plot", file) == 0
    with Image.open(file) as image:
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 50


def test_runs_written_for_marl_eval_read_back_as_the_same_results(folder: Path, capsys: pytest.CaptureFixture) -> None:
    file = folder.parent / "results.json"
    assert compare(folder, "--marl-eval", file) == 0
    assert "18 runs have no fresh evaluation" in capsys.readouterr().err
    tree = json.loads(file.read_text())
    assert list(tree["particle"]["simple_tag"]["mappo"]["seed_2"]) == ["step_0", "step_1", "step_2", "absolute_metrics"]
    trials = {key: group(collect([key]), Selection())[0] for key in (folder, file)}
    for own, read in zip(*trials.values(), strict=True):
        assert (own.task, own.algo, own.seed) == (read.task, read.algo, read.seed)
        np.testing.assert_array_equal(own.series.mean, read.series.mean)
        np.testing.assert_array_equal(own.series.seconds, read.series.seconds)


@pytest.mark.parametrize(("metric", "peak"), [("return", 10.0), ("-return", -10.0)])
def test_the_peak_written_for_marl_eval_is_the_best_value(folder: Path, metric: str, peak: float) -> None:
    file, runs = folder.parent / "results.json", folder / "particle" / "simple_tag" / "mappo" / "0"
    assert compare(runs, f"--metric={metric}", "--marl-eval", file) == 0
    run = json.loads(file.read_text())["particle"]["simple_tag"]["mappo"]["seed_0"]
    assert run["absolute_metrics"] == {"team_return": [peak]}


def test_commas_in_names_of_algorithms_are_replaced_for_marl_eval(folder: Path) -> None:
    for sizes in ([16, 16], [8, 8]):
        write_run(folder / "sizes" / str(sizes[0]), algo="vdn", config={"algo": {"hidden_sizes": sizes}})
    assert compare(folder / "sizes", "--marl-eval", folder / "results.json") == 0
    (algos,) = (task for tasks in json.loads((folder / "results.json").read_text()).values() for task in tasks.values())
    assert len(algos) == 2
    assert not any("," in name for name in algos)


def test_results_of_other_programs_stand_in_the_same_table(folder: Path, capsys: pytest.CaptureFixture) -> None:
    file = write_marl_eval(folder.parent / "benchmarl.json", algo="masac")
    assert compare(folder, file) == 2
    assert "State the convention of files: --file-returns team" in capsys.readouterr().err
    assert compare(folder, file, "--file-returns", "agent", "--mixed") == 0
    captured = capsys.readouterr().out
    assert "masac" in captured
    assert "masac has no runs on particle/simple_tag" in captured


BAD = {
    "no runs": (["nowhere"], "nowhere: no such folder or file."),
    "no runs below": (["."], ".: contains no runs."),
    "two documents": (["--csv", "-", "--latex", "-"], "stdout has"),
    "figure": (["--plot", "x.jpg"], "--plot x.jpg: unsupported file type. Expected .png, .svg or .pdf."),
    "threshold": (["--threshold", "high"], "--threshold high: not a number."),
    "baseline": (["--baseline", "mapo"], "--baseline mapo: not among the algorithms. Did you mean 'mappo'"),
    "metric": (["--metric", "won"], "--metric won: not in the logs of these runs."),
    "team": (["--team", "blue"], "--team blue: no run has a team of this name"),
    "score": (["--score", "absolute"], "--score absolute: "),
    "kind of score": (["--score", "best"], "coterie: Invalid value for '--score': 'best' is not one of"),
    "direction": (["--normalize", "0,-100"], "--normalize 0,-100: the score 1 would be worse than 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_answered_with_one_line(
    folder: Path, case: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, message = BAD[case]
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty")
    paths = [] if not case.startswith("t") and not words[0].startswith("-") else [folder]
    assert compare(*paths, *words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


# ---------------------------------------------------------------------------------------------------- fresh evaluation


@pytest.mark.slow
def test_fresh_evaluations_are_kept_and_repeated_only_under_other_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = train(tmp_path / "run", "algo=ippo").run
    final = evaluate_fresh(run, 6)[0]
    assert final.values["", "eval/return_mean"].shape[0] >= 6
    stored = (run / FILE).read_bytes()
    assert compare(run, "--evaluate", "6") == 0
    assert (run / FILE).read_bytes() == stored
    assert "fresh evaluation of the final policies" in capsys.readouterr().out
    other = train(tmp_path / "other", "algo=ippo", "seed=1", "eval.episodes=8").run
    assert compare(run, other, "--evaluate", "--mixed") == 0  # ten times the episodes of each run's evaluations
    assert {len(fresh.values["", "eval/return_mean"]) for fresh in read_fresh(other)} == {80}
    found = {fresh.policies: fresh.values["", "eval/return_mean"] for fresh in read_fresh(run)}
    assert {name: len(values) for name, values in found.items()} == {"final": 40, "best": 40}
    assert collect([run]).runs[0].fresh_values("final", "", "eval/return_mean") is not None
    (run / FILE).write_text("{}")
    assert compare(run) == 2
    assert f"{FILE}: not of format 1. Remove the file" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- Python


def test_the_table_of_runs_has_results_and_the_settings_that_differ(folder: Path) -> None:
    write_run(folder / "half", 7, values=(-10.0, 0.0), config={"algo": {"lr": 0.5}})
    table = coterie.runs(f"{folder}/**")
    assert len(table) == 19
    row = next(row for row in table if row["run"].endswith("half"))
    assert (row["algo"], row["seed"], row["state"], row["final"], row["algo.lr"]) == ("mappo", 7, "stopped", 0.0, 0.5)
    assert all(tuple(row) == table.columns for row in table)
    assert len(coterie.runs(folder, unfinished=False)) == 18
    assert len(table.metrics()) == 3 * 18 + 2
    assert set(table.metrics("loss/policy").column("value")) == {0.1}


def test_the_best_evaluation_of_the_table_is_the_lowest_one_if_lower_is_better(folder: Path) -> None:
    run = folder / "particle" / "simple_tag" / "mappo" / "0"
    found = [
        (table[0]["peak"], table[0]["peak_steps"])
        for table in (coterie.runs(run), coterie.runs(run, metric="-eval/return_mean"))
    ]
    assert found == [(10.0, 2000), (-10.0, 0)]


def test_the_package_runs_and_the_function_are_one(folder: Path) -> None:
    assert importlib.import_module("coterie.runs") is coterie.runs
    assert coterie.runs.folder.RunFolder.open(coterie.runs(folder)[0]["run"])  # type: ignore[attr-defined]


def test_tables_become_data_frames(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = coterie.runs(folder)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert table.frame() == list(table)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(coterie.UserError, match=r"pip install .*\[pandas\]"):
        table.frame()


def test_python_compares_like_the_command(folder: Path, capsys: pytest.CaptureFixture) -> None:
    comparison = coterie.compare(folder, baseline="qmix", threshold={"particle/simple_tag": 5})
    compare(folder, "--baseline", "qmix", "--threshold", "particle/simple_tag=5", "--json", "-")
    printed = json.loads(capsys.readouterr().out)
    assert printed["sentences"] == list(comparison.sentences)
    assert [pair["probability"]["value"] for pair in printed["pairs"]] == [
        p.probability.value for p in comparison.pairs
    ]


# ------------------------------------------------------------------------------------------------------------------ ps


def test_ps_lists_state_speed_and_remaining_time(folder: Path, capsys: pytest.CaptureFixture) -> None:
    training = write_run(folder / "now", 5, values=(-10.0, 0.0))
    (training / "lock").write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))
    (folder / "broken").mkdir()
    (folder / "broken" / "config.yaml").write_text("a: [")
    (folder / "broken" / "manifest.json").write_text("{}")
    assert main(["ps", str(folder), "--json"]) == 0
    runs: dict[str, Any] = {Path(run["run"]).name: run for run in json.loads(capsys.readouterr().out)}
    assert len(runs) == 3 + 2  # names of seeds repeat
    assert (runs["now"]["state"], runs["now"]["steps"], runs["now"]["total"]) == ("training", 1000, 2000)
    assert runs["now"]["steps_per_s"] == pytest.approx(1000 / 7)
    assert runs["now"]["seconds_left"] == pytest.approx(7)
    assert runs["now"]["returns"] == {"": 0.0}
    assert runs["broken"]["state"] == "unreadable"
    assert "config.yaml" in runs["broken"]["note"]
    assert main(["ps", str(folder), "--state", "training"]) == 0
    text = capsys.readouterr().out
    assert "1 training" in text
    assert "1,000 / 2,000" in text
    assert "7 s" in text


def test_ps_names_a_folder_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["ps", str(tmp_path)]) == 2
    assert "contains no runs" in capsys.readouterr().err


def test_the_speed_is_that_of_the_last_minute() -> None:
    rows = [{"steps": 100 * t, "time/wall_s": float(t)} for t in range(100)]
    rows += [{"steps": 9900 + t, "time/wall_s": 99.0 + t} for t in range(1, 61)]
    assert steps_per_second(rows) == pytest.approx(1.0)
    assert steps_per_second(rows[:1]) is None
    assert status(Path("nowhere")).state == "unreadable"


def test_a_note_names_the_settings_in_which_groups_differ_besides_the_algorithm(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Those that define Coterie's own algorithms, such as the critic of IPPO, and those that one group lacks do not."""

    def note(*runs: str) -> str:
        assert compare(*(tmp_path / run for run in runs)) == 0
        lines = capsys.readouterr().out.splitlines()
        return next((line for line in lines if "more than the algorithm" in line), "")

    groups = {
        "mappo": {"critic": "joint"},
        "ippo": {"critic": "own"},
        "lab:Own": {"critic": "own", "lr": 1e-4, "base": "ippo", "extra": 1},
        "lab:Same": {"critic": "joint", "base": "mappo"},
    }
    for algo, settings in groups.items():
        for seed in range(2):
            write_run(tmp_path / algo.partition(":")[2] / algo.replace(":", "-") / str(seed), seed, algo,
                      config={"algo": {"name": algo, "lr": 1e-3} | settings})  # fmt: skip
    assert note("mappo", "ippo") == ""
    assert note("mappo", "Same") == ""
    assert "algorithm: algo.critic (joint, own), algo.lr (0.001, 0.0001)." in note("mappo", "Own")
    assert "algorithm: algo.lr (0.001, 0.0001)." in note("ippo", "Own")
    assert coterie.compare([tmp_path / "mappo", tmp_path / "Own"]).notes[-1].startswith("groups differ in more than")
    out = tmp_path / "r.html"
    assert coterie.report([tmp_path / "mappo", tmp_path / "Own"], videos=False, out=out) == out
    assert "Groups differ in more than the algorithm: algo.critic (joint, own), algo.lr" in out.read_text()
