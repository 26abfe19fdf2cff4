"""Ranks on this machine that a command starts: processes that run the same command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie.assembly.core_sets import core_sets, pin
from coterie.assembly.rank_processes import PARENT, RESULT, SETTINGS, SIZE, has_finished, require_supported
from coterie.assembly.result import RunResult
from coterie.assembly.temporary_folders import temporary_folder
from coterie.config.schema import RunConfig
from coterie.core.errors import NonFiniteError, ReportedError, UserError
from coterie.core.files import write_text
from coterie.core.process import MAX_DEFAULT_THREADS, available_cores, handled_by
from coterie.ranks.process_ranks import RankFailedError, RankLostError
from coterie.ranks.rank_failure import FAILED, FOLDER, LOST, RANK, failure_path
from coterie.runs import loggers
from coterie.runs.folder import RunFolder
from coterie.runs.summary import summarize
from coterie.training.callback import Callback

_GRACE_SECONDS = 1.0
"""Seconds for other ranks to report the same error before they are killed."""
_END_SECONDS = 5.0
"""Seconds for all ranks to end after rank 0 has finished or interrupted the run; then they are killed."""
_POLL_SECONDS = 0.05
_INTERRUPTED = (128 + signal.SIGINT, *(code for number in (signal.SIGTERM, 1) for code in (128 + number, -number)))
"""Exit codes of an interrupted run."""


def local_result(
    config: RunConfig, words: Sequence[str], hooks: Sequence[Callback], resolved_yaml: str | None = None
) -> RunResult:
    """Runs a command of Coterie on `config.ranks` ranks of this machine.

    Args:
        config: Settings of the run.
        words: Arguments of the command. `--config` and a file are appended if `resolved_yaml` is given.
        hooks: Functions that the run calls; must be empty.
        resolved_yaml: All settings of a new run.

    Raises:
        ReportedError: If a rank fails. The message names it.
    """
    require_supported(config)
    if hooks:
        raise UserError(
            f"callbacks: cannot be passed to the {config.ranks} processes of ranks={config.ranks}. Use ranks=1, or "
            f"start the script with torchrun --nproc-per-node={config.ranks}."
        )
    with temporary_folder("coterie-ranks-") as folder:
        command = [sys.executable, "-m", "coterie", *words]
        if resolved_yaml is not None:
            write_text(folder / SETTINGS, resolved_yaml)
            command += ["--config", str(folder / SETTINGS)]
        _run(command, config, folder)
        found = json.loads((folder / RESULT).read_text())
    run = RunFolder(Path(found["run"]))
    manifest = run.read_manifest()
    levels = {name: manifest.get(name) for name in ("random", "random_error", "published")}
    summary = summarize(run.path, loggers.read(run.metrics_path), config.steps, **levels)
    return RunResult(run.path, summary, found["exit_code"])


def _run(command: list[str], config: RunConfig, folder: Path) -> None:
    """Runs a command on all ranks.

    Raises:
        ReportedError: If one of them fails, after all have ended.
        KeyboardInterrupt: If rank 0 was interrupted before it could write a result, such as during imports.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, cores in enumerate(rank_cores(config.ranks)):
            processes.append(_start(command, config, folder, rank))
            pin(processes[-1].pid, cores)
        with _forwarded_signals(processes[0]):
            failed = _wait(processes, folder)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
        for process in processes:
            process.wait()
    if failed is not None:
        raise _failure(failed, processes[failed].returncode, folder)


def rank_cores(size: int) -> list[frozenset[int]]:
    """Returns an equal share of the cores for each of `size` ranks.

    The sets are empty if there are fewer cores than ranks, or if a container's quota permits fewer cores than the
    process may choose from: other containers would choose the same ones.
    """
    cores = available_cores()
    is_limited = hasattr(os, "sched_getaffinity") and cores < len(os.sched_getaffinity(0))
    return core_sets(None if is_limited else max(1, cores // size), size)


def _start(command: list[str], config: RunConfig, folder: Path, rank: int) -> subprocess.Popen[bytes]:
    """Starts a rank. Only rank 0 shows progress."""
    env = os.environ | {FOLDER: str(folder), RANK: str(rank), SIZE: str(config.ranks), PARENT: str(os.getpid())}
    env |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(config.ranks)}
    if config.threads == "auto":
        env.setdefault("OMP_NUM_THREADS", str(max(1, min(MAX_DEFAULT_THREADS, available_cores() // config.ranks))))
    if rank == 0:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
    with open(_log(folder, rank), "wb") as log:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> int | None:
    """Waits until all ranks have ended, shortly after one has failed, or until the run is finished.

    Returns:
        The rank to blame, None if none failed.
    """
    failed_at: float | None = None
    finished_at: float | None = None
    while True:
        # A rank that has written its reason may take seconds to end.
        codes = [process.poll() or _reported_code(folder, rank) for rank, process in enumerate(processes)]
        if codes[0] in _INTERRUPTED and not (folder / RESULT).exists():
            raise KeyboardInterrupt
        is_over = has_finished(folder)
        failed = [] if is_over else [rank for rank, code in enumerate(codes) if _is_failure(code)]
        blamed = [rank for rank in failed if codes[rank] != LOST]
        if all(process.poll() is not None for process in processes):
            return min(blamed or failed, default=None)
        if failed and failed_at is None:
            failed_at = time.monotonic()
        if is_over or (processes[0].poll() is not None and not failed and (folder / RESULT).exists()):
            finished_at = finished_at or time.monotonic()
            if time.monotonic() - finished_at > _END_SECONDS:
                return None
        grace = _GRACE_SECONDS if blamed else 2 * _GRACE_SECONDS
        if failed and failed_at is not None and time.monotonic() - failed_at > grace:
            return min(blamed or failed)
        time.sleep(_POLL_SECONDS)


def _reported_code(folder: Path, rank: int) -> int | None:
    """Returns the exit code of a rank that has written why it fails; None if it has not."""
    path = failure_path(folder, rank)
    if not path.exists():
        return None
    return LOST if json.loads(path.read_text())["type"] == RankLostError.__name__ else FAILED


def _is_failure(code: int | None) -> bool:
    """True for exit codes other than those of success and of an interrupted run."""
    return code not in (None, 0, *_INTERRUPTED)


def _failure(rank: int, code: int, folder: Path) -> ReportedError:
    """Returns the error of a rank that failed."""
    path = failure_path(folder, rank)
    if path.exists():
        found = json.loads(path.read_text())
        kinds: dict[str, type[ReportedError]] = {"UserError": UserError, "NonFiniteError": NonFiniteError}
        is_named = found["message"].startswith("rank ") or found["type"] == "UserError"
        message = found["message"] if is_named else f"rank {rank}: {found['message']}"
        return kinds.get(found["type"], RankFailedError)(message)
    if code < 0:
        reason = f"was killed by signal {-code} ({signal.Signals(-code).name})"
    else:
        log = _log(folder, rank)
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        reason = f"ended with exit code {code}" + (f": {lines[-1]}" if lines else "")
    return RankFailedError(
        f"rank {rank} {reason}. All ranks were stopped. Continue from the last checkpoint with coterie resume."
    )


@contextlib.contextmanager
def _forwarded_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Context manager: SIGINT, SIGTERM and SIGHUP stop the run through rank 0, with a checkpoint."""

    def forward(number: int, frame: Any) -> None:
        if process.poll() is None:
            process.send_signal(number)

    with handled_by(forward):
        yield
