"""The training loop: evaluations, log entries, concatenated rollouts, and the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.assembly.resolve import resolve
from coterie.commands import train as training
from coterie.core.tree import tree_leaves
from coterie.policies.base import RandomPolicy
from coterie.training.collector import Collector
from coterie.training.rollout_builder import concatenate_rollouts
from tinyruns import checkpoint_state, log_entries, stop_at, train
from worlds import Counter


def test_concatenated_rollouts_equal_the_rollout_that_was_split() -> None:
    def collector() -> Collector:
        env = Counter(3, 0, "cpu", agents_can_die=True, limit=6)
        return Collector(env, {t.name: RandomPolicy(t, torch.device("cpu")) for t in env.spec.default_teams()}, 0)

    pieces = collector()
    parts = [pieces.advance(4)[0]["walkers"] for _ in range(3)]
    one = concatenate_rollouts(parts)
    assert one.rollout_length == 12
    assert one.obs["walker"].shape == (13, 3, 2, 4)
    for i, part in enumerate(parts):
        at = slice(4 * i, 4 * i + 4)
        for name in ("obs", "state", "alive", "first", "acted"):
            for part_leaf, leaf in zip(tree_leaves(getattr(part, name)), tree_leaves(getattr(one, name)), strict=True):
                assert torch.equal(part_leaf, leaf[4 * i : 4 * i + 5])
        for name in ("reward", "group_reward", "action", "terminated", "truncated", "episode_truncated"):
            for part_leaf, leaf in zip(tree_leaves(getattr(part, name)), tree_leaves(getattr(one, name)), strict=True):
                assert torch.equal(part_leaf, leaf[at])


@pytest.mark.slow
def test_evaluations_run_at_the_start_at_every_multiple_and_at_the_end(tmp_path: Path) -> None:
    train(tmp_path / "run", "env=worlds:counter", "env.limit=200", "steps=200", "eval.every=80", "eval.episodes=1")
    evaluated = [row["steps"] for row in log_entries(tmp_path / "run") if "eval/return_mean" in row]
    assert evaluated == [0, 80, 160, 200]


def test_a_run_ends_with_the_first_rollout_that_reaches_its_steps(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "env=worlds:counter", "env.limit=1000", "steps=130", "eval.every=0")
    assert checkpoint_state(tmp_path / "run")["steps"] == 160
    assert result.exit_code == 0
    assert result.summary.steps == 160


def test_a_log_entry_averages_the_updates_since_the_last_one(tmp_path: Path) -> None:
    train(tmp_path / "each", "steps=160", "eval.every=0")
    train(tmp_path / "two", "steps=160", "eval.every=0", "log.every=2")
    each, two = log_entries(tmp_path / "each"), log_entries(tmp_path / "two")
    assert [row["steps"] for row in two] == [row["steps"] for row in each[1::2]]
    for i, row in enumerate(two):
        for name in ("loss/policy", "policy/entropy"):
            assert row[name] == pytest.approx((each[2 * i][name] + each[2 * i + 1][name]) / 2)
    assert sum(row.get("rollout/episodes", 0) for row in two) == sum(row.get("rollout/episodes", 0) for row in each[:4])


def test_a_run_whose_last_updates_are_not_logged_is_complete(tmp_path: Path) -> None:
    result = train(tmp_path / "run", "steps=120", "eval.every=0", "log.every=100")
    assert log_entries(tmp_path / "run") == []
    assert result.summary.steps >= 120


def test_wall_time_adds_up_over_all_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 80)
        train(tmp_path / "run", "steps=240")
    before = checkpoint_state(tmp_path / "run")["wall_s"]
    result = training.resume(tmp_path / "run", [])
    assert 0 < before < checkpoint_state(tmp_path / "run")["wall_s"] == result.summary.wall_s


def test_a_run_whose_environment_cannot_be_restored_resumes_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 80)
        train(tmp_path / "run", "env=worlds:counter", "env.exact=false", "steps=240")
    training.resume(tmp_path / "run", [])
    assert "cannot restore its state: new episodes start" in capsys.readouterr().err
    assert checkpoint_state(tmp_path / "run")["steps"] >= 240


@pytest.mark.slow
def test_a_run_without_gradient_steps_warns_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ddqn = (
        "algo=iql",
        "algo.rnn=none",
        "algo.obs_last_action=false",
        "algo.hidden_sizes=[8]",
        "algo.rollout_length=10",
    )
    ddqn += ("env=particle/simple_spread", "env.episode_limit=5", "num_envs=4", "steps=80", "eval.every=0")
    ddqn += ("log.tensorboard=false", "threads=1", "device=cpu")

    def trained(name: str, starts: int, batch: int, *settings: str) -> tuple[training.TrainingResult, str]:
        learned = (f"algo.learning_starts={starts}", f"algo.batch_size={batch}", f"out={tmp_path / name}")
        result = training.train(resolve([*ddqn, *learned, *settings]))
        return result, capsys.readouterr().err

    result, output = trained("few", 40, 10_000, "progress=off")
    assert output.startswith(
        "coterie: team agent: the learner took no gradient step because the replay buffer contains "
    )
    assert output == f"coterie: {result.summary.warnings[0]}\n"
    assert result.exit_code == 0
    assert (
        "the run ended after 100 steps, before algo.learning_starts=500" in trained("short", 500, 16, "progress=off")[1]
    )
    assert "took no gradient step" in trained("shown", 40, 10_000, "progress=lines")[1]
    assert trained("learned", 40, 16, "progress=off")[1] == ""
    assert trained("unlogged", 40, 16, "progress=off", "log.every=10")[1] == ""  # the updates are not logged
