"""Pages, files and a web socket on one address, served by a background thread.

Requests with another Host header are refused (DNS rebinding), and so are web sockets from pages of other origins.
Incoming messages are short text; clients that send anything else are disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import mimetypes
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from coterie.core.errors import UserError

_MAX_MESSAGE = 2048
"""Maximum size of an incoming message in bytes."""
SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; connect-src 'self' ws:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LISTEN_ERRORS = (OSError, TypeError, ValueError)
"""Errors of listening; the last two are of a host that cannot be encoded as one, or has a NUL."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Response:
    """Response to a path."""

    body: bytes
    type: str


Files = Callable[[str], Response | None]
"""Maps a path such as `/recordings` to its response, None if it does not exist."""


class Server:
    """Listens from construction until it is closed. UserError if that is not possible.

    `inbox` holds the messages of pages in order.

    Args:
        host, port: Address; port 0 selects a free port.
        files: Called from the server's thread for paths other than the built-in pages.
        welcome: Called from the server's thread for the first messages to a page.
    """

    def __init__(self, host: str, port: int, *, page: str, files: Files, welcome: Callable[[], list[bytes]]):
        self._host, self._page, self._files, self._welcome = host, page, files, welcome
        self.inbox: queue.Queue[str] = queue.Queue(maxsize=1024)
        self._outboxes: set[Outbox] = set()
        self._loop = asyncio.new_event_loop()
        self._port: asyncio.Future[int] | None = None
        listening: queue.Queue[int | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run, args=(port, listening), name="pages", daemon=True)
        self._thread.start()
        found = listening.get()
        if isinstance(found, BaseException):
            self._thread.join()
            if not isinstance(found, LISTEN_ERRORS):
                raise found
            raise listen_error(host, port, found) from found
        self.port = found

    @property
    def url(self) -> str:
        """URL of the page."""
        shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"http://[{shown}]:{self.port}/" if ":" in shown else f"http://{shown}:{self.port}/"

    def send(self, kind: str, message: bytes) -> None:
        """Sends a message to every page, from any thread; a slow page receives only the latest message of a kind."""
        with contextlib.suppress(RuntimeError):  # already closed
            self._loop.call_soon_threadsafe(self._broadcast, kind, message)

    def close(self) -> None:
        """Closes all connections and stops listening."""
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
        options: dict[str, Any] = {
            "max_size": _MAX_MESSAGE,
            "max_queue": 16,
            "compression": None,
            "server_header": None,
        }
        async with serve(self._handle_socket, self._host, port, process_request=self._respond, **options) as server:
            listening.put(next(iter(server.sockets)).getsockname()[1])
            await self._stop.wait()

    def _broadcast(self, kind: str, message: bytes) -> None:
        for outbox in self._outboxes:
            outbox.put(kind, message)

    async def _handle_socket(self, connection: Any) -> None:
        """Handles the messages of one page."""
        from websockets.exceptions import ConnectionClosed

        outbox = Outbox()
        for i, greeting in enumerate(self._welcome()):
            outbox.put(f"welcome {i}", greeting)
        self._outboxes.add(outbox)
        sender = asyncio.ensure_future(outbox.send_all(connection))
        try:
            async for message in connection:
                if not isinstance(message, str):
                    await connection.close(1003, "expected text")
                    return
                try:
                    self.inbox.put_nowait(message)
                except queue.Full:
                    await connection.close(1013, "too many messages")
                    return
        except ConnectionClosed:
            pass
        finally:
            self._outboxes.discard(outbox)
            sender.cancel()

    def _respond(self, connection: Any, request: Any) -> Any:
        """Response to a request; None opens a web socket."""
        hosts = request.headers.get_all("Host")
        if len(hosts) != 1 or not names_server(hosts[0], self._host, self.port):
            return build_response(connection, 421, b"unknown host: open the address that coterie printed\n")
        path = urlsplit(request.path).path
        if path == "/socket":
            origins = request.headers.get_all("Origin")
            if origins and origins != [f"http://{hosts[0]}"]:
                return build_response(connection, 403, b"web sockets are open to the pages of this server only\n")
            return None
        response = self._page_file(path) or self._files(path)
        if response is None:
            return build_response(connection, 404, b"not found\n")
        return build_response(connection, 200, response.body, response.type)

    def _page_file(self, path: str) -> Response | None:
        """A built-in file: the page at `/`, and its resources."""
        name = self._page if path == "/" else path.removeprefix("/page/") if path.startswith("/page/") else ""
        if name not in PAGE_FILES:
            return None
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind = "text/javascript" if name.endswith(".js") else kind
        body = (resources.files("coterie.playing") / "page" / name).read_bytes()
        return Response(body, f"{kind}; charset=utf-8")


PAGE_FILES = (
    "play.html",
    "view.html",
    "style.css",
    "play.js",
    "view.js",
    "cards.js",
    "run.js",
    "icon.svg",
)


class Outbox:
    """Pending messages of a page: the latest of every kind, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._more = asyncio.Event()

    def put(self, kind: str, message: bytes) -> None:
        self._waiting.pop(kind, None)
        self._waiting[kind] = message
        self._more.set()

    async def send_all(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._more.wait()
                self._more.clear()
                while self._waiting:
                    kind = next(iter(self._waiting))
                    await connection.send(self._waiting.pop(kind))


def listen_error(host: str, port: int, error: BaseException) -> UserError:
    """Returns the error in one line; port 0 stands for any free one."""
    address = f"{host}:{port}" if port else host
    if not isinstance(error, OSError):
        return UserError(f"cannot listen on {address}: not the name or address of a host. Choose another --host.")
    is_of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
    advice = "Choose another --port, or leave it out to use a free one." if is_of_port else "Choose another --host."
    return UserError(f"cannot listen on {address} ({(error.strerror or str(error)).lower()}). {advice}")


def names_server(header: str, host: str, port: int) -> bool:
    """True if a Host header names the server at a host and port, by the given name or by an address."""
    try:
        parts = urlsplit(f"//{header}")
        name, named_port = parts.hostname or "", parts.port or 80
    except ValueError:
        return False
    if named_port != port:
        return False
    if name == host.lower():
        return True
    if host in LOOPBACK:
        return name in LOOPBACK
    if name == "localhost":
        return True
    with contextlib.suppress(ValueError):  # DNS rebinding needs a name
        ipaddress.ip_address(name)
        return True
    return False


def build_response(connection: Any, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> Any:
    response = connection.respond(status, "")
    response.body = body
    for name in ("Content-Length", "Content-Type"):
        del response.headers[name]
    response.headers["Content-Length"] = str(len(body))
    response.headers["Content-Type"] = kind
    for name, value in SECURITY_HEADERS.items():
        response.headers[name] = value
    return response
