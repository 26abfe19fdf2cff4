"""The campaign of benchmarks/ that kills and stops ranks: one kill, its page, and the rule for messages."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from places import ROOT


@pytest.fixture
def rank_kills(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("rank_kills")


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_which_resumes_with_the_same_bits(
    rank_kills: ModuleType, tmp_path: Path
) -> None:
    """With seed 2, the first signal is a SIGKILL after the first checkpoint."""
    out = tmp_path / "rank_kills.json"
    words = ["--only", "mappo", "--seed", "2", "--steps", "3000", "--timeout", "30", "--out", str(out)]
    assert rank_kills.main(["--kills", "1", *words]) == 0
    content = json.loads(out.read_text())
    (result,) = content["found"].values()
    (kill,) = result["kills"]
    assert f"rank {kill['rank']} was killed by signal 9" in kill["message"]
    assert (result["runs"], result["failed"], result["differ"]) == (1, [], [])
    assert "| mappo | 1 | 1 | 0 | 0 |" in out.with_suffix(".md").read_text()
    assert rank_kills.main(["--kills", "1", *words]) == 0  # there are enough
    assert json.loads(out.read_text()) == content
    with pytest.raises(SystemExit):
        rank_kills.main(["--kills", "1", *words, "--seed", "1"])


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
