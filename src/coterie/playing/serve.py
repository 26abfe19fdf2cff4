"""Pages that this machine serves, until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from coterie.errors import UserError
from coterie.playing.server import Files, Server


@dataclass(frozen=True)
class Address:
    """Where a page is served: on loopback unless `host` says otherwise, on a free port for 0; opens: in a browser."""

    host: str = "127.0.0.1"
    port: int = 0
    opens: bool = False


def require_server() -> None:
    """UserError where the library that serves pages is missing."""
    try:
        import websockets.asyncio.server  # noqa: F401
    except ImportError as error:
        raise UserError("playing in a browser needs websockets 15 or newer: pip install 'coterie[play]'") from error


@contextlib.contextmanager
def serving(address: Address, page: str, files: Files, welcome: Callable[[], list[bytes]]) -> Iterator[Server]:
    """A server, and a line that says where."""
    with Server(address.host, address.port, page, files, welcome) as server:
        print(f"open {server.url} in a browser; Ctrl-C ends", file=sys.stderr, flush=True)
        if address.opens:
            webbrowser.open(server.url)
        yield server


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM are how this ends, and no error."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()  # only that may set handlers
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
