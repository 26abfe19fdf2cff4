"""Sweeps: one process per combination."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from coterie.core.errors import UserError
from coterie.sweeps import sweep
from coterie.sweeps.sweep import plan, run_all, shell_commands

STAND_IN = """
import json, os, pathlib, signal, sys, time
words = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
log = pathlib.Path(os.environ["STAND_IN_LOG"])
cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
def log_event(what):
    with log.open("a") as file:
        file.write(json.dumps({"seed": words["seed"], "what": what, "argv": sys.argv[1:], "cores": cores}) + "\\n")
log_event("begin")
print("working", file=sys.stderr, flush=True)
if words["seed"] == "13":
    print("coterie: seed 13 is unlucky", file=sys.stderr)
    sys.exit(2)
def stop(number, frame):
    log_event("checkpoint")
    print(json.dumps({"run": "runs/x", "teams": {}}))
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
time.sleep(float(os.environ.get("STAND_IN_SLEEP", "0.05")))
together, until = int(os.environ.get("STAND_IN_TOGETHER", "1")), time.monotonic() + 30
while log.read_text().count('"begin"') < together and time.monotonic() < until:
    time.sleep(0.01)
log_event("end")
returns = {"now": float(words["seed"]), "best": 1.5, "random": -3.0}
print(json.dumps({"run": "runs/" + words["seed"], "teams": {"agent": returns}}))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Path]:
    """A command that replaces `coterie`, and its log file."""
    script, log = tmp_path / "stand_in.py", tmp_path / "log.jsonl"
    script.write_text(STAND_IN)
    log.touch()
    monkeypatch.setenv("STAND_IN_LOG", str(log))
    return [sys.executable, str(script)], log


def _events(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_combination_is_named_by_the_values_that_vary():
    jobs = plan(["seed=0,1", "algo=ippo,mappo", "steps=1e6", "algo.lr=3e-4,1e-3", "env=particle/simple_tag"])
    assert len(jobs) == 8
    assert len({job.name for job in jobs}) == 8
    assert jobs[0].name == "seed0-ippo-lr3e-4"
    assert jobs[0].overrides == ("seed=0", "algo=ippo", "steps=1e6", "algo.lr=3e-4", "env=particle/simple_tag")


def test_names_are_unique_for_similar_values():
    jobs = plan(["algo.hidden_sizes=[8,8],[8]", "algo=ippo,ippo/yardstick"])
    assert len({job.name for job in jobs}) == 4


def test_out_is_the_parent_folder_of_a_sweep():
    jobs = plan(["seed=0,1", "out='my runs'"])
    assert [job.overrides[-1] for job in jobs] == ["out='my runs/seed0'", "out='my runs/seed1'"]
    assert plan(["out=x"])[0].overrides == ("out=x",)


def test_an_invalid_combination_is_refused_before_anything_runs():
    with pytest.raises(UserError, match="no algorithm 'mapo'"):
        plan(["algo=mappo,mapo"])
    with pytest.raises(UserError, match=r"algo\.lr: not a setting of algorithm 'random'"):
        plan(["algo=mappo,random", "algo.lr=1e-3"])


def test_printed_commands_are_quoted_for_a_shell(tmp_path: Path):
    lines = shell_commands(plan(["seed=0,1", "out='a b'"]), None)
    assert lines[0] == """coterie train seed=0 'out='"'"'a b/seed0'"'"''"""
    assert "--config" not in lines[0]
    (line,) = shell_commands(plan(["seed=3"]), None)
    assert line.startswith("coterie train seed=3 out=runs/particle/simple_spread/mappo/run-")


def test_all_jobs_run_and_the_table_contains_their_results(
    stand_in: tuple[list[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STAND_IN_TOGETHER", "2")  # no job ends before a second one has started
    command, log = stand_in
    assert run_all(plan(["seed=0,1,2"]), num_parallel=2, command=command) == 0
    captured = capsys.readouterr()
    assert "3 of 3 runs succeeded" in captured.out
    assert "runs/2" in captured.out
    lines = captured.err.splitlines()
    assert "working" not in captured.err  # what runs print is in their logs
    assert len(lines) == 6  # one line per start and end
    assert sum(line.startswith("[seed1] started in ") for line in lines) == 1
    (end,) = (line for line in lines if line.startswith("[seed1] finished after "))
    assert re.fullmatch(r".* after \d+ s · team return 1\.00 · random policy -3\.00", end)
    running = most = 0
    for event in _events(log):
        running += {"begin": 1, "end": -1}[event["what"]]
        most = max(most, running)
    assert most == 2


@pytest.mark.slow
def test_threads_are_divided_among_concurrent_jobs(stand_in: tuple[list[str], Path], monkeypatch: pytest.MonkeyPatch):
    command, log = stand_in
    monkeypatch.setattr(sweep, "available_cores", lambda: 6)
    run_all(plan(["seed=0,1"]), num_parallel=2, command=command)
    run_all(plan(["seed=2"]), num_parallel=2, command=command)
    run_all(plan(["seed=3,4", "threads=5"]), num_parallel=2, command=command)
    words = {event["seed"]: event["argv"] for event in _events(log)}
    assert "threads=3" in words["0"]
    assert not any(word.startswith("threads") for word in words["2"])
    assert [word for word in words["3"] if word.startswith("threads")] == ["threads=5"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_jobs_run_on_their_cores(stand_in: tuple[list[str], Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN_TOGETHER", "2")
    command, log = stand_in
    mine = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(sweep, "available_cores", lambda: len(mine))
    run_all(plan(["seed=0,1,2"]), num_parallel=2, command=command)
    found = {event["seed"]: event["cores"] for event in _events(log)}
    assert sorted(found["0"] + found["1"]) == (mine[: len(mine) // 2 * 2] if len(mine) > 1 else mine * 2)
    assert found["2"] in (found["0"], found["1"])


def test_a_failed_job_is_reported_and_does_not_stop_the_others(
    stand_in: tuple[list[str], Path], capsys: pytest.CaptureFixture[str]
):
    command, _ = stand_in
    assert run_all(plan(["seed=13,1"]), command=command, json=True) == 2
    outcomes = {outcome["job"]: outcome for outcome in map(json.loads, capsys.readouterr().out.splitlines())}
    assert outcomes["seed13"]["exit_code"] == 2
    assert outcomes["seed13"]["error"] == "seed 13 is unlucky"
    assert outcomes["seed1"]["exit_code"] == 0
    assert outcomes["seed1"]["teams"]["agent"]["now"] == 1.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_jobs_after_their_checkpoints(
    stand_in: tuple[list[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
):
    command, log = stand_in
    monkeypatch.setenv("STAND_IN_SLEEP", "60")

    def interrupt() -> None:
        while len(_events(log)) < 2:
            time.sleep(0.02)
        time.sleep(0.1)  # after the line that installs the stand-in's handler
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    assert run_all(plan(["seed=0,1,2"]), num_parallel=2, command=command) == 130
    assert sorted(event["what"] for event in _events(log)) == ["begin", "begin", "checkpoint", "checkpoint"]
    out = capsys.readouterr().out
    assert out.count("130") >= 2
    assert "not started" in out


def test_a_job_ended_by_a_signal_has_the_exit_code_of_a_shell(tmp_path: Path):
    script = tmp_path / "dies.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert run_all(plan(["seed=0"]), command=[sys.executable, str(script)]) == 128 + signal.SIGKILL
