"""Serving pages until Ctrl-C, and the JSON that they show."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from coterie.core.errors import UserError
from coterie.core.installation import install_extra
from coterie.core.terminal import print_line
from coterie.core.text import printable
from coterie.playing.server import Files, Server


@dataclass(frozen=True)
class Address:
    """Address of a page.

    Attributes:
        host: Loopback by default.
        port: 0 selects a free port.
        open_browser: Open the page in a browser.
    """

    host: str = "127.0.0.1"
    port: int = 0
    open_browser: bool = False


def page_json(text: str) -> bytes:
    """Encodes JSON for a page. Characters of its keys and texts that are not printable are shown as escapes."""
    if not text.isprintable() or "\\" in text:
        text = json.dumps(_printable(json.loads(text)))
    return text.encode()


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return {printable(key): _printable(x) for key, x in value.items()} if isinstance(value, dict) else value


def require_server() -> None:
    """UserError if the web server library is missing."""
    try:
        import websockets.asyncio.server  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"playing in a browser needs websockets 15 or newer. Install it with: {install_extra('play')}"
        ) from error


@contextlib.contextmanager
def serving(address: Address, page: str, files: Files, welcome: Callable[[], list[bytes]]) -> Iterator[Server]:
    """Context with a running server; prints its address."""
    with Server(address.host, address.port, page=page, files=files, welcome=welcome) as server:
        print_line(f"Open {server.url} in a browser. Press Ctrl-C to stop.", sys.stderr)
        if address.open_browser:
            webbrowser.open(server.url)
        yield server


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Context that ends silently on Ctrl-C and SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()  # only the main thread can set handlers
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
