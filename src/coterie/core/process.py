"""Process settings of a training run: threads, memory allocation, garbage collection, signals."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from coterie.core.threads import Threads, number_of_threads

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
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield received
        return

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

    with _handled_by(handle):
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
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Context manager: `handle` is the handler of the signals that stop a run."""
    before = {number: signal.signal(number, handle) for number in stopping_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
