"""The loop: what is due when, windows joined, and where it stops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie import run
from coterie.collect import Collector
from coterie.config import resolve
from coterie.loop import joined
from coterie.policy import RandomPolicy
from coterie.types import tree_leaves
from tinyruns import rows_of, state_of, stop_at, train
from worlds import Counter

pytestmark = pytest.mark.usefixtures("without_curves")


def test_joined_windows_are_the_window_that_was_cut() -> None:
    def collector() -> Collector:
        env = Counter(3, 0, "cpu", mortal=True, limit=6)
        return Collector(env, {t.name: RandomPolicy(t, torch.device("cpu")) for t in env.spec.default_teams()}, 0)

    pieces = collector()
    parts = [pieces.advance(4)[0]["walkers"] for _ in range(3)]
    one = joined(parts)
    assert one.horizon == 12
    assert one.obs["walker"].shape == (13, 3, 2, 4)
    for i, part in enumerate(parts):
        at = slice(4 * i, 4 * i + 4)
        for name in ("obs", "state", "alive", "first", "acted"):
            for cut, whole in zip(tree_leaves(getattr(part, name)), tree_leaves(getattr(one, name)), strict=True):
                assert torch.equal(cut, whole[4 * i : 4 * i + 5])
        for name in ("reward", "group_reward", "action", "terminated", "truncated", "episode_truncated"):
            for cut, whole in zip(tree_leaves(getattr(part, name)), tree_leaves(getattr(one, name)), strict=True):
                assert torch.equal(cut, whole[at])


def test_evaluations_come_at_the_begin_at_every_multiple_and_at_the_end(tmp_path: Path) -> None:
    train(tmp_path / "run", "env=worlds:counter", "env.limit=1000", "steps=200", "eval.every=80", "eval.episodes=1")
    evaluated = [row["steps"] for row in rows_of(tmp_path / "run") if "eval/return_mean" in row]
    assert evaluated == [0, 80, 160, 200]


def test_a_run_ends_at_the_first_window_at_or_past_its_steps(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "env=worlds:counter", "env.limit=1000", "steps=130", "eval.every=0")
    assert state_of(tmp_path / "run")["steps"] == 160
    assert result.exit_code == 0
    assert result.summary.steps == 160


def test_a_row_is_the_mean_of_the_updates_since_the_last_one(tmp_path: Path) -> None:
    train(tmp_path / "each", "steps=160", "eval.every=0")
    train(tmp_path / "two", "steps=160", "eval.every=0", "log.every=2")
    each, two = rows_of(tmp_path / "each"), rows_of(tmp_path / "two")
    assert [row["steps"] for row in two] == [row["steps"] for row in each[1::2]]
    for i, row in enumerate(two):
        for name in ("loss/policy", "policy/entropy"):
            assert row[name] == pytest.approx((each[2 * i][name] + each[2 * i + 1][name]) / 2)
    assert sum(row.get("rollout/episodes", 0) for row in two) == sum(row.get("rollout/episodes", 0) for row in each[:4])


def test_a_run_whose_last_updates_make_no_row_is_done_all_the_same(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "steps=120", "eval.every=0", "log.every=100")
    assert rows_of(tmp_path / "run") == []
    assert result.summary.steps >= 120


def test_wall_time_goes_on_over_all_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 80)
        train(tmp_path / "run", "steps=240")
    before = state_of(tmp_path / "run")["wall"]
    result = run.resume(tmp_path / "run", [])
    assert 0 < before < state_of(tmp_path / "run")["wall"] == result.summary.wall_s


def test_an_environment_that_cannot_be_saved_goes_on_and_the_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 80)
        train(tmp_path / "run", "env=worlds:counter", "env.exact=false", "steps=240")
    run.resume(tmp_path / "run", [])
    assert "cannot save its state: new episodes begin" in capsys.readouterr().err
    assert state_of(tmp_path / "run")["steps"] >= 240


def test_a_run_whose_learner_took_no_gradient_step_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ddqn = ("algo=iql", "algo.memory=none", "algo.last_action=false", "algo.hidden=[8]", "algo.horizon=10")
    ddqn += ("env=particle/simple_spread", "env.episode_limit=5", "copies=4", "steps=80", "eval.every=0")
    ddqn += ("log.tensorboard=false", "threads=1", "device=cpu")

    def ended(name: str, starts: int, batch: int, *settings: str) -> tuple[run.Result, str]:
        learned = (f"algo.learning_starts={starts}", f"algo.batch={batch}", f"out={tmp_path / name}")
        result = run.train(resolve([*ddqn, *learned, *settings]))
        return result, capsys.readouterr().err

    result, said = ended("few", 40, 10_000, "progress=off")
    assert said.startswith("coterie: team agent: the learner took no gradient step: its replay came to ")
    assert said == f"coterie: {result.summary.warnings[0]}\n"
    assert result.exit_code == 0
    assert "end before algo.learning_starts=500" in ended("short", 500, 16, "progress=off")[1]
    assert "took no gradient step" in ended("shown", 40, 10_000, "progress=lines")[1]
    assert ended("learned", 40, 16, "progress=off")[1] == ""
    assert ended("unlogged", 40, 16, "progress=off", "log.every=10")[1] == ""  # no row tells of the updates
