"""The campaign of benchmarks/ that kills and stops ranks: one kill, its page, and the rule for messages."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from forked_ranks import ForkedCommand


@pytest.fixture
def rank_kills(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("rank_kills")


@pytest.fixture
def campaign(rank_kills: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """The file of a campaign of one kill, and its arguments. Its runs stay in `folder`, which tests share.

    With seed 2, the first signal is a SIGKILL after the first checkpoint.
    """
    out = folder / "rank_kills.json"
    words = ["--kills", "1", "--only", "mappo", "--seed", "2", "--steps", "3000", "--timeout", "30", "--out", str(out)]
    kept = SimpleNamespace(TemporaryDirectory=lambda prefix: contextlib.nullcontext(str(folder)))
    with monkeypatch.context() as patch:
        patch.setattr(rank_kills, "tempfile", kept)
        patch.setattr(rank_kills, "_start", lambda words: ForkedCommand(folder, *words))
        if not out.exists():
            assert rank_kills.main(words) == 0
    return out, words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("campaign")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_which_resumes_with_the_same_bits(
    rank_kills: ModuleType, campaign: tuple[Path, list[str]]
) -> None:
    out, words = campaign
    content = json.loads(out.read_text())
    (result,) = content["found"].values()
    (kill,) = result["kills"]
    assert f"rank {kill['rank']} was killed by signal 9" in kill["message"]
    assert (result["runs"], result["failed"], result["differ"]) == (1, [], [])
    assert "| mappo | 1 | 1 | 0 | 0 |" in out.with_suffix(".md").read_text()
    assert rank_kills.main(words) == 0  # there are enough
    assert json.loads(out.read_text()) == content
    with pytest.raises(SystemExit):
        rank_kills.main([*words, "--seed", "1"])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_ranks_that_torchrun_starts_again_end_the_run_with_the_same_bits(
    rank_kills: ModuleType, campaign: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Those of the campaign's undisturbed run, whose ranks a command has started."""
    run = tmp_path / "run"
    (result,) = json.loads(campaign[0].read_text())["found"].values()
    words = [word for word in result["settings"] if not word.startswith("ranks=")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    with subprocess.Popen([*command, "-m", "coterie", "train", *words, f"out={run}"]) as launcher:
        until = time.monotonic() + 120
        while not rank_kills.last_checkpoint(run) and time.monotonic() < until:
            time.sleep(0.01)
        of_rank_1 = [
            pid
            for pid in rank_kills.ranks_of(launcher.pid)
            if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ]
        os.kill(*of_rank_1, signal.SIGKILL)
    assert launcher.returncode == 0
    assert rank_kills.differences(campaign[0].parent / "0" / "reference", run) == []


def test_a_message_has_one_line_that_names_the_rank(rank_kills: ModuleType) -> None:
    def is_named(message: str) -> bool:
        return rank_kills.Kill(1, "SIGKILL", rank_kills.TRAINING, 1.0, message).is_named

    assert is_named("coterie: rank 1 was killed by signal 9 (SIGKILL).")
    assert not is_named("coterie: rank 10 was killed by signal 9 (SIGKILL).")
    assert not is_named("coterie: rank 1 was killed.\nTraceback")
    assert not is_named("")


def test_a_run_with_a_wrong_message_or_another_bit_is_counted(rank_kills: ModuleType) -> None:
    result = {"failed": ["run0: exit code 3: x"], "differ": ["run1: a", "run1: b", "run2: a"]}
    assert rank_kills._bad(result) == (1, 2)


def test_ranks_are_the_processes_that_a_command_started(rank_kills: ModuleType) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 20 & sleep 20 & wait"]) as parent:
        while len(found := rank_kills.ranks_of(parent.pid)) < 2:
            pass
        assert len(found) == 2
        subprocess.run(["kill", *map(str, found)], check=True)
    assert rank_kills.ranks_of(parent.pid) == []
