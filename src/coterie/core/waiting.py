"""Calls of code outside Coterie that may block: a message names what is waited for, and a limit ends the call."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import final

from coterie.core.errors import LimitExceededError
from coterie.core.terminal import print_message

NOTE_SECONDS = 5.0
"""Seconds after which a message names what is waited for."""

UNRESPONSIVE_SECONDS = 5.0
"""Seconds that interrupted code has to return before a command ends. Native code may never return."""

END_SECONDS = 10.0
"""Seconds for threads and child processes to end after a command."""

_EXIT_FUNCTION_SECONDS = 2.0
"""Seconds for functions that are registered with `atexit`."""

FAILED = 3
"""Exit code of a command that ends because of code that does not return."""

_SIGNAL: int | None = getattr(signal, "SIGALRM", None)

is_command = False
"""True if this process runs a command, which may be ended; set by `coterie.__main__`."""


is_worker = False
"""True if this process steps environments for another one, which prints its own messages."""


def note(message: str) -> None:
    """Prints a message about an environment, unless this process is a worker."""
    if not is_worker:
        with contextlib.suppress(OSError, ValueError):  # stderr is closed
            print_message(message)


class Interruption(BaseException):
    """Raised in code that exceeds its limit."""


@final
class _Watch(threading.Thread):
    """Prints a message after `NOTE_SECONDS`, and interrupts the main thread after `seconds`.

    Args:
        message: Message to print.
        seconds: The limit; None for no limit.
        failure: Message of the error.
    """

    def __init__(self, message: str, seconds: float | None, failure: str):
        super().__init__(name="coterie waiting", daemon=True)
        self._message, self._seconds, self._failure = message, seconds, failure
        self._interrupts = threading.current_thread() is threading.main_thread()
        self._ended = threading.Event()
        self.is_over = False
        """The limit is exceeded."""

    def run(self) -> None:
        seconds = self._seconds
        first = NOTE_SECONDS if seconds is None else min(NOTE_SECONDS, seconds)
        if self._ended.wait(first):
            return
        is_innermost = self not in _watches or _watches[-1] is self  # otherwise the call inside is what is waited for
        if (seconds is None or first < seconds) and is_innermost and self._message not in _printed:
            _printed.add(self._message)
            note(self._message)
        if seconds is None or self._ended.wait(seconds - first) or not self._interrupts:
            return
        self.is_over = True
        if _SIGNAL is not None and signal.getsignal(_SIGNAL) is _interrupt:
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        if not self._ended.wait(UNRESPONSIVE_SECONDS) and is_command:
            note(f"{self._failure} The command ends, because it cannot interrupt this code.")
            end_process(FAILED)

    def end(self) -> None:
        self._ended.set()
        self.join()


_printed: set[str] = set()
"""Messages about what is waited for, each of which is printed once."""

_watches: list[_Watch] = []
"""Watches of the calls that the main thread is in."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    if any(watch.is_over for watch in _watches):
        raise Interruption


@contextlib.contextmanager
def limited(what: str, seconds: float, fix: str) -> Iterator[None]:
    """Context manager: prints a message if its body takes longer than a few seconds, and interrupts it after a limit.

    Only the main thread is interrupted. A command ends if code that does not return to Python exceeds the limit.

    Args:
        what: Description of the call, such as `close() of environment 'x'`.
        seconds: The limit.
        fix: A sentence on what to do about it.

    Raises:
        LimitExceededError: If the limit was exceeded.
    """
    failure = f"{what} did not return within {seconds:g} s. {fix}"
    watch = _Watch(f"waiting for {what}, up to {seconds:g} s", seconds, failure)
    is_main = threading.current_thread() is threading.main_thread()
    installs = is_main and _SIGNAL is not None and signal.getsignal(_SIGNAL) == signal.SIG_DFL
    if installs:
        signal.signal(_SIGNAL, _interrupt)  # pyright: ignore[reportArgumentType]
    if is_main:
        _watches.append(watch)
    watch.start()
    try:
        try:
            yield
        finally:  # from here on, it is not interrupted any more
            if is_main:
                _watches.remove(watch)
    except BaseException as error:  # whatever the code made of the interruption
        if watch.is_over:
            raise LimitExceededError(failure) from error
        raise
    finally:
        _watches[:] = [other for other in _watches if other is not watch]
        watch.end()  # before the signal's default action, which ends the process, is restored
        if installs:
            signal.signal(_SIGNAL, signal.SIG_DFL)  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def noted(what: str, seconds: float) -> Iterator[None]:
    """Context manager: prints a message if its body takes longer than a few seconds. `seconds` is its own limit."""
    watch = _Watch(f"waiting for {what}, up to {seconds:g} s", None, "")
    watch.start()
    try:
        yield
    finally:
        watch.end()


def end_soon(code: int) -> None:
    """Ends this process with an exit code in a few seconds, unless it ends on its own before.

    At its end, Python waits for threads that are not daemons, without a limit. A message names those of an environment.
    """
    threading.Thread(target=_end_later, args=(code,), name="coterie end", daemon=True).start()


def _end_later(code: int) -> None:
    time.sleep(END_SECONDS)
    children = multiprocessing.active_children()
    threads = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    processes = [process.name for process in children if not process.daemon]
    for process in children:
        process.kill()
    running = [*(f"thread '{name}'" for name in threads), *(f"process '{name}'" for name in processes)]
    what = ", ".join(dict.fromkeys(running)) or "functions that are registered with atexit"
    note(
        f"ended without waiting for {what}, still running {END_SECONDS:g} s after the command. Results are kept. End "
        "what the environment starts in its close(), or start it with daemon=True."
    )
    if threads:  # Python would call these functions after the threads
        final = threading.Thread(target=atexit._run_exitfuncs, name="coterie exit functions", daemon=True)
        final.start()
        final.join(_EXIT_FUNCTION_SECONDS)
    end_process(code)


def end_process(code: int) -> None:
    """Ends this process at once, with the output that was written so far."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
