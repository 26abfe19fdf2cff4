"""The web server of the browser pages and of exported policies: a Starlette application on uvicorn, in a thread.

It is made for loopback addresses and for machines that one trusts. Requests with another Host header are refused (DNS
rebinding), and so are requests from pages of other origins. Every wait and every size has a limit.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import http
import ipaddress
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coterie.core.errors import UserError
from coterie.core.terminal import print_line
from coterie.core.text import shorten

MAX_HEAD = 1 << 14
"""Maximum size of the request line and all headers in bytes."""
MAX_BODY = 1 << 20
"""Maximum size of the body of a request in bytes."""
MAX_REQUESTS = 128
"""Maximum number of connections without a web socket. One more ends the one that has been silent for longest."""
REQUEST_SECONDS = 10.0
"""Time in which a whole request has to arrive."""
IDLE_SECONDS = 60
"""Time without a request after which a connection is closed."""
PING_SECONDS = 20.0
"""Time between pings of web sockets, and time for the answer."""
_CLOSE_SECONDS = 1
"""Time for requests and web sockets to end when the server is closed."""
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
]
"""Headers of every response."""
_LISTEN_ERRORS = (OSError, TypeError, ValueError)
"""Errors of listening; the last two are of a host that cannot be encoded as one, or has a NUL."""
_LONG_HEAD = f"more than {MAX_HEAD} bytes of headers"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Server:
    """Serves routes, and `/health`, from construction until it is closed.

    Args:
        routes: Routes of Starlette; their functions are called from the server's thread.
        host, port: Address; port 0 selects a free port.
        max_message: Maximum size of a message on a web socket in bytes.
        token: Password of clients; None for none.
        allow_origins: Other origins whose pages may send requests, such as `https://example.com`.

    Attributes:
        port: Port that it listens on.
        token: Password of clients, or None.

    Raises:
        UserError: If it cannot listen.
    """

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        host: str,
        port: int,
        *,
        max_message: int,
        token: str | None = None,
        allow_origins: Sequence[str] = (),
    ):
        self._host, self.token = host, token
        listener = _listen(host, port)
        self.port: int = listener.getsockname()[1]
        guard = Middleware(_Guard, host=host, port=self.port, token=token, allow_origins=allow_origins)
        headers = ["Authorization", "Content-Type"]
        cors = Middleware(
            CORSMiddleware, allow_origins=allow_origins, allow_methods=["GET", "POST"], allow_headers=headers
        )
        app = Starlette(
            routes=[*routes, Route("/health", _health)],
            middleware=[cors, guard] if allow_origins else [guard],
            exception_handlers={HTTPException: _refused, Exception: _failed},
        )
        app.router.redirect_slashes, app.router.default = False, _not_found
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="websockets-sansio",
            loop="auto",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            headers=_HEADERS,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            backlog=MAX_REQUESTS,
            ws_max_size=max_message,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            ws_per_message_deflate=False,
            log_config=None,
            log_level="critical",  # its notes are about what clients did
            access_log=False,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), name="server", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port for URLs; for all interfaces, those of this machine."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def close(self) -> None:
        """Closes all connections and stops listening."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. UserError in one line; port 0 stands for any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # create_server leaves a socket open if this raises no OSError
        listener = socket.create_server((host, port), family=family, backlog=MAX_REQUESTS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)  # for the connections that it accepts
        return listener
    except _LISTEN_ERRORS as error:
        address = f"{host}:{port}" if port else host
        if not isinstance(error, OSError):
            reason = "not the name or address of a host. Choose another --host."
            raise UserError(f"cannot listen on {address}: {reason}") from error
        is_of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = "Choose another --port, or leave it out to use a free one." if is_of_port else "Choose another --host."
        raise UserError(f"cannot listen on {address} ({(error.strerror or str(error)).lower()}). {advice}") from error


async def read_body(request: Request) -> bytes:
    """Returns the body of a request. HTTPException if it is too large, when all of it has arrived."""
    body, too_large = bytearray(), False
    async for part in request.stream():
        too_large |= len(body) + len(part) > MAX_BODY
        if not too_large:
            body += part
    if too_large:
        raise HTTPException(413, f"more than {MAX_BODY} bytes")
    return bytes(body)


class _Connection(HttpToolsProtocol):
    """A connection of uvicorn, with limits for clients that send no whole request, which uvicorn does not have."""

    last_active = 0.0
    _unanswered_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.last_active = self.loop.time()
        self._start_waiting()
        if len(self.connections) > MAX_REQUESTS:  # those of web sockets have a limit of their own
            requests = [x for x in self.connections if isinstance(x, _Connection) and not x.transport.is_closing()]
            if len(requests) > MAX_REQUESTS:
                min(requests, key=lambda x: x.last_active).end()

    def data_received(self, data: bytes) -> None:
        self.last_active = self.loop.time()
        super().data_received(data)
        if self.transport.is_closing() or self not in self.connections or not self._waits:
            self._stop_waiting()  # also if it has become a web socket
            return
        self._start_waiting()
        if self.cycle is None or self.cycle.response_complete:
            self._unanswered_bytes += len(data)
            if self._unanswered_bytes > MAX_BODY:  # headers, or the rest of a body that was refused
                self._refuse(431, _LONG_HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "not an HTTP/1.1 request")

    def end(self) -> None:
        """Closes the connection, after the response if a whole request has arrived."""
        if self._waits:
            self.transport.close()
        else:
            self.shutdown()

    @property
    def _waits(self) -> bool:
        """True unless a whole request has arrived and is not yet answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _start_waiting(self) -> None:
        if self._deadline is None:
            message = f"the request did not arrive within {REQUEST_SECONDS:g} seconds"
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._refuse, 408, message)

    def _stop_waiting(self) -> None:
        self._unanswered_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, message: str) -> None:
        """Sends an error and closes the connection."""
        if not self.transport.is_closing():
            response = error_response(status, message)
            headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
            head = b"HTTP/1.1 %d %s\r\n%sconnection: close\r\n\r\n"
            phrase = http.HTTPStatus(status).phrase.encode()
            self.transport.write(head % (status, phrase, headers) + bytes(response.body))
            self.transport.close()


class _Guard:
    """Middleware that refuses requests for another host, of pages of other origins, and without the token.

    It prints errors of the application in one line. Clients that leave are none.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int, token: str | None, allow_origins: Sequence[str]):
        self._app, self._host, self._port, self._token = app, host, port, token
        self._allow_origins = allow_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(HTTPConnection(scope))
        if refusal is not None:
            await _send(refusal, scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except (ClientDisconnect, WebSocketDisconnect):
            pass
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            print_line(f"internal error at {shorten(scope['path'])}: {shorten(text, 300)}", sys.stderr)
            raise

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        hosts, origins = connection.headers.getlist("Host"), connection.headers.getlist("Origin")
        scope = connection.scope
        if len(scope["query_string"]) + sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD:
            return error_response(431, _LONG_HEAD)
        if len(hosts) != 1 or not _names_server(hosts[0], self._host, self._port):
            return error_response(421, "unknown host: use the address that coterie printed")
        if scope["path"] == "/health":
            return None
        if not self._has_token(connection):
            return error_response(401, "wrong or missing token: send Authorization: Bearer TOKEN")
        allowed = {f"http://{hosts[0]}", *self._allow_origins}
        if self._token is None and not allowed.issuperset(origins):
            return error_response(403, "pages of other origins are refused: start with --allow-origin or --token")
        return None

    def _has_token(self, connection: HTTPConnection) -> bool:
        if self._token is None:
            return True
        headers = connection.headers.getlist("Authorization")
        given = [header[7:] for header in headers if header[:7].lower() == "bearer "]
        given += connection.query_params.getlist("token")
        encoded = [text.encode(errors="backslashreplace") for text in (*given, self._token)]
        return len(given) == 1 and hmac.compare_digest(encoded[0], encoded[1])


def _names_server(header: str, host: str, port: int) -> bool:
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
    with suppress(ValueError):  # DNS rebinding needs a name
        ipaddress.ip_address(name)
        return True
    return False


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns `{"error": message}`."""
    return JSONResponse({"error": message}, status, headers)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers or {}
    message = f"method {request.method}: expected {headers.get('Allow')}" if error.status_code == 405 else error.detail
    return error_response(error.status_code, message, headers)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    paths = dict.fromkeys(str(getattr(route, "path", "")) for route in scope["app"].routes)
    await _send(error_response(404, f"not found: there are {', '.join(paths)}"), scope, receive, send)


async def _send(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends a response; to a request for a web socket instead of opening it."""
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


def _failed(request: Request, error: Exception) -> Response:
    return error_response(500, f"internal error: {type(error).__name__}")


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})
