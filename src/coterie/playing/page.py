"""Serving pages until Ctrl-C, and the JSON that they show."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from coterie.core.text import printable


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
