"""What a training process sets up once: threads, memory, signals."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import torch

_SAME = 0.2
"""Seconds in which a signal that comes again is still the first: `timeout` tells a process, then its group."""

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)


def settle(threads: int) -> None:
    """Sets PyTorch's threads, and keeps freed blocks of a few megabytes in the process.

    glibc gives such blocks back to the kernel and faults them in again, tens of thousands of times an update.
    """
    torch.set_num_threads(threads)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library has other allocators
            libc = ctypes.CDLL(None)
            libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
            libc.mallopt(_M_TOP_PAD, 1 << 28)


@contextlib.contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[list[int]]:
    """Within it, the first SIGINT or SIGTERM calls `stop`; another one, 0.2 s later or more, raises KeyboardInterrupt.

    Yields a list that the signal's number is put into.
    """
    received: list[int] = []
    first = 0.0
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not received:
            first = time.monotonic()
            received.append(number)
            stop()
        elif time.monotonic() - first >= _SAME:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
