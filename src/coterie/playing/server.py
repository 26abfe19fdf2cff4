"""Pages, files and a web socket on one address, from a thread of its own.

Whoever is asked by another name than the address that it listens on does not answer (DNS rebinding), nor does the
socket to pages from elsewhere. Messages that come in are short text; whoever sends another kind is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import mimetypes
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from coterie.errors import UserError

_MOST = 2048
"""Bytes of a message that comes in."""
_SAFE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; connect-src 'self' ws:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Answer:
    """What is sent for a path."""

    body: bytes
    type: str


Files = Callable[[str], Answer | None]
"""What there is at a path such as `/recordings`; None for nothing."""


class Server:
    """Listens from when it is made until it is closed. UserError where that cannot be.

    host, port: where; 0 takes a free port. files: called from the server's thread for paths that are no page of ours.
    `inbox` holds what pages send, in order; `send` tells all pages something, and `welcome` is asked in the server's
    thread for what a page is told first.
    """

    def __init__(self, host: str, port: int, page: str, files: Files, welcome: Callable[[], list[bytes]]):
        self._host, self._page, self._files, self._welcome = host, page, files, welcome
        self.inbox: queue.Queue[str] = queue.Queue(maxsize=1024)
        self._outboxes: set[_Outbox] = set()
        self._loop = asyncio.new_event_loop()
        self._port: asyncio.Future[int] | None = None
        listening: queue.Queue[int | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run, args=(port, listening), name="pages", daemon=True)
        self._thread.start()
        found = listening.get()
        if isinstance(found, BaseException):
            self._thread.join()
            if not isinstance(found, OSError):
                raise found
            asked = f"{host}:{port}" if port else host
            raise UserError(
                f"cannot listen on {asked} ({(found.strerror or str(found)).lower()}): choose another --port, or "
                "leave it out for a free one"
            ) from found
        self.port = found

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"http://[{shown}]:{self.port}/" if ":" in shown else f"http://{shown}:{self.port}/"

    def send(self, kind: str, message: bytes) -> None:
        """Tells every page, from any thread; of a kind that a slow page has not yet read, it gets the last alone."""
        with contextlib.suppress(RuntimeError):  # it has closed
            self._loop.call_soon_threadsafe(self._spread, kind, message)

    def close(self) -> None:
        """Says goodbye to all pages and listens no more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------- in the server's thread

    def _run(self, port: int, listening: queue.Queue[int | BaseException]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(port, listening))
        except BaseException as error:
            listening.put(error)
        finally:
            self._loop.close()

    async def _serve(self, port: int, listening: queue.Queue[int | BaseException]) -> None:
        from websockets.asyncio.server import serve

        self._stop = asyncio.Event()
        options: dict[str, Any] = {"max_size": _MOST, "max_queue": 16, "compression": None, "server_header": None}
        async with serve(self._talk, self._host, port, process_request=self._answer, **options) as server:
            listening.put(next(iter(server.sockets)).getsockname()[1])
            await self._stop.wait()

    def _spread(self, kind: str, message: bytes) -> None:
        for outbox in self._outboxes:
            outbox.put(kind, message)

    async def _talk(self, connection: Any) -> None:
        """One page: what it is told, and what it says."""
        from websockets.exceptions import ConnectionClosed

        outbox = _Outbox()
        for i, message in enumerate(self._welcome()):
            outbox.put(f"welcome {i}", message)
        self._outboxes.add(outbox)
        telling = asyncio.ensure_future(outbox.tell(connection))
        try:
            async for said in connection:
                if not isinstance(said, str):
                    await connection.close(1003, "text is expected")
                    return
                try:
                    self.inbox.put_nowait(said)
                except queue.Full:
                    await connection.close(1013, "too many messages at once")
                    return
        except ConnectionClosed:
            pass
        finally:
            self._outboxes.discard(outbox)
            telling.cancel()

    def _answer(self, connection: Any, request: Any) -> Any:
        """What is sent for a request; None lets a socket open."""
        hosts = request.headers.get_all("Host")
        if len(hosts) != 1 or not self._is_me(hosts[0]):
            return _response(connection, 421, b"this server is asked by its address alone\n")
        path = urlsplit(request.path).path
        if path == "/socket":
            origins = request.headers.get_all("Origin")
            if origins and origins != [f"http://{hosts[0]}"]:
                return _response(connection, 403, b"pages from elsewhere have no business here\n")
            return None
        answer = self._page_file(path) or self._files(path)
        if answer is None:
            return _response(connection, 404, b"there is nothing here\n")
        return _response(connection, 200, answer.body, answer.type)

    def _is_me(self, host: str) -> bool:
        """Whether a Host header names this server: by the name that it was given, or by an address."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if port != self.port:
            return False
        if name == self._host.lower():
            return True
        if self._host in LOOPBACK:
            return name in LOOPBACK
        if name == "localhost":
            return True
        with contextlib.suppress(ValueError):  # whoever rebinds needs a name
            ipaddress.ip_address(name)
            return True
        return False

    def _page_file(self, path: str) -> Answer | None:
        """A file of ours: the page at `/`, and what it loads."""
        name = self._page if path == "/" else path.removeprefix("/page/") if path.startswith("/page/") else ""
        if name not in PAGE_FILES:
            return None
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind = "text/javascript" if name.endswith(".js") else kind
        body = (resources.files("coterie.playing") / "page" / name).read_bytes()
        return Answer(body, f"{kind}; charset=utf-8")


PAGE_FILES = ("play.html", "view.html", "style.css", "play.js", "view.js", "cards.js", "icon.svg")


class _Outbox:
    """What one page has still to be told: of every kind the last message, in the order of their coming."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._more = asyncio.Event()

    def put(self, kind: str, message: bytes) -> None:
        self._waiting.pop(kind, None)
        self._waiting[kind] = message
        self._more.set()

    async def tell(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._more.wait()
                self._more.clear()
                while self._waiting:
                    kind = next(iter(self._waiting))
                    await connection.send(self._waiting.pop(kind))


def _response(connection: Any, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> Any:
    response = connection.respond(status, "")
    response.body = body
    for name in ("Content-Length", "Content-Type"):
        del response.headers[name]
    response.headers["Content-Length"] = str(len(body))
    response.headers["Content-Type"] = kind
    for name, value in _SAFE.items():
        response.headers[name] = value
    return response
