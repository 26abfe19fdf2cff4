"""Failures of whole runs: one-line errors, and the last good checkpoint is kept."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from coterie.__main__ import main
from coterie.algos.ppo import PPO
from coterie.commands import resume_notes
from coterie.commands import train as training
from coterie.core.errors import NonFiniteError, UserError
from coterie.core.process import interruptible
from coterie.core.types import Rollout
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.folder import RunFolder
from tinyruns import GRU, Process, all_finite, assert_same, checkpoint_state, log_entries, tiny, tiny_run, train


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """An unfinished run with at least two checkpoints."""
    return tiny_run(tmp_path / "run", "steps=400", "checkpoint.every=40", stop=150)


def steps_of(out: Path) -> list[int]:
    return [int(path.name) for path in Checkpoints(out / "checkpoints").all()]


# ------------------------------------------------------------------------------------------------- resuming


@pytest.mark.slow
def test_a_corrupt_last_checkpoint_falls_back_to_the_previous_one_with_a_note(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "whole", "steps=400", "checkpoint.every=40")
    before, last = steps_of(stopped)[-2:]
    tensors = stopped / "checkpoints" / f"{last:012d}" / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-10])
    training.resume(stopped, [])  # reported without a display, too
    output = capsys.readouterr().err
    assert "corrupt, state.safetensors does not match its hash" in output
    assert f"Using the checkpoint of {before} steps." in output
    assert_same(checkpoint_state(tmp_path / "whole"), checkpoint_state(stopped))
    assert log_entries(tmp_path / "whole") == log_entries(stopped)


def test_a_run_without_an_intact_checkpoint_is_refused(stopped: Path) -> None:
    for folder in Checkpoints(stopped / "checkpoints").all():
        (folder / "state.json").unlink()
    with pytest.raises(UserError, match=r"checkpoints: no intact checkpoint \(checkpoint .*no readable state.json"):
        training.resume(stopped, [])


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("hidden_sizes: [8]", "hidden_sizes: [9]", r"teams/agent/policy/.*expected float32 \[.*\], found float32 \["),
        ("num_envs: 4", "num_envs: 5", r"collector/episodes/sums: expected float64 \[5, .*found float64 \[4"),
        ("normalize_obs: true", "normalize_obs: false", r"policy/moments"),
    ],
)
def test_a_checkpoint_with_other_shapes_is_refused_with_the_difference(
    stopped: Path, old: str, new: str, difference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_notes, "require_saved_settings", lambda *_: [])  # which refuses it earlier
    config = stopped / "config.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    before = log_entries(stopped)
    with pytest.raises(UserError, match=difference) as refusal:
        training.resume(stopped, [])
    assert "config.yaml" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert log_entries(stopped) == before


def test_a_checkpoint_of_an_environment_with_more_agents_is_refused_with_their_names(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_notes, "require_saved_settings", lambda *_: [])  # which refuses it earlier
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("agents: 3", "agents: 4"))
    before = log_entries(stopped)
    with pytest.raises(UserError, match=r"^environment 'particle/simple_spread': .* agent_3, but the run has agent_0,"):
        training.resume(stopped, [])
    assert log_entries(stopped) == before


def test_a_finished_run_suggests_how_to_train_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", "steps=80")
    before = checkpoint_state(tmp_path / "run"), log_entries(tmp_path / "run")
    assert training.resume(tmp_path / "run", []).exit_code == 0
    output = capsys.readouterr().err
    assert re.search(r"has finished its 80 steps\. To train longer: coterie resume \S*run steps=\d+\n$", output)
    assert_same(before[0], checkpoint_state(tmp_path / "run"))
    assert before[1] == log_entries(tmp_path / "run")


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_over(stopped: Path, tmp_path: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    manifest = stopped / "manifest.json"
    assert '"random"' in manifest.read_text()
    training.resume(stopped, [])
    train(tmp_path / "whole", "steps=400", "checkpoint.every=40")
    assert_same(checkpoint_state(tmp_path / "whole"), checkpoint_state(stopped))
    assert log_entries(tmp_path / "whole") == log_entries(stopped)


# ------------------------------------------------------------------------------------------- folders and disks


def test_a_run_in_use_and_an_existing_run_are_refused(stopped: Path) -> None:
    folder = RunFolder.open(stopped)
    folder.lock()
    with pytest.raises(UserError, match=r"in use by process \d+ on .*\. Wait for it to finish"):
        training.resume(stopped, [])
    folder.close()
    with pytest.raises(UserError, match=r"already contains a run\. Choose another folder, or continue the run with"):
        train(stopped)


@pytest.mark.slow
def test_a_full_disk_is_a_one_line_error_that_keeps_the_previous_checkpoint(stopped: Path, tmp_path: Path) -> None:
    before = checkpoint_state(stopped)
    size = (stopped / "metrics.jsonl").stat().st_size + 1500
    code, output = Process(tmp_path, "resume", stopped, max_bytes=size).end()
    assert code == 2
    assert output.startswith("coterie: cannot write ")
    assert output.count("\n") == 1
    assert "coterie resume" in output
    assert_same(before, checkpoint_state(stopped))
    training.resume(stopped, [])
    assert checkpoint_state(stopped)["steps"] >= 400


@pytest.mark.slow
def test_a_disk_filled_by_tensorboard_is_a_one_line_error(tmp_path: Path) -> None:
    settings = tiny("steps=100k", "log.tensorboard=true", "eval.every=100k", "algo.hidden_sizes=[2]", "env.agents=1")
    code, output = Process(tmp_path, "train", *settings, f"out={tmp_path / 'run'}", max_bytes=30_000).end()
    assert code == 2
    assert output.startswith("coterie: cannot write ")
    assert output.count("\n") == 1


@pytest.mark.parametrize("out", ["file/run", "/proc/run"])
def test_a_folder_that_cannot_be_created_is_a_one_line_error(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the run folder"):
        train(tmp_path / out)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("env.agents=-1",), "env.agents"),
        (("env.agnts=3",), "env.agents"),
        (("device=cuda:7",), "device=cuda:7: no such GPU"),
        (
            ("env=particle/simple_tag", "teams.all.roles=[adversary,agent]", "algo.share_params=all"),
            "algo.share_params: all agents of team 'all' cannot share parameters",
        ),
        (("algo.rnn=gru", "algo.sequence_length=7"), "algo.sequence_length: 7 does not divide"),
        (("env.wrappers.frame_stack=2",), "Wrappers are not available for environments that step a batch"),
        (("teams.agent.algo=frozen",), "has no run"),
        (("env=particle/simple_tag", "teams.agent.run=nowhere"), "nowhere: no such run"),
    ],
)
def test_a_failed_start_leaves_nothing_behind(settings: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        train(tmp_path / "deep" / "run", *settings)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------- non-finite numbers

COUNTER = ("env=worlds:counter", "algo=ippo", "eval.every=0", "checkpoint.every=40")


@pytest.mark.parametrize(
    ("flaw", "what"),
    [
        ("obs", r"observation of role 'walker' is NaN or infinite: .*number 2, agent walker_1, step 57 "),
        ("reward", r"reward is NaN or infinite: .*number 2, agent walker_1, step 57 "),
        ("group", r"group reward is NaN or infinite: .*number 2, group walkers, step 57 "),
        ("state", r"state 'global' is NaN or infinite: .*number 2, step 57 "),
    ],
)
def test_a_non_finite_number_stops_the_run_with_its_place(flaw: str, what: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(NonFiniteError, match=what) as stop:
        train(out, *COUNTER, "steps=1000", f"env.flaw={flaw}", "env.flaw_at=57")
    assert str(out / "checkpoints") in str(stop.value)
    assert steps_of(out)
    assert all_finite(checkpoint_state(out))


def test_a_non_finite_number_has_exit_code_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tiny(*COUNTER, "steps=1000", "env.flaw=obs", "env.flaw_at=57", f"out={tmp_path / 'run'}")
    assert main(["train", *words]) == 3
    lines = [line for line in capsys.readouterr().err.splitlines() if ": no effect with" not in line]
    assert len(lines) == 1
    (output,) = lines
    assert output.startswith("coterie: after ")


@pytest.mark.slow
def test_a_non_finite_network_stops_the_run_and_its_checkpoint_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, update = tmp_path / "run", PPO.update

    def corrupted(self: PPO, rollout: Rollout, progress: float) -> dict[str, float]:
        if progress > 0.4:
            with torch.no_grad():
                next(self.policy.actor.parameters()).fill_(float("inf"))
        return update(self, rollout, progress)

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "update", corrupted)
        with pytest.raises(NonFiniteError, match=r"after [\d,]+ steps: team agent: loss/policy.* in minibatch 0"):
            train(out, "steps=400", "checkpoint.every=40")
    assert all_finite(checkpoint_state(out))
    training.resume(out, [])
    train(tmp_path / "whole", "steps=400", "checkpoint.every=40")
    assert_same(checkpoint_state(tmp_path / "whole"), checkpoint_state(out))


@pytest.mark.slow
def test_observations_and_rewards_of_dead_agents_have_no_effect(tmp_path: Path) -> None:
    settings = (
        *("env=worlds:counter", "env.agents_can_die=true", "env.limit=7", "algo=mappo", *GRU),
        *("algo.normalize_obs=true", "steps=160", "eval.every=80", "check=off"),
    )
    outs = [tmp_path / name for name in ("nan", "inf", "million")]
    for out, fill in zip(outs, ("nan", "inf", "1e6"), strict=True):
        train(out, *settings, f"env.fill={fill}")
    for out in outs[:2]:
        state, other = checkpoint_state(out), checkpoint_state(outs[2])
        assert all_finite(state["algorithms"])
        assert_same(state["algorithms"], other["algorithms"])
        assert log_entries(out) == log_entries(outs[2])


@pytest.mark.slow
def test_rewards_of_living_agents_have_an_effect(tmp_path: Path) -> None:
    settings = ("env=worlds:counter", "env.limit=7", "env.agents_can_die=true", "steps=160", "algo=ippo")
    train(tmp_path / "one", *settings)
    train(tmp_path / "other", *settings, "env.pay=2.0")
    assert log_entries(tmp_path / "one") != log_entries(tmp_path / "other")


# ----------------------------------------------------------------------------------------------------- signals


@pytest.mark.slow
def test_a_second_interruption_stops_immediately(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = Process(tmp_path, "train", *tiny(*COUNTER, "steps=1000", "env.hang_at=57"), f"out={out}")
    process.wait_for((tmp_path / "hangs").exists)
    process.signal(signal.SIGINT)
    time.sleep(0.3)
    process.signal(signal.SIGINT)
    code, output = process.end()
    assert code == 130
    assert "Traceback" not in output
    assert all_finite(checkpoint_state(out))


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stops: list[int] = []
    with interruptible(lambda: stops.append(1)) as received:
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)  # as `timeout` sends it: to the process, and to its group
        assert received == [signal.SIGTERM]
        assert stops == [1]
        time.sleep(0.25)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
