"""Environments that block, end the process or raise anything: one line with the reason, and results are kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.checks.environment.check_env import check_env
from coterie.config.schema import WorkersConfig
from coterie.core import waiting
from coterie.core.errors import LimitExceededError, ReportedError, UserError
from coterie.envs.contract import closing
from coterie.envs.contract.traces import random_actions
from coterie.envs.contract.vector import close_env, render_env, reset_env, step_env
from coterie.envs.external.workers import processes
from coterie.envs.make import make
from endings import Ending, shorten_limits
from places import HELPERS
from tinyruns import Process, tiny

CALLS = ("factory", "init", "reset", "step", "render", "close")
RAISED = {
    "exits": "SystemExit: 0",
    "stops": "Stop: enough",
    "is cancelled": "CancelledError",
    "ends as a generator": "GeneratorExit",
    "is unreadable": "Unreadable: its message cannot be shown, because reading it raises ValueError",
    "has an unreadable key": "KeyError: its message cannot be shown, because reading it raises ValueError",
    "has half a character": "RuntimeError: ",
}
"""By kind of fault, what the message must contain."""
FAULTS = [*((at, "is unreadable") for at in CALLS), *(("step", kind) for kind in RAISED if kind != "is unreadable")]
"""Every call that can raise, and everything that it can raise."""
IN_WORKERS = [("init", "is unreadable"), ("step", "exits"), ("reset", "is cancelled"), ("close", "is unreadable")]
"""With what ends the process, and what is no Exception. Messages of the others are made by the same function."""


@pytest.fixture(autouse=True)
def messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that other tests printed are printed again, and early."""
    monkeypatch.setattr(waiting, "NOTE_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "_printed", set[str]())
    for name in ("_reported", "_blocked"):
        monkeypatch.setattr(closing, name, set[str]())


@pytest.fixture
def short_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkersConfig, "start_timeout", property(lambda self: 0.5))


@pytest.fixture
def short_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "CLOSE_SECONDS", 0.2)


def play(name: str, params: dict[str, Any], workers: WorkersConfig | None = None) -> None:
    """Makes environments, resets, steps, renders and closes them."""
    env = make(name, params, num_envs=2, workers=workers)
    try:
        timestep = reset_env(env, 0)
        step_env(env, random_actions(env.spec, timestep, torch.Generator().manual_seed(0)))
        render_env(env, 0, 64)
    finally:
        close_env(env)


def said(capsys: pytest.CaptureFixture[str], name: str, params: dict[str, Any], workers: int = 0, **more: Any) -> str:
    """The line of the error, or the messages that were printed."""
    config = WorkersConfig(count=workers, restarts=0, **more) if workers else None
    try:
        play(name, params, config)
    except ReportedError as error:
        return str(error)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("coterie: waiting for ")]
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------- what they raise


@pytest.mark.parametrize(
    ("name", "at", "kind"),
    [*(("endings:make", *fault) for fault in FAULTS), *(("endings:make_batch", at, "is unreadable") for at in CALLS)],
)
def test_whatever_an_environment_raises_is_one_line(name: str, at: str, kind: str, capsys: Any) -> None:
    line = said(capsys, name, {"at": at, "kind": kind})
    assert RAISED[kind] in line
    assert "\n" not in line


@pytest.mark.slow
@pytest.mark.parametrize(("at", "kind"), IN_WORKERS)
def test_whatever_an_environment_raises_in_a_worker_is_one_line(at: str, kind: str, capfd: Any) -> None:
    line = said(capfd, "endings:make", {"at": at, "kind": kind, "where": "worker"}, workers=1)
    assert RAISED[kind] in line
    assert "\n" not in line


@pytest.mark.parametrize(("at", "kind"), IN_WORKERS)
def test_check_env_reports_whatever_an_environment_raises(at: str, kind: str) -> None:
    report = check_env("endings:make", registry_params(at, kind))
    assert not report.ok
    assert RAISED[kind].partition(":")[0] in report.render(200)


def registry_params(at: str, kind: str) -> Any:
    from coterie.envs import registry

    return registry.environment("endings:make").Config.model_validate({"at": at, "kind": kind})


@pytest.mark.parametrize("kind", ["exits", "is cancelled", "is unreadable"])
def test_whatever_a_module_raises_is_one_line(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"raises_{list(RAISED).index(kind)}"
    (tmp_path / f"{module}.py").write_text(f"from endings import DO\nDO[{kind!r}]()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as raised:
        make(f"{module}:make")
    assert RAISED[kind] in str(raised.value)


def test_an_interruption_by_the_user_is_not_an_error_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Any, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for method in ("__init__", "reset", "step", "render", "close"):
        with monkeypatch.context() as patch:
            patch.setattr(Ending, method, interrupt)
            with pytest.raises(KeyboardInterrupt):
                play("endings:make", {})


# --------------------------------------------------------------------------------------------------- what blocks


@pytest.mark.usefixtures("short_start")
@pytest.mark.parametrize(("name", "at"), [("endings:make", "init"), ("endings:make_batch", "factory")])
def test_making_an_environment_has_a_limit(name: str, at: str, capsys: Any) -> None:
    line = said(capsys, name, {"at": at, "kind": "blocks"})
    assert line.startswith(f"the construction of environment '{name}' did not return within 0.5 s. ")
    assert "raise workers.timeout=60" in line
    message = f"coterie: waiting for the construction of environment '{name}', up to 0.5 s\n"
    assert capsys.readouterr().err == message


def test_making_environments_in_a_worker_has_a_limit(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_END_TIMEOUT", 0.1)
    monkeypatch.setattr(WorkersConfig, "start_timeout", property(lambda self: 2.0))
    line = said(capsys, "endings:make", {"at": "init", "kind": "blocks", "where": "worker"}, workers=1, timeout=2.0)
    assert "cannot be made in a worker process: it did not reply within 2 s. " in line
    assert "raise workers.timeout=2" in line
    waits = "waiting for a worker process to make environments 0 to 1 of endings:make, up to 2 s"
    assert capsys.readouterr().err == f"coterie: {waits}\n"


@pytest.mark.parametrize(("timeout", "limit"), [(1, 20), (60, 300), (100, 500)])
def test_the_limit_follows_the_setting(timeout: float, limit: float) -> None:
    assert WorkersConfig(timeout=timeout).start_timeout == limit


@pytest.mark.usefixtures("short_close")
@pytest.mark.parametrize("name", ["endings:make", "endings:make_batch"])
def test_closing_has_a_limit_and_is_not_repeated(name: str, capsys: Any) -> None:
    printed = [said(capsys, name, {"at": "close", "kind": "blocks"}) for _ in range(2)]
    assert "did not return within 0.2 s. Results are kept" in printed[0]
    assert printed[1] == ""


def test_a_worker_that_blocks_when_it_is_closed_is_killed(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_CLOSE_TIMEOUT", 0.2)
    monkeypatch.setattr(processes, "_END_TIMEOUT", 0.1)
    line = said(capfd, "endings:make", {"at": "close", "kind": "blocks", "where": "worker"}, workers=2)
    assert line.count("close() did not return within 0.2 s, the worker is killed. Results are kept") == 1


@pytest.mark.usefixtures("short_close")
def test_check_env_reports_a_blocked_close() -> None:
    report = check_env("endings:make", registry_params("close", "blocks"))
    assert not report.ok
    assert "close() did not return within 0.2 s" in " ".join(report.render(200).split())


def test_the_innermost_call_is_named_once_and_the_signal_is_restored(capsys: Any) -> None:
    for _ in range(2):
        with (
            waiting.limited("outer", 50, "Fix it."),
            pytest.raises(LimitExceededError, match="inner did not return"),
            waiting.limited("inner", 0.2, "Fix it."),
        ):
            threading.Event().wait(50)
    assert capsys.readouterr().err == "coterie: waiting for inner, up to 0.2 s\n"
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_call_in_another_thread_is_not_interrupted() -> None:
    done: list[bool] = []

    def call() -> None:
        with waiting.limited("a call", 0.1, ""):
            threading.Event().wait(0.3)
        done.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert done == [True]


# --------------------------------------------------------------------------------------------------- whole commands

TRAIN = ("train", *tiny("algo=ippo", "num_envs=2", "steps=40", "eval.every=0", "out=run"), "--json", "env=endings:make")
RANDOM = ("evaluate", "--algo", "random", "--episodes", "2", "--json", "env=endings:make")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code", "message"),
    [
        ("blocks", 0, "Results are kept"),
        ("ignores interruptions", 3, "The command ends, because it cannot interrupt this code."),
    ],
)
def test_a_finished_run_keeps_its_result_whatever_close_does(
    kind: str, code: int, message: str, tmp_path: Path
) -> None:
    """In a process of its own, which ends, and which is a child of another one as a worker is."""
    words = [*TRAIN, "env.at=close", f"env.kind={kind}", "env.where=worker"]
    ended, output = Process(tmp_path, *words, prepare=shorten_limits).end()
    assert ended == code, output
    assert len([line for line in output.splitlines() if message in line]) == 1
    assert "Traceback" not in output
    assert ('"steps": ' in output) == (code == 0)
    assert (tmp_path / "run" / "checkpoints").is_dir()


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a new Python, which at its end waits for threads and calls functions of `atexit`."""
    source = Path(waiting.__file__).parents[2]
    program = "from coterie.core import waiting\nwaiting.END_SECONDS = 1.0\nfrom coterie.__main__ import main\n"
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}sys.exit(main())", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{HELPERS}"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
def test_a_run_ends_despite_a_thread_and_a_process_and_calls_functions_registered_for_the_exit(tmp_path: Path) -> None:
    ended = command(tmp_path, *TRAIN, "env.at=close", "env.kind=leaves everything")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["steps"] >= 40
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "ended without waiting for" in line]
    assert "thread 'monitor', process 'child'" in line
    assert (tmp_path / "written").read_text() == "complete"
    assert (tmp_path / "run" / "checkpoints").is_dir()


@pytest.mark.slow
def test_a_command_that_fails_ends_despite_a_process(tmp_path: Path) -> None:
    ended = command(tmp_path, *RANDOM, "env.at=step", "env.kind=starts a process and fails")
    assert ended.returncode == 3
    first, second = ended.stderr.splitlines()
    assert "the ball has no weight" in first
    assert "ended without waiting for process 'child'" in second
