"""Reports with videos of trained policies and matrices of leagues, and the messages for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.report_runs import write_run, write_runs

import coterie
from coterie.assembly.resolve import resolve
from coterie.cli.app import run
from coterie.commands import train
from coterie.commands.compare import compare_runs
from coterie.commands.league import LeagueResult
from coterie.commands.report import ReportOptions, best_runs, record, write_report
from coterie.core.errors import UserError
from coterie.reports.options import CompareOptions
from coterie.reports.page_media import read_league


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a short run on a world that draws quickly."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        words = f"algo=ippo env=matrix/climbing steps=400 num_envs=4 eval.every=200 eval.episodes=8 seed={seed}".split()
        train.train(resolve([*words, f"out={folder / str(seed)}", "progress=off", "algo.hidden_sizes=[8]"]))
    return folder


@pytest.mark.slow
def test_videos_show_the_best_and_the_median_episode_of_the_best_run(trained: Path) -> None:
    comparison = compare_runs([trained], CompareOptions(unfinished=True)).comparison
    progress: list[tuple[int, int]] = []
    found, failed = record(comparison, 3, lambda done, total: progress.append((done, total)))
    assert failed == {}
    assert progress == [(0, 1), (1, 1)]
    best = best_runs(comparison)["matrix/climbing", "ippo"]
    assert best.series.final == max(t.series.final for t in comparison.results["matrix/climbing", "ippo"].trials)
    assert [(video.kind, video.run, video.shown, video.episodes) for video in found] == [
        ("best", best.run.name, 1.0, 3),
        ("median", best.run.name, 1.0, 3),
    ]
    assert found[0].episode_return >= found[1].episode_return
    for video in found:
        assert video.content[4:8] == b"ftyp"
        assert len(video.content) < 200_000


def test_runs_without_checkpoints_are_reported_without_videos(tmp_path: Path) -> None:
    run_ = write_run(tmp_path / "a")
    found = write_report([run_], ReportOptions(tmp_path / "report.html", video_episodes=9))
    assert f"No video of {run_}: " in found.path.read_text()


def league(path: Path, symmetric: bool) -> Path:
    score = {"a": {"a": 0.5, "b": 0.75}, "b": {"a": 0.25, "b": 0.5}}
    returns = {team: {"a": {"a": 1.0, "b": 2.5}, "b": {"a": -3.0, "b": 0.0}} for team in ("one", "two")}
    elo = {"elo": {"a": {"rating": 0.0, "error": 0.0}, "b": {"rating": -190.0, "error": 20.0}}}
    head = {"env": "x/y", "episodes": 40, "rows": "one", "columns": "two", "score": score}
    path.write_text(json.dumps(head | {"return_mean": returns, "return_error": returns} | (elo if symmetric else {})))
    return path


def test_python_writes_the_same_page_as_the_command(tmp_path: Path) -> None:
    runs = write_runs(tmp_path / "runs")
    path = coterie.report([runs], out=tmp_path, videos=False)
    assert path == tmp_path / "report.html"
    write_report([runs], ReportOptions(tmp_path / "again.html"))
    assert path.read_text() == (tmp_path / "again.html").read_text()


@pytest.mark.parametrize("symmetric", [True, False])
def test_leagues_are_shown_as_matrices(tmp_path: Path, symmetric: bool) -> None:
    write_run(tmp_path / "runs" / "a")
    league(tmp_path / "runs" / "league.json", symmetric)
    text = write_report([tmp_path / "runs"], ReportOptions(tmp_path / "report.html")).path.read_text()
    if symmetric:
        assert "x/y: win rate of the row" in text
        assert '<td data-value="0.75" class="shade s7">0.75</td>' in text
        assert "-190 ± 20" in text
    else:
        assert "x/y: mean team return of two" in text
        assert '<td data-value="2.5" class="shade s9">2.5 <small>± 2.5</small></td>' in text


def test_the_matrix_of_a_page_is_the_win_rate_that_the_league_prints(tmp_path: Path) -> None:
    score = torch.tensor([[0.5, 0.9], [0.3, 0.5]], dtype=torch.float64)
    zeros = {team: torch.zeros(2, 2, dtype=torch.float64) for team in ("one", "two")}
    teams = ("one", "two")
    result = LeagueResult(
        env="x/y", members=("a", "b"), teams=teams, returns=zeros, error=zeros, score=score, games=40, symmetric=True,
        win_criterion="return",
    )  # fmt: skip
    (tmp_path / "league.json").write_text(json.dumps(result.report()))
    (matrix,) = read_league(tmp_path / "league.json")
    assert matrix.values[0][1] == pytest.approx(float(result.win_rate()[0, 1])) == pytest.approx(0.8)
    assert matrix.values[1][0] == pytest.approx(0.2)
    assert matrix.ratings["b"][0] < matrix.ratings["a"][0] == 0


def test_other_files_than_leagues_are_refused_in_one_line(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a")]
    (tmp_path / "x.json").write_text('{"score": 3}')
    with pytest.raises(UserError, match=r"x\.json: not the result of a league\."):
        write_report(runs, ReportOptions(tmp_path / "report.html", leagues=[tmp_path / "x.json"]))
    with pytest.raises(UserError, match=r"--league .*y\.json: no such file"):
        write_report(runs, ReportOptions(tmp_path / "report.html", leagues=[tmp_path / "y.json"]))


def test_the_command_prints_findings_and_notes_and_writes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = write_runs(tmp_path / "runs")
    assert run(["report", str(runs), "--no-videos", "--out", str(tmp_path / "new" / "r.html")]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    assert "3 seeds are few. Train 5 or more" in printed.err
    assert "wrote " in printed.err
    assert "coterie report " not in (tmp_path / "new" / "r.html").read_text().partition("<body>")[0]
    assert run(["report", str(runs), "--no-videos", "--json", "--out", str(tmp_path / "r.html")]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(tmp_path / "r.html")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no runs given. Name folders of runs"),
        (["nowhere"], "nowhere: no such folder or file"),
        (["empty"], "empty: contains no runs"),
        (["runs", "--metric", "eval/metric/wonn"], "--metric eval/metric/wonn: not in the logs"),
        (["half"], "1 run has not finished"),
        (["runs", "episodes"], "evaluations have"),
        (["runs", "results.json"], "State the convention of files"),
        (["runs", "--out", "report.pdf"], "--out report.pdf: unsupported file type"),
    ],
)
def test_bad_input_gets_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "runs" / "a")
    if "half" in words:
        write_run(tmp_path / "half", steps=1000)
    if "episodes" in words:
        other = write_run(tmp_path / "episodes", seed=1) / "metrics.jsonl"
        other.write_text(other.read_text().replace('"eval/episodes": 32', '"eval/episodes": 128'))
    steps = {"step_0": {"step_count": 0, "return": [1.0]}}
    (tmp_path / "results.json").write_text(json.dumps({"matrix": {"climbing": {"x": {"seed_0": steps}}}}))
    with pytest.raises(UserError) as raised:
        run(["report", *words, "--no-videos"])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("*.html"))
