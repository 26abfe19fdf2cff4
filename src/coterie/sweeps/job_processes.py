"""Processes of a sweep's jobs, forked from a process that has imported PyTorch or started as a command.

A forked job starts without importing anything. Forking is safe while the sweep's process has run nothing in threads:
PyTorch's threads do not survive a fork, and a forked process that uses one waits forever. The sweep's process only
imports modules, reads files and waits, without threads of its own. `ForkGate` checks that.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from coterie.assembly.core_sets import pin
from coterie.core.files import without_links
from coterie.core.text import coterie_command

_TASKS = Path("/proc/self/task")
_PR_SET_PDEATHSIG = 1


class JobProcess(Protocol):
    """A process that was started for a job."""

    @property
    def pid(self) -> int | None:
        """Its id, which is also that of its process group."""
        ...

    def exit_code(self) -> int | None:
        """Returns the exit code, negative for a signal; None while it runs."""
        ...


class ForkGate:
    """Imports what jobs need, and checks later that no threads have appeared since then.

    Attributes:
        main: The command line, which forked jobs run: words in, exit code out.

    Args:
        main: See above.
        modules: Modules that every job needs. Those of its algorithm and environment are imported when a sweep is
            planned.
    """

    def __init__(self, main: Callable[[list[str]], int], modules: Sequence[str]) -> None:
        self.main, self._modules = main, modules
        self._threads: int | None = None

    def preload(self) -> None:
        """Imports the modules that every job needs."""
        if not sys.platform.startswith("linux") or not _TASKS.is_dir():
            return
        for name in self._modules:
            importlib.import_module(name)
        self._threads = _native_threads()

    def is_safe(self) -> bool:
        """True if jobs may be forked now. NumPy's threads, which start with its import, stop by themselves."""
        if self._threads is None or threading.active_count() > 1 or _native_threads() > self._threads:
            return False
        torch: Any = sys.modules["torch"]
        return not torch.cuda.is_initialized()


def _native_threads() -> int:
    return len(os.listdir(_TASKS))


class _Command:
    """A process that runs a command."""

    def __init__(self, words: Sequence[str], stdout: int, stderr: int):
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()


class _Fork:
    """A process that is forked from this one."""

    def __init__(self, run: Callable[[], int]):
        self._process = multiprocessing.get_context("fork").Process(target=_exit_with, args=(run,))
        self._process.start()
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        return self._process.exitcode


def _exit_with(run: Callable[[], int]) -> None:
    sys.exit(run())


class Running:
    """A job's process and its output.

    Args:
        words: Words of the command line after the program.
        command: Program that runs Coterie, or the function that a fork of this process calls with the words.
        cores: Cores that only this process uses; empty for all.
        log: File to which its messages are appended.
    """

    def __init__(
        self,
        words: Sequence[str],
        command: Sequence[str] | Callable[[list[str]], int],
        cores: frozenset[int],
        *,
        log: Path | None,
    ):
        self.started, self.cores, self.output, self.last_line = time.monotonic(), cores, b"", ""
        self._unfinished = b""
        self._log = None if log is None else _open_log(log, words)
        reads, writes = zip(os.pipe(), os.pipe(), strict=True)
        self._stdout = reads[0]
        self.open_streams = list(reads)
        self.process: JobProcess
        try:
            if callable(command):
                main, parent = command, os.getpid()
                self.process = _Fork(lambda: _run_forked(main, list(words), writes, cores, close=reads, parent=parent))
            else:
                self.process = _Command([*command, *words], *writes)
                pin(self.process.pid or 0, cores)
        finally:
            for end in writes:
                os.close(end)
        for end in reads:
            os.set_blocking(end, False)

    def read(self, stream: int) -> None:
        """Reads what one of the open streams has."""
        while stream in self.open_streams:
            try:
                content = os.read(stream, 1 << 16)
            except BlockingIOError:
                return
            if not content:
                self.open_streams.remove(stream)
                os.close(stream)
            elif stream == self._stdout:
                self.output += content
            else:
                self._take(content)

    def _take(self, content: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + content).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if text.strip():
                self.last_line = text.strip()
            if self._log is not None:
                with contextlib.suppress(OSError):  # a full disk is reported by the run
                    self._log.write(text + "\n")
                    self._log.flush()

    def close(self) -> int:
        """Reads the rest of the output of a process that has ended. Returns its exit code, as a shell counts."""
        for stream in list(self.open_streams):
            self.read(stream)
        while self.open_streams:  # something that the process started keeps them open
            os.close(self.open_streams.pop())
        if self._unfinished:
            self._take(b"\n")
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()
        code = self.process.exit_code()
        assert code is not None
        return 128 - code if code < 0 else code

    @property
    def error(self) -> str:
        """Its last message, without the name of the program."""
        return self.last_line.removeprefix("coterie: ")

    def interrupt(self) -> None:
        """Sends SIGINT to the process, which then saves its checkpoint and ends."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGINT)

    def kill(self) -> None:
        """Ends the process and those that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        while self.process.exit_code() is None:
            time.sleep(0.01)


def wait_for_output(processes: Iterable[Running], seconds: float) -> None:
    """Waits until any of the processes has written something, and reads what they have; at most for some seconds."""
    streams = {stream: running for running in processes for stream in running.open_streams}
    if not streams:  # something ended, or has closed its output
        time.sleep(seconds)
        return
    for stream in select.select(list(streams), [], [], seconds)[0]:
        streams[stream].read(stream)


def _open_log(path: Path, words: Sequence[str]) -> IO[str] | None:
    """Opens the log of a job for appending; None if that is impossible, which the run itself reports."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a", encoding="utf-8", opener=without_links)  # noqa: SIM115
        file.write("$ " + coterie_command(*words) + "\n")
        file.flush()
        return file
    except OSError:
        return None


def _run_forked(
    main: Callable[[list[str]], int],
    words: list[str],
    streams: Sequence[int],
    cores: frozenset[int],
    *,
    close: Sequence[int],
    parent: int,
) -> int:
    """Runs a command line in a forked process, as a command of its own.

    Args:
        main: The command line.
        words: Words of the command line after the program.
        streams: File descriptors for stdout and stderr.
        cores: As in `Running`.
        close: File descriptors of the parent to close.
        parent: Id of the parent's process.

    Returns:
        The exit code.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # If the sweep is killed, its jobs save their checkpoints and end, so that it can be run again.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    for end in close:
        os.close(end)
    pin(0, cores)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for stream, target in zip(streams, (1, 2), strict=True):
        os.dup2(stream, target)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    sys.argv = ["coterie", *words]
    code = main(words)
    sys.stdout.flush()
    return code
