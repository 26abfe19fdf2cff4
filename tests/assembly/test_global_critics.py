"""Runs with global critics: through the command line, resumed, against all kinds of teams, and evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.commands.evaluate import evaluate_run
from coterie.core.errors import UserError
from tinyruns import GRU, assert_resumes_exactly, checkpoint_state, log_entries, tiny, train

pytestmark = pytest.mark.slow

TAG, GLOBAL = "env=particle/simple_tag", "algo.critic=global"
BUFFER = ("algo.learning_starts=40", "algo.batch_size=4", "algo.buffer_size=200")
OF_MADDPG = ("algo=maddpg", GLOBAL, *BUFFER)
CASES = {
    "mappo, recurrent, normalized observations": (TAG, "algo=mappo", GLOBAL, *GRU, "algo.normalize_obs=true"),
    "alternating self-play of maddpg": (
        *(TAG, *OF_MADDPG, "algo.normalize_obs=true", "selfplay.snapshot_interval=100"),
        *("selfplay.rating_episodes=4", "alternate.every=150"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_with_a_global_critic_is_bit_identical(case: str, tmp_path: Path, monkeypatch) -> None:
    assert_resumes_exactly(tmp_path, monkeypatch, 130, *CASES[case], "steps=240")


def test_the_command_line_trains_resumes_and_evaluates_a_global_critic(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["train", *tiny("env=particle/simple_adversary", *OF_MADDPG, f"out={out}")]) == 0
    assert main(["resume", str(out), "steps=200"]) == 0
    assert checkpoint_state(out)["steps"] >= 200
    rows = [row for row in log_entries(out) if "loss/adversary/critic" in row]
    assert rows
    assert all(abs(row["loss/good/critic"]) < float("inf") for row in rows if "loss/good/critic" in row)
    assert set(evaluate_run(out, episodes=4))  # policies act without critics


@pytest.mark.parametrize(("algo", "instead"), [("ippo", "mappo"), ("td3", "matd3"), ("sac", "masac")])
def test_a_method_with_independent_critics_refuses_a_global_one_in_one_line(
    algo: str, instead: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"global does not fit {algo}, .*algo={instead}, or .*critic=own") as refusal:
        train(tmp_path / "run", TAG, f"algo={algo}", GLOBAL, *(() if algo == "ippo" else BUFFER))
    assert "\n" not in str(refusal.value)
