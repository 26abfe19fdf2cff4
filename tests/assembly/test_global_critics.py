"""Runs with global critics: through the command line, resumed, against all kinds of teams, and evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.assembly.resolve import resolve
from coterie.commands import train as training
from coterie.commands.evaluate import evaluate_run
from coterie.core.errors import UserError
from tinyruns import assert_same, checkpoint_state, log_entries, stop_at

pytestmark = pytest.mark.slow

SETTINGS = (
    *("num_envs=4", "threads=1", "device=cpu", "steps=240", "eval.every=120", "eval.episodes=4", "eval.num_envs=4"),
    *("log.tensorboard=false", "progress=off", "algo.rollout_length=10", "algo.hidden_sizes=[8]"),
)
REPLAY = ("algo.learning_starts=40", "algo.batch_size=4", "algo.buffer_size=200", "algo.gradient_steps=2")
GRU = ("algo.rnn=gru", "algo.rnn_size=4")
FEW = ("algo.epochs=2", "algo.num_minibatches=2")
TAG, GLOBAL = "env=particle/simple_tag", "algo.critic=global"
OF_MADDPG = ("algo=maddpg", "algo.critic_hidden_sizes=[8]", GLOBAL, *REPLAY)
MADDPG = (TAG, *OF_MADDPG)
CASES = {
    "maddpg, recurrent": (*MADDPG, *GRU, "algo.normalize_obs=true"),
    "mappo": (TAG, "algo=mappo", GLOBAL, *GRU, *FEW, "algo.normalize_obs=true"),
    "mappo/original": (TAG, "algo=mappo/original", GLOBAL, "algo.batch_size=2", "algo.sequence_length=5", *FEW),
    "coma": (TAG, "algo=coma", GLOBAL, "algo.obs_last_action=true", "algo.critic_last_action=true"),
    "alternating self-play of maddpg": (*MADDPG, "selfplay.snapshot_interval=100",
                                        "selfplay.rating_episodes=4", "alternate.every=150"),
}  # fmt: skip


def train(out: Path, *settings: str):
    return training.train(resolve([*SETTINGS, *settings, f"out={out}"]))


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_with_a_global_critic_is_bit_identical(case: str, tmp_path: Path, monkeypatch) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, *CASES[case])
    with monkeypatch.context() as patch:
        stop_at(patch, 130)
        train(parts, *CASES[case])
    assert checkpoint_state(parts)["steps"] < 240
    training.resume(parts, [])
    assert_same(checkpoint_state(whole), checkpoint_state(parts))
    assert log_entries(whole) == log_entries(parts)


def test_the_command_line_trains_resumes_and_evaluates_a_global_critic(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["train", *SETTINGS, "env=particle/simple_adversary", *OF_MADDPG, f"out={out}"]) == 0
    assert main(["resume", str(out), "steps=400"]) == 0
    assert checkpoint_state(out)["steps"] >= 400
    rows = [row for row in log_entries(out) if "loss/adversary/critic" in row]
    assert rows
    assert all(abs(row["loss/good/critic"]) < float("inf") for row in rows if "loss/good/critic" in row)
    assert set(evaluate_run(out, episodes=4))  # policies act without critics


@pytest.mark.parametrize(("algo", "instead"), [("ippo", "mappo"), ("td3", "matd3"), ("sac", "masac")])
def test_a_method_with_independent_critics_refuses_a_global_one_in_one_line(
    algo: str, instead: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"global does not fit {algo}, .*algo={instead}, or .*critic=own") as refusal:
        train(tmp_path / "run", TAG, f"algo={algo}", GLOBAL)
    assert "\n" not in str(refusal.value)
