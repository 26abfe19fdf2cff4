"""The state of a run of another process, read from its folder."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.runs.activity import activity
from coterie.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    rows = [
        {"steps": 100, "rollout/return_mean": 1.0, "eval/return_mean": 5.0, "lesson/index": 1},
        {"steps": 200, "rollout/return_mean": 2.0, "lesson/index": 2},
        {"steps": 300, "rollout/return_mean": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"steps": 400, "roll')
    return RunFolder(tmp_path)


def hold(folder: RunFolder, pid: int, host: str | None = None) -> None:
    (folder.path / "lock").write_text(json.dumps({"pid": pid, "host": host or platform.node()}))


def test_the_newest_values_are_read_from_complete_entries(folder: RunFolder):
    found = activity(folder, 1000)
    assert (found.state, found.steps, found.lesson) == ("stopped", 300, 1)
    assert (found.training, found.evaluation) == ({"": 2.0}, {"": 5.0})


def test_only_the_end_of_a_long_log_is_read(folder: RunFolder):
    with open(folder.metrics_path, "w") as file:
        for steps in range(20_000):
            file.write(json.dumps({"steps": steps, "rollout/a/return_mean": steps / 2}) + "\n")
    found = activity(folder, 10**6)
    assert (found.steps, found.training) == (19_999, {"a": 9999.5})


def test_a_run_is_training_while_its_process_exists(folder: RunFolder):
    hold(folder, os.getpid())
    assert activity(folder, 1000).state == "training"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    hold(folder, process.pid)
    assert activity(folder, 1000).state == "training"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked for the exit code
    assert activity(folder, 1000).state == "stopped"
    process.communicate()
    assert activity(folder, 1000).state == "stopped"


def test_a_run_is_complete_when_the_checkpoint_after_its_last_evaluation_exists(folder: RunFolder):
    folder.checkpoints_path.mkdir()
    (folder.checkpoints_path / "last").write_text("200")
    hold(folder, os.getpid())
    assert not activity(folder, 300).is_complete  # evaluates
    (folder.path / "lock").unlink()
    assert activity(folder, 300).state == "stopped"  # was killed then
    (folder.checkpoints_path / "last").write_text("300")
    assert activity(folder, 300).state == "finished"
    hold(folder, os.getpid())
    assert activity(folder, 300).is_complete


def test_a_process_that_started_after_the_lock_is_another_one(folder: RunFolder):
    hold(folder, os.getpid())
    os.utime(folder.path / "lock", (1e9, 1e9))
    assert activity(folder, 1000).state == "stopped"


def test_a_run_of_another_machine_counts_as_stopped_without_news(folder: RunFolder):
    hold(folder, os.getpid(), "another")
    assert activity(folder, 1000).state == "training"
    for name in ("lock", "metrics.jsonl"):
        os.utime(folder.path / name, (1e9, 1e9))
    assert activity(folder, 1000).state == "stopped"


def test_a_run_with_all_steps_has_finished(folder: RunFolder):
    assert activity(folder, 300).state == "finished"
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / "last").write_text("000000000500\n")  # its last update was not logged
    assert (activity(folder, 500).state, activity(folder, 500).steps) == ("finished", 500)
    hold(folder, os.getpid())
    assert activity(folder, 300).state == "training"  # it draws its curves


def test_values_that_are_no_numbers_are_ignored(folder: RunFolder):
    with open(folder.metrics_path, "w") as file:
        file.write('{"steps": 1, "eval/return_mean": {"a": 1}, "rollout/return_mean": "x", "lesson/index": null}\n')
    found = activity(folder, 1000)
    assert (found.training, found.evaluation, found.lesson) == ({}, {}, None)


def test_a_process_number_that_does_not_exist_writes_no_run(folder: RunFolder):
    hold(folder, 2**62)
    assert activity(folder, 1000).state == "stopped"
