"""A browser page, its files, and the web sockets that connect it to a game.

Messages of pages are short text; clients that send anything else are disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import queue
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from coterie.core.terminal import print_line
from coterie.playing.page import Address
from coterie.playing.server import Server

_MAX_MESSAGE = 2048
"""Maximum size of an incoming message in bytes."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; connect-src 'self' ws:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
_FOLDER = Path(__file__).parent / "page"
mimetypes.add_type("text/javascript", ".js")  # some systems have another type, which browsers refuse


class PageServer:
    """Serves a page from construction until it is closed.

    `inbox` holds the messages of pages in order.

    Args:
        host, port: Address; port 0 selects a free port.
        page: File of the page.
        routes: Further routes, whose functions are called from the server's thread.
        welcome: Called from the server's thread for the first messages to a page.

    Raises:
        UserError: If it cannot listen.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        page: str,
        routes: Sequence[BaseRoute] = (),
        welcome: Callable[[], list[bytes]] = list,
    ):
        self._welcome = welcome
        self.inbox: queue.Queue[str] = queue.Queue(maxsize=1024)
        self._outboxes: set[Outbox] = set()

        async def send_page(request: Request) -> Response:
            return FileResponse(_FOLDER / page, headers=_HEADERS)

        own_routes = [
            Route("/", send_page),
            Mount("/page", StaticFiles(directory=_FOLDER)),
            WebSocketRoute("/socket", self._connect),
        ]
        self._server = Server([*own_routes, *routes], host, port, max_message=_MAX_MESSAGE)
        self.port = self._server.port

    @property
    def url(self) -> str:
        """URL of the page."""
        return f"http://{self._server.address}/"

    def send(self, kind: str, message: bytes) -> None:
        """Sends a message to every page, from any thread; a slow page receives only the latest message of a kind."""
        for outbox in tuple(self._outboxes):
            outbox.put_from_thread(kind, message)

    def close(self) -> None:
        """Closes all connections and stops listening."""
        self._server.close()

    async def _connect(self, web_socket: WebSocket) -> None:
        """Handles the messages of one page."""
        await web_socket.accept()
        outbox = Outbox()
        self._outboxes.add(outbox)  # first, so that it misses no message that is sent after the welcome
        for i, greeting in enumerate(self._welcome()):
            outbox.put(f"welcome {i}", greeting)
        sender = asyncio.ensure_future(outbox.send_all(web_socket.send_bytes))
        try:
            while (message := await web_socket.receive())["type"] == "websocket.receive":
                text = message.get("text")
                if text is None:
                    await web_socket.close(1003, "expected text")
                    return
                try:
                    self.inbox.put_nowait(text)
                except queue.Full:
                    await web_socket.close(1013, "too many messages")
                    return
        finally:
            self._outboxes.discard(outbox)
            sender.cancel()


class Outbox:
    """Pending messages of a page: the latest of every kind, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def put_from_thread(self, kind: str, message: bytes) -> None:
        """Adds a message from another thread."""
        with contextlib.suppress(RuntimeError):  # already closed
            self._loop.call_soon_threadsafe(self.put, kind, message)

    def put(self, kind: str, message: bytes) -> None:
        """Adds a message; it replaces a waiting one of its kind."""
        self._waiting.pop(kind, None)
        self._waiting[kind] = message
        self._more.set()

    async def send_all(self, send: Callable[[bytes], Any]) -> None:
        """Sends messages until the page is closed."""
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await self._more.wait()
                self._more.clear()
                while self._waiting:
                    await send(self._waiting.pop(next(iter(self._waiting))))


@contextlib.contextmanager
def serving(
    address: Address, page: str, routes: Sequence[BaseRoute] = (), welcome: Callable[[], list[bytes]] = list
) -> Iterator[PageServer]:
    """Context with a running server; prints its address."""
    with contextlib.closing(
        PageServer(address.host, address.port, page=page, routes=routes, welcome=welcome)
    ) as server:
        print_line(f"Open {server.url} in a browser. Press Ctrl-C to stop.", sys.stderr)
        if address.open_browser:
            webbrowser.open(server.url)
        yield server
