"""The process of a run: memory allocation, garbage collection, signals, threads and free memory.

`threads=auto` stands for the number of PyTorch's threads that is found here. Free memory and disk space are those that
the operating system and its containers report.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

import torch

_HANGUP: int | None = getattr(signal, "SIGHUP", None)  # the terminal was closed, as by a lost ssh connection
_REPEAT_SECONDS = 0.2
"""Seconds within which repeated signals count as one: `timeout` signals a process, then its group."""

_COLLECTION_THRESHOLD = 20_000
"""New objects that start a garbage collection."""
_IMMORTAL = 10_000
"""Frozen objects up to this number are Python's own: since 3.12 a few hundred that are never freed count as frozen."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)


def configure_process(threads: Threads) -> None:
    """Sets the number of PyTorch's threads, and keeps freed memory blocks of a few megabytes in the process.

    `auto` is not measured here, see `number_of_threads`. By default, glibc returns such blocks to the kernel and faults
    them in again, tens of thousands of times per update.
    """
    torch.set_num_threads(number_of_threads(threads))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # other C libraries lack mallopt
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
            libc.mallopt(_M_TOP_PAD, 1 << 28)


@contextlib.contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Context manager: garbage is collected less often, and not among objects that exist when it is entered.

    Training leaves no reference cycles, but thousands of objects per rollout start collections, which free nothing.
    Imports leave two hundred thousand objects, which a full collection visits for 0.2 s.
    """
    if gc.get_freeze_count() > _IMMORTAL:  # the caller, or an outer context, has settled this
        yield
        return
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def signal_name(number: int) -> str:
    """Returns the name of a signal that stops a run, in messages."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def stopping_signals() -> list[int]:
    """Returns the signals that stop a run: SIGINT, SIGTERM, and SIGHUP unless it is ignored, as by `nohup`."""
    is_ignored = _HANGUP is None or signal.getsignal(_HANGUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if _HANGUP is None or is_ignored else [_HANGUP])]


def _leave(terminals: list[int]) -> None:
    """Discards what is written to descriptors of a terminal that was closed."""
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        for descriptor in terminals:
            os.dup2(nothing, descriptor)
        os.close(nothing)


@contextlib.contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Context manager: the first SIGINT, SIGTERM or SIGHUP calls `stop`; another one raises KeyboardInterrupt.

    Signals within 0.2 s of the first one are ignored, and SIGHUP if it was ignored before, as by `nohup`. After SIGHUP
    the terminal is closed, so further output to it is discarded.

    Yields a list to which the signal's number is appended.
    """
    received: list[int] = []
    first = 0.0
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # false of a closed one

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if number == _HANGUP:
            _leave(terminals)
        if not received:
            first = time.monotonic()
            received.append(number)
            stop()
        elif time.monotonic() - first >= _REPEAT_SECONDS:
            raise KeyboardInterrupt

    with handled_by(handle):
        yield received


@contextlib.contextmanager
def cleaned_up_on_stop() -> Iterator[list[int]]:
    """Context manager: the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, so that `finally` blocks run.

    Further signals are treated as by `interruptible`. At the end, SIGTERM and SIGHUP get the action that they had
    before, which by default ends the process.

    Yields a list to which the signal's number is appended.
    """

    def stop() -> None:
        raise KeyboardInterrupt

    received: list[int] = []
    try:
        with interruptible(stop) as received:
            yield received
    finally:
        if received and received[0] != signal.SIGINT:
            with contextlib.suppress(OSError, ValueError):  # a closed stream
                sys.stdout.flush()
            signal.raise_signal(received[0])


@contextlib.contextmanager
def handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Context manager: `handle` is the handler of the signals that stop a run, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, handle) for number in stopping_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Threads = int | Literal["auto"]

MAX_DEFAULT_THREADS = 8
"""Small networks gain nothing from more threads."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_VARIABLE = "OMP_NUM_THREADS"
_ROUNDS, _BLOCK_SECONDS = 12, 0.01
_MOST_SECONDS, _LEAST_ROUNDS = 0.7, 3
"""The measurement ends after this time if it has this number of turns: beside busy processes turns take longer."""
_GAIN = 1.1
"""More threads are taken if they are faster by this factor; otherwise they would only occupy cores."""


def available_cores() -> int:
    """Returns the number of cores that this process may use: its CPU affinity, limited by the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if _CGROUP_LIMIT.exists():
        quota, _, period = _CGROUP_LIMIT.read_text().strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def most_threads() -> int:
    """Returns the number in the environment variable OMP_NUM_THREADS, else the available cores, at most 8."""
    named = os.environ.get(_VARIABLE, "").partition(",")[0].strip()
    return int(named) if named.isdecimal() and int(named) > 0 else min(available_cores(), MAX_DEFAULT_THREADS)


def number_of_threads(setting: Threads) -> int:
    """Returns the setting, with `auto` for `most_threads`."""
    return most_threads() if setting == "auto" else setting


def measured_threads(setting: Threads, on_measuring: Callable[[], object] = lambda: None) -> int:
    """Returns the setting; `auto` for the number with which gradient steps of a small network take the least time.

    The candidates are the powers of two up to `most_threads`, and that number itself. They are measured in turns of
    10 ms, for an eighth of a second per candidate and less than a second in all. On cores that other processes use, one
    thread that waits for another can make two slower than one, so the mean of the turns decides. OMP_NUM_THREADS is
    taken as it is.

    Args:
        setting: Number of threads or `auto`.
        on_measuring: Called before the measurement.
    """
    most = most_threads()
    if setting != "auto" or most == 1 or os.environ.get(_VARIABLE):
        return most if setting == "auto" else setting
    on_measuring()
    counts = [2**k for k in range(most.bit_length()) if 2**k < most] + [most]
    before = torch.get_num_threads()
    try:
        return fewest_of_the_fastest(counts, _times(counts, _gradient_step()))
    finally:
        torch.set_num_threads(before)


def fewest_of_the_fastest(counts: Sequence[int], times: Sequence[Sequence[float]]) -> int:
    """Returns the number of threads to use.

    Args:
        counts: Numbers of threads, ascending.
        times: Seconds of a unit of work in each turn, by number of threads.
    """
    best, least = counts[0], statistics.fmean(times[0])
    for count, measured in zip(counts[1:], times[1:], strict=True):
        if statistics.fmean(measured) * _GAIN < least:
            best, least = count, statistics.fmean(measured)
    return best


def _times(counts: Sequence[int], work: Callable[[], object]) -> list[list[float]]:
    """Returns the seconds of one call of `work` in each turn, by number of threads, after one turn to warm up."""
    found: list[list[float]] = [[] for _ in counts]
    end = time.perf_counter() + _MOST_SECONDS
    for turn in range(1 + _ROUNDS):
        if turn > _LEAST_ROUNDS and time.perf_counter() > end:
            break
        for count, times in zip(counts, found, strict=True):
            torch.set_num_threads(count)
            calls, start = 0, time.perf_counter()
            while (seconds := time.perf_counter() - start) < _BLOCK_SECONDS:
                work()
                calls += 1
            times += [seconds / calls] if turn else []
    return found


def _gradient_step() -> Callable[[], object]:
    """Returns a function: forward and backward pass of two layers of 64 units for 4,096 rows, 1 to 4 ms of a core."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 64, generator=generator)
    weights = [torch.randn(64, 64, generator=generator).div(8).requires_grad_() for _ in range(2)]

    def step() -> object:
        out = torch.tanh(torch.tanh(x @ weights[0]) @ weights[1]).square().mean()
        return torch.autograd.grad(out, weights)

    return step


def free_bytes(store: str, device: torch.device) -> int | None:
    """Returns the free bytes of the GPU (`device`), main memory or the temporary folder (`disk`); None if unknown."""
    if store == "disk":
        return shutil.disk_usage(tempfile.gettempdir()).free
    if store == "device" and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes() if store == "cpu" or device.type == "cpu" else None


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Returns the bytes of main memory that this process can still allocate, limited by machine and container."""
    known = [free for free in (_machine_free(root), *_container_free(root)) if free is not None]
    return min(known) if known else None


def _machine_free(root: Path) -> int | None:
    """Memory available without swapping, else free pages."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return None


def _container_free(root: Path) -> list[int]:
    """Limit minus usage of every control group of this process, versions 1 and 2."""
    try:
        lines = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    free = []
    for _, kinds, path in (line for line in lines if len(line) == 3):
        if kinds == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            with contextlib.suppress(OSError, ValueError):  # a group without limit has `max` instead of a number
                free.append(_group_free(base.joinpath(*parts[:depth]), *names))
    return free


def _group_free(folder: Path, limit: str, use: str, idle: str) -> int:
    """Remaining bytes of a group's limit; cached file pages count as free."""
    left = int((folder / limit).read_text()) - int((folder / use).read_text())
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith(idle + " "):
                left += int(line.split()[1])
    return max(0, left)


def format_bytes(nbytes: float) -> str:
    """Formats a number of bytes: `43 MB`, `1.2 GB`."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = 0
    while nbytes >= 999.5 and power < len(units) - 1:
        nbytes, power = nbytes / 1000, power + 1
    return f"{nbytes:.{1 if power and nbytes < 9.95 else 0}f} {units[power]}"
