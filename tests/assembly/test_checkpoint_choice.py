"""Which checkpoint commands use, and what they say about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.__main__ import main
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.evaluations import Measurement, better_last
from tinyruns import log_entries, train

RPS = ("env=matrix/rock_paper_scissors", "algo=ippo", "env.episode_limit=1", "steps=320", "eval.every=80")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two teams that learn, in a game with a constant sum: what is best for one is worst for the other."""
    out = tmp_path_factory.mktemp("choice") / "run"
    train(out, *RPS, "eval.episodes=8")
    return out


def evaluated(run: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """Returns the JSON of `coterie evaluate` and what it prints on stderr."""
    capsys.readouterr()
    assert main(["evaluate", str(run), "--episodes", "4", "--json", *words]) == 0
    output = capsys.readouterr()
    return json.loads(output.out), output.err


def test_each_team_keeps_the_checkpoint_of_its_own_best_evaluation(run: Path) -> None:
    store, rows = Checkpoints(run / "checkpoints"), [row for row in log_entries(run) if "eval/episodes" in row]
    assert store.teams_with_best() == ["column", "row"]
    for team in ("row", "column"):
        best = max(rows[1:], key=lambda row: row[f"eval/{team}/return_mean"])
        found = store.load_best(team)
        assert found is not None
        assert (found.steps, found.warning) == (best["steps"], None)
        assert set(found.state["algorithms"]) == {"row", "column"}
    assert rows[0]["steps"] == 0
    assert store.best_steps() == store.best_steps("row")
    assert len({store.best_steps("row"), store.best_steps("column")}) == 2


def test_a_team_chooses_the_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Checkpoints(run / "checkpoints")
    for words, name, owner in (((), "best", "row"), (("--checkpoint", "best:column"), "best:column", "column")):
        report, shown = evaluated(run, capsys, *words)
        assert report["checkpoint"]["name"] == name
        assert report["steps"] == report["checkpoint"]["steps"] == store.best_steps(owner)
        row = next(row for row in log_entries(run) if row["steps"] == report["steps"] and "eval/episodes" in row)
        assert report["checkpoint"]["metric"] == f"eval/{owner}/return_mean"
        assert report["checkpoint"]["mean"] == row[f"eval/{owner}/return_mean"]
        assert report["checkpoint"]["error"] == pytest.approx(row[f"eval/{owner}/return_error"])
        assert report["checkpoint"]["episodes"] == 8
        (line,) = [line for line in shown.splitlines() if "checkpoint:" in line]
        assert f"checkpoint: {name}, step {report['steps']:,}, by the highest eval/{owner}/return_mean" in line
        assert f"there is also best:{'row' if owner == 'column' else 'column'} (step " in line
    report, shown = evaluated(run, capsys, "--checkpoint", "last")
    assert (report["checkpoint"]["name"], report["steps"]) == ("last", 320)
    assert "checkpoint: last, step 320, by --checkpoint last" in shown


def test_an_unknown_team_is_refused_with_those_that_exist(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--checkpoint", "best:rows"]) == 2
    assert "--checkpoint best:rows" in (error := capsys.readouterr().err)
    assert "Did you mean 'best:row'" in error
    assert error.count("\n") == 1


def test_a_frozen_team_a_league_and_a_loaded_run_use_the_best_of_each_team(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Checkpoints(run / "checkpoints")
    column = store.best_steps("column")
    train(tmp_path / "frozen", *RPS, "teams.column.algo=frozen", f"teams.column.run={run}")
    assert f"checkpoint: best:column, step {column}," in capsys.readouterr().err
    assert main(["league", f"a={run}", "random", "--episodes", "4", "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["checkpoints"]["a"]
    assert {team: choice["steps"] for team, choice in chosen.items()} == {
        "row": store.best_steps("row"),
        "column": column,
    }
    loaded = coterie.load(run, checkpoint="best:column")
    assert loaded.steps == loaded.checkpoint["steps"] == column
    assert "checkpoint:" not in capsys.readouterr().err  # a library prints warnings only


def test_a_metric_chooses_the_best_and_a_significantly_better_last_one_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lowest return is chosen; then the log says that later evaluations were much higher."""
    train(tmp_path / "run", *RPS, "eval.episodes=8", "eval.best=-row/return_mean")
    store = Checkpoints(tmp_path / "run" / "checkpoints")
    rows = [row for row in log_entries(tmp_path / "run") if "eval/episodes" in row]
    worst = min(rows[1:], key=lambda row: row["eval/row/return_mean"])
    assert store.best_steps() == store.best_steps("row") == worst["steps"]
    last = rows[-1] | {"steps": 321, "eval/row/return_mean": 50.0}
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(last) + "\n")
    report, shown = evaluated(tmp_path / "run", capsys)
    assert report["checkpoint"]["chosen"].startswith("by the lowest eval/row/return_mean")
    assert not report["warnings"]  # a higher value of a metric that is to be low is not better
    control = dict(last)
    control["eval/row/return_mean"] = worst["eval/row/return_mean"] - 50.0
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(control) + "\n")
    report, shown = evaluated(tmp_path / "run", capsys)
    (warning,) = report["warnings"]
    assert "the last evaluation, at step 321, is significantly better: eval/row/return_mean -" in warning
    assert "Welch's test in the normal approximation z = " in warning
    assert warning in shown


def test_the_warning_needs_a_significant_difference() -> None:
    """A difference of 3 with errors 1 and 1 is z = 2.12, p = 0.034; with errors 2 and 1 it is p = 0.18."""
    best, last = Measurement(100, 5.0, 1.0, 20), Measurement(200, 8.0, 1.0, 20)
    assert "z = 2.1, p = 0.03" in (better_last(best, last, "eval/return_mean") or "")
    assert better_last(last, best, "eval/return_mean") is None
    assert better_last(Measurement(100, 5.0, 2.0, 20), last, "eval/return_mean") is None
    assert better_last(Measurement(200, 5.0, 1.0, 20), last, "eval/return_mean") is None
    assert better_last(last, Measurement(300, 5.0, 1.0, 20), "eval/length_mean", lowest=True) is not None


def test_too_few_episodes_mark_no_best_and_commands_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", *RPS, "eval.episodes=8", "eval.min_episodes=9")
    assert (
        "eval.episodes=8: fewer than eval.min_episodes=9, so no checkpoint is marked as best" in capsys.readouterr().err
    )
    assert not list((tmp_path / "run" / "checkpoints").glob("best*"))
    report, shown = evaluated(tmp_path / "run", capsys)
    assert (report["checkpoint"]["name"], report["steps"]) == ("last", 320)
    assert "checkpoint: last, step 320, because no evaluation has marked a best one" in shown


def test_the_untrained_best_of_an_older_run_is_not_used(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train(tmp_path / "run", *RPS, "checkpoint.keep=true")
    for pointer in (tmp_path / "run" / "checkpoints").glob("best*"):
        pointer.unlink()
    (tmp_path / "run" / "checkpoints" / "best").write_text("000000000000\n")
    report, shown = evaluated(tmp_path / "run", capsys)
    assert report["steps"] == 320
    assert "the best checkpoint is of step 0, before training, and is not used" in shown
    report, shown = evaluated(tmp_path / "run", capsys, "--checkpoint", "best")
    assert report["steps"] == 0
    assert "before training. Use --checkpoint last" in shown


@pytest.mark.parametrize("setting", ["row/retrun_mean", "metric/none"])
def test_a_metric_that_is_never_logged_leaves_no_run(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *RPS, f"eval.best={setting}", f"out={tmp_path / 'run'}", "progress=off"]) == 2
    assert f"eval.best={setting}" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
