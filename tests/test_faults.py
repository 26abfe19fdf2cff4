"""What goes wrong in a whole run is one clear line, and the last good checkpoint stays."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from coterie import run
from coterie.__main__ import main
from coterie.algos.ppo import PPO
from coterie.checkpoint import Checkpoints
from coterie.errors import NonFiniteError, UserError
from coterie.process import interruptible
from coterie.types import Window
from tinyruns import Process, all_finite, assert_same, rows_of, state_of, stop_at, tiny, train

pytestmark = pytest.mark.usefixtures("without_curves")


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two checkpoints that has not come to its end."""
    with monkeypatch.context() as patch:
        stop_at(patch, 150)
        train(tmp_path / "run", "steps=400", "checkpoint.every=40")
    return tmp_path / "run"


def steps_of(out: Path) -> list[int]:
    return [int(path.name) for path in Checkpoints(out / "checkpoints").all()]


# ------------------------------------------------------------------------------------------------- resuming


def test_a_corrupt_last_checkpoint_falls_back_to_the_one_before_and_says_so(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "whole", "steps=400", "checkpoint.every=40")
    before, last = steps_of(stopped)[-2:]
    tensors = stopped / "checkpoints" / f"{last:012d}" / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-10])
    run.resume(stopped, ["progress=lines"])
    said = capsys.readouterr().err
    assert "is corrupt: state.safetensors is not what was written" in said
    assert f"the one of {before} steps is used" in said
    assert_same(state_of(tmp_path / "whole"), state_of(stopped))
    assert rows_of(tmp_path / "whole") == rows_of(stopped)


def test_the_fallback_is_told_where_the_display_is_off(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stopped / "checkpoints" / f"{steps_of(stopped)[-1]:012d}" / "state.json").write_text("{}")
    run.resume(stopped, [])
    assert "state.json is not what was written" in capsys.readouterr().err


def test_a_run_without_a_whole_checkpoint_is_refused(stopped: Path) -> None:
    for folder in Checkpoints(stopped / "checkpoints").all():
        (folder / "state.json").unlink()
    with pytest.raises(UserError, match=r"no checkpoint in .* is whole"):
        run.resume(stopped, [])


def test_a_checkpoint_of_a_newer_format_is_refused(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("coterie.checkpoint.FORMAT", 99)
        run.resume(stopped, ["steps=440"])
    with pytest.raises(UserError, match="has format 99, this version of coterie reads up to 1"):
        run.resume(stopped, ["steps=800"])


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("hidden: [8]", "hidden: [9]", r"teams/agent/policy/.*expected float32 \[.*\], found float32 \["),
        ("copies: 4", "copies: 5", r"collector/episodes/sums: expected float64 \[5, .*found float64 \[4"),
        ("memory: none", "memory: gru", r"expected float32 .*, found"),
        ("horizon: 10", "horizon: 20", r"expected \{'agent': 20\}, found \{'agent': 10\}"),
        ("agents: 3", "agents: 4", r"expected float32"),
        ("normalise_obs: false", "normalise_obs: true", r"policy/moments"),
    ],
)
def test_a_checkpoint_of_other_shapes_is_refused_with_the_difference(
    stopped: Path, old: str, new: str, difference: str
) -> None:
    config = stopped / "config.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    before = rows_of(stopped)
    with pytest.raises(UserError, match=difference) as refusal:
        run.resume(stopped, [])
    assert "config.yaml" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert rows_of(stopped) == before


def test_a_finished_run_says_how_to_train_on(tmp_path: Path) -> None:
    train(tmp_path / "run", "steps=80")
    with pytest.raises(UserError, match=r"has done its 80 steps; to train on: coterie resume .*run steps=\d+"):
        run.resume(tmp_path / "run", [])


def test_a_run_killed_before_its_first_checkpoint_begins_again(stopped: Path, tmp_path: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    manifest = stopped / "manifest.json"
    assert '"random"' in manifest.read_text()
    run.resume(stopped, [])
    train(tmp_path / "whole", "steps=400", "checkpoint.every=40")
    assert_same(state_of(tmp_path / "whole"), state_of(stopped))
    assert rows_of(tmp_path / "whole") == rows_of(stopped)


def test_a_run_killed_while_it_played_at_random_knows_the_random_level_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = Process(tmp_path, "train", *tiny(), f"out={out}", die_at=8)  # when config.yaml and a manifest are there
    assert process.end()[0] == -signal.SIGKILL
    assert '"random"' not in (out / "manifest.json").read_text()
    assert not (out / "metrics.jsonl").exists()
    result = run.resume(out, [])
    assert result.report()["teams"]["team"]["random"] is not None


# ------------------------------------------------------------------------------------------- folders and disks


def test_a_run_in_use_and_a_folder_that_exists_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = Process(tmp_path, "train", *tiny("steps=1000000"), f"out={out}")
    process.wait_for((out / "checkpoints" / "last").exists)
    with pytest.raises(UserError, match=r"is in use by process \d+ on .*; wait for it to end"):
        run.resume(out, [])
    process.signal(signal.SIGKILL)
    assert process.end()[0] == -signal.SIGKILL
    with pytest.raises(UserError, match=r"holds a run already; choose another out=, or go on with `coterie resume"):
        train(out)


def test_a_full_disk_is_one_line_and_the_checkpoint_before_stays_good(stopped: Path, tmp_path: Path) -> None:
    before = state_of(stopped)
    size = (stopped / "metrics.jsonl").stat().st_size + 1500
    code, said = Process(tmp_path, "resume", stopped, most_bytes=size).end()
    assert code == 2
    assert said.startswith("coterie: cannot write ")
    assert said.count("\n") == 1
    assert "coterie resume" in said
    assert_same(before, state_of(stopped))
    run.resume(stopped, [])
    assert state_of(stopped)["steps"] >= 400


def test_a_disk_that_fills_up_under_tensorboard_is_one_line(tmp_path: Path) -> None:
    settings = tiny("steps=100000", "log.tensorboard=true", "eval.every=0", "algo.hidden=[2]", "env.agents=1")
    code, said = Process(tmp_path, "train", *settings, f"out={tmp_path / 'run'}", most_bytes=30_000).end()
    assert code == 2
    assert said.startswith("coterie: cannot write ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("out", ["file/run", "/proc/run"])
def test_a_folder_that_cannot_be_made_is_one_line(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the run folder"):
        train(tmp_path / out)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("env.agents=-1",), "env.agents"),
        (("env.agnts=3",), "env.agents"),
        (("device=cuda:7",), "device=cuda:7 is not there"),
        (
            ("env=particle/simple_tag", "teams.all.roles=[adversary,agent]", "algo.share=all"),
            "algo.share=all needs roles with equal spaces",
        ),
        (("algo.memory=gru", "algo.sequence=7"), "algo.sequence=7 does not divide"),
        (("env.wrappers.frame_stack=2",), "one that steps a batch has none"),
        (("teams.agent.algo=frozen",), "names no run"),
        (("env=particle/simple_tag", "teams.agent.run=nowhere"), "there is no run .*nowhere"),
    ],
)
def test_a_start_that_fails_leaves_nothing_behind(settings: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        train(tmp_path / "deep" / "run", *settings)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------- numbers gone bad

COUNTER = (*("env=worlds:counter", "algo=ippo", "eval.every=0", "checkpoint.every=40"),)


@pytest.mark.parametrize(
    ("flaw", "what"),
    [
        ("obs", r"observation of role 'walker' is NaN or infinite: .*copy 2, agent walker_1, step 57 "),
        ("reward", r"reward is NaN or infinite: .*copy 2, agent walker_1, step 57 "),
        ("group", r"group reward is NaN or infinite: .*copy 2, group walkers, step 57 "),
        ("state", r"state 'global' is NaN or infinite: .*copy 2, step 57 "),
    ],
)
def test_a_number_gone_bad_stops_the_run_and_names_its_place(flaw: str, what: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(NonFiniteError, match=what) as stop:
        train(out, *COUNTER, "steps=1000", f"env.flaw={flaw}", "env.flaw_at=57")
    assert str(out / "checkpoints") in str(stop.value)
    assert steps_of(out)
    assert all_finite(state_of(out))


def test_a_number_gone_bad_is_exit_code_three(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = tiny(*COUNTER, "steps=1000", "env.flaw=obs", "env.flaw_at=57", f"out={tmp_path / 'run'}")
    assert main(["train", *words]) == 3
    said = capsys.readouterr().err
    assert said.startswith("coterie: after ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_network_gone_bad_stops_the_run_and_its_checkpoint_goes_on(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, update = tmp_path / "run", PPO.update

    def spoilt(self: PPO, window: Window, progress: float) -> dict[str, float]:
        if progress > 0.4:
            with torch.no_grad():
                next(self.policy.module.parameters()).fill_(value)
        return update(self, window, progress)

    with monkeypatch.context() as patch:
        patch.setattr(PPO, "update", spoilt)
        with pytest.raises(NonFiniteError, match=r"after [\d,]+ steps: team agent: loss/policy.* in minibatch 0"):
            train(out, "steps=400", "checkpoint.every=40")
    assert all_finite(state_of(out))
    run.resume(out, [])
    train(tmp_path / "whole", "steps=400", "checkpoint.every=40")
    assert_same(state_of(tmp_path / "whole"), state_of(out))


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("algo", ["ippo", "mappo"])
def test_what_a_dead_agent_sees_and_earns_does_nothing(memory: str, algo: str, tmp_path: Path) -> None:
    settings = (
        *("env=worlds:counter", "env.mortal=true", "env.limit=7", f"algo={algo}", f"algo.memory={memory}"),
        *("algo.memory_size=4", "algo.normalise_obs=true", "steps=160", "eval.every=80"),
    )
    outs = [tmp_path / name for name in ("nan", "inf", "million")]
    for out, fill in zip(outs, ("nan", "inf", "1e6"), strict=True):
        train(out, *settings, f"env.fill={fill}")
    for out in outs[:2]:
        state, other = state_of(out), state_of(outs[2])
        assert all_finite(state["algorithms"])
        assert_same(state["algorithms"], other["algorithms"])
        assert rows_of(out) == rows_of(outs[2])


def test_the_dead_places_of_that_world_are_seen_where_they_live(tmp_path: Path) -> None:
    settings = ("env=worlds:counter", "env.limit=7", "env.mortal=true", "steps=160", "algo=ippo")
    train(tmp_path / "one", *settings)
    train(tmp_path / "other", *settings, "env.pay=2.0")
    assert rows_of(tmp_path / "one") != rows_of(tmp_path / "other")


# ----------------------------------------------------------------------------------------------------- signals


def test_a_second_interruption_stops_at_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = Process(tmp_path, "train", *tiny(*COUNTER, "steps=1000", "env.hang_at=57"), f"out={out}")
    process.wait_for((tmp_path / "hangs").exists)
    process.signal(signal.SIGINT)
    time.sleep(0.3)
    process.signal(signal.SIGINT)
    code, said = process.end()
    assert code == 130
    assert "Traceback" not in said
    assert all_finite(state_of(out))


def test_handlers_are_put_back() -> None:
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
