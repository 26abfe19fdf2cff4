"""Runs with a curriculum: logging, evaluation, checkpoints and resuming."""

from __future__ import annotations

import io
import json
import math
import shutil
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from coterie.assembly.resolve import resolve
from coterie.commands import evaluate as evaluation
from coterie.commands import train as training
from coterie.config.curriculum import AdvanceConfig
from coterie.core.errors import UserError
from coterie.core.metrics import undeclared
from coterie.training import curriculum
from coterie.training.curriculum import Criterion, CurriculumCallback, smooth
from tinyruns import assert_same, checkpoint_state, log_entries, stop_at, tiny, train

TAG = ("env=particle/simple_tag", "env.episode_limit=5", "steps=400", "eval.every=0")
LESSONS = (
    "[{name: slow, parameters: {prey_speed: 0.25, spread: {uniform: [0.1, 0.5]}},"
    " advance: {metric: progress, above: 0.25}},"
    "{name: fast, parameters: {prey_speed: {uniform: [0.5, 1]}},"
    " advance: {metric: rollout/agent/return_mean, above: -1e9, smoothing: 0.5, patience: 2, episodes: 20}},"
    "{name: full, parameters: {prey_speed: 1}}]"
)


def lessons(text: str = LESSONS) -> str:
    return f"curriculum.lessons={text}"


def lesson_indices(rows: list[dict[str, Any]]) -> list[int]:
    return [row["lesson/index"] for row in rows if "lesson/index" in row]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[training.TrainingResult, str]:
    """An uninterrupted run of all lessons, and what it wrote to the terminal."""
    out, shown = tmp_path_factory.mktemp("curriculum") / "uninterrupted", io.StringIO()
    with redirect_stderr(shown):
        return train(out, *TAG, lessons(), "progress=lines"), shown.getvalue()


@pytest.mark.slow
def test_lessons_follow_each_other_and_are_logged(uninterrupted: tuple[training.TrainingResult, str]):
    result, output = uninterrupted
    rows = log_entries(result.run)
    assert undeclared({name for row in rows for name in row}) == []
    indices = lesson_indices(rows)
    assert indices == sorted(indices)
    assert set(indices) == {1, 2, 3}
    by_lesson = {row["lesson/index"]: row["lesson/prey_speed"] for row in rows if "lesson/index" in row}
    assert by_lesson == {1: 0.25, 2: 0.75, 3: 1.0}
    assert {row["lesson/spread"] for row in rows if "lesson/spread" in row} == {0.3}  # kept from the first lesson
    assert "lesson 1 of 3: slow (prey_speed 0.25, spread {uniform: [0.1,0.5]})" in output
    assert (
        "lesson 2 of 3: fast (prey_speed {uniform: [0.5,1.0]}, spread {uniform: [0.1,0.5]}); progress 0.340" in output
    )
    assert "lesson 3 of 3: full" in output
    assert result.summary.lesson == "lesson 3 of 3: full"
    assert json.loads((result.run / "manifest.json").read_text())["lesson"] == "lesson 3 of 3: full"
    assert "lesson 3 of 3: full" in result.summary.text()


@pytest.mark.slow
def test_the_last_lesson_is_not_reached_below_the_threshold(tmp_path: Path):
    result = train(tmp_path / "run", *TAG, lessons(LESSONS.replace("above: -1e9", "above: 1e9")))
    assert set(lesson_indices(log_entries(tmp_path / "run"))) == {1, 2}
    assert result.summary.lesson == "lesson 2 of 3: fast"


@pytest.mark.slow
def test_a_lesson_lasts_its_minimum_number_of_episodes(
    uninterrupted: tuple[training.TrainingResult, str], tmp_path: Path
):
    train(tmp_path / "many", *TAG, lessons(LESSONS.replace("episodes: 20", "episodes: 40")))
    few, many = (log_entries(run) for run in (uninterrupted[0].run, tmp_path / "many"))
    last = max(row["lesson/episodes"] for row in few if row.get("lesson/index") == 2)
    assert 8 <= last <= 20
    assert max(row["lesson/episodes"] for row in many if row.get("lesson/index") == 2) > last


@pytest.mark.slow
def test_a_run_resumed_within_a_lesson_is_bit_identical(
    uninterrupted: tuple[training.TrainingResult, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Negative control: one that is resumed without its lesson ends differently."""
    with monkeypatch.context() as patched:
        stop_at(patched, 200)
        train(tmp_path / "resumed", *TAG, lessons())
    assert checkpoint_state(tmp_path / "resumed")["callbacks"]["curriculum"]["lesson"] == 1
    shutil.copytree(tmp_path / "resumed", tmp_path / "forgets")
    training.resume(tmp_path / "resumed", [])
    whole = uninterrupted[0].run
    assert log_entries(tmp_path / "resumed") == log_entries(whole)
    assert_same(checkpoint_state(tmp_path / "resumed"), checkpoint_state(whole))
    monkeypatch.setattr(CurriculumCallback, "load_state_dict", lambda self, state: None)
    training.resume(tmp_path / "forgets", [])
    assert log_entries(tmp_path / "forgets") != log_entries(whole)


@pytest.mark.slow
def test_evaluations_use_the_current_or_the_last_lesson(tmp_path: Path):
    still = (
        "[{name: none, parameters: {speed: 0.05, spread: 0}, advance: {metric: progress, above: 0.7}},"
        "{name: all, parameters: {speed: 1, spread: 1}}]"
    )
    evals = {}
    for which in ("current", "last"):
        out = tmp_path / which
        train(out, "env=particle/simple", "steps=400", lessons(still), f"curriculum.evaluate={which}", "eval.every=200")
        evals[which] = [row["eval/return_mean"] for row in log_entries(out) if "eval/return_mean" in row]
    assert len(evals["current"]) == 3
    assert all(value > -0.1 for value in evals["current"][:2])  # everything starts at the same place
    assert all(value < -1 for value in [*evals["last"], evals["current"][2]])
    current, last = (checkpoint_state(tmp_path / which)["best"] for which in ("current", "last"))
    assert current["task"] == 1
    assert current["best"] == {"": evals["current"][2]}  # results in the easier lesson do not count
    assert last["best"] == {"": max(evals["last"][1:])}  # nor does the untrained policy


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_in_its_own_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    still = (
        "[{name: none, parameters: {spread: 0, speed: 0.05}, advance: {metric: progress, above: 0.9}},"
        "{name: all, parameters: {spread: 1, speed: 1}}]"
    )
    settings = ("env=particle/simple", "steps=200", lessons(still), "eval.every=0")
    train(tmp_path / "early", *settings[:3], "eval.every=0", "checkpoint.every=0")
    stop_at(monkeypatch, 80)
    train(tmp_path / "first", *settings)
    easy = evaluation.evaluate_run(tmp_path / "first", 8, checkpoint="last")["teams"]["agent"]["return_mean"]
    hard = evaluation.evaluate_run(tmp_path / "early", 8, checkpoint="last")["teams"]["agent"]["return_mean"]
    assert easy > -0.1 > -1 > hard


@pytest.mark.slow
def test_randomized_parameters_need_no_lessons(tmp_path: Path):
    out = tmp_path / "run"
    train(out, *TAG, "randomize.prey_speed={uniform: [0.5, 1.5]}")
    rows = log_entries(out)
    assert {row["lesson/prey_speed"] for row in rows if "lesson/prey_speed" in row} == {1.0}
    assert not lesson_indices(rows)
    speeds = checkpoint_state(out)["collector"]["env"]["state"]["prey_speed"]
    assert len(speeds.unique()) == 4
    assert bool(((speeds >= 0.5) & (speeds <= 1.5)).all())


@pytest.mark.slow
def test_a_metric_that_is_never_logged_causes_a_warning(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(curriculum, "MISSING_METRIC_PATIENCE", 3)
    never = "[{name: one, advance: {metric: rollout/dropped, above: 0}}, {name: two}]"
    train(tmp_path / "run", *TAG, lessons(never), "progress=lines")
    warning = "lesson 'one' waits for the metric 'rollout/dropped', which is missing from all of the last 3 log entries"
    assert capsys.readouterr().err.count(warning) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["randomize.prey_sped=1"],
            r"simple_tag has no parameter 'prey_sped' that a curriculum or randomization could set. Did you mean",
        ),
        (
            [lessons(LESSONS.replace("prey_speed: 1}", "prey_speed: 99}"))],
            r"'prey_speed' of particle/simple_tag: 99 is n",
        ),
        (
            [lessons(LESSONS.replace("rollout/agent/", "rollout/"))],
            r"is logged per team\. Use 'rollout/adversary/return",
        ),
        (
            [lessons(LESSONS.replace("rollout/agent/", "eval/agent/")), "eval.every=0"],
            r"never logged without evaluations",
        ),
    ],
)
def test_an_invalid_setting_is_refused_before_anything_is_written(tmp_path: Path, settings: list[str], message: str):
    with pytest.raises(UserError, match=message):
        training.train(resolve([*tiny(*TAG[:-1], *settings), f"out={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()


def evaluated(values: list[float], **config: Any) -> tuple[list[float], list[bool]]:
    criterion = Criterion(AdvanceConfig(metric="progress", **config))
    means, met = [], []
    for value in values:
        criterion.add(value)
        means.append(criterion.mean)
        met.append(criterion.met)
    return means, met


def test_the_exponential_mean_starts_at_the_first_value():
    assert smooth(math.nan, 4.0, 0.75) == 4.0
    assert smooth(4.0, 8.0, 0.75) == 5.0
    assert evaluated([4, 8, 0], above=4.5, smoothing=0.75) == ([4.0, 5.0, 3.75], [False, True, False])
    assert evaluated([4, 8, 0], above=4.5) == ([4, 8, 0], [False, True, False])  # without smoothing


def test_the_moving_average_needs_a_full_window():
    means, met = evaluated([9, 9, 3, 0], above=5, window=3)
    assert math.isnan(means[0])
    assert means[2:] == [7.0, 4.0]
    assert met == [False, False, True, False]


def test_patience_counts_consecutive_values():
    values = [2.0, 0, 2, 2, 2]
    assert evaluated(values, above=1, patience=3)[1] == [False, False, False, False, True]
    assert evaluated(values, above=1)[1] == [True, False, True, True, True]


def test_a_threshold_can_be_an_upper_bound_and_excludes_equality():
    assert evaluated([1, 0.5, 0.4], below=0.5)[1] == [False, False, True]
    assert evaluated([1, 1.1], above=1)[1] == [False, True]


def test_a_value_that_is_not_finite_resets_the_streak_and_keeps_the_mean():
    assert evaluated([2, math.nan, 2, 2], above=1, patience=2)[1] == [False, False, False, True]
    assert evaluated([2, math.inf, 4], above=9, smoothing=0.5)[0] == [2, 2, 3]


@pytest.mark.parametrize("config", [{"window": 3}, {"smoothing": 0.5}, {"patience": 2}])
def test_a_criterion_resumes_from_its_state(config: dict[str, Any]):
    advance = AdvanceConfig(metric="progress", above=2.5, **config)
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    for stop in range(len(values)):
        one, other = Criterion(advance), Criterion(advance)
        for value in values[:stop]:
            one.add(value)
        other.load_state_dict(one.state_dict())
        for value in values[stop:]:
            one.add(value)
            other.add(value)
        assert other.state_dict() == one.state_dict()
        assert other.met
