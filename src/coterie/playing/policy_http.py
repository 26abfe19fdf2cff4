"""HTTP requests and web sockets of the policy server: every wait and every size has a limit.

Requests are read here, because the web socket library reads those with method GET only. Web sockets are the library's
protocol without its input and output, so that one thread per connection is enough and all time limits are in one place.
"""

from __future__ import annotations

import http
import http.client
import io
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from coterie.playing.server import SECURITY_HEADERS

MAX_HEAD = 1 << 14
"""Maximum size of the request line and all headers in bytes."""
MAX_MESSAGE = 1 << 20
"""Maximum size of the body of a request, and of a message, in bytes."""
REQUEST_SECONDS = 10.0
"""Time in which a whole request has to arrive."""
PING_SECONDS = 20.0
"""Time without a complete frame after which a web socket is pinged, and after another such time closed."""

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.CRITICAL)  # the library's notes about what clients did


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: The reason.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """A request.

    Attributes:
        method: `GET` or `POST`.
        path: Path without the query.
        query: Values of the query by name.
        headers: All headers.
        head: Request line and headers as they arrived.
        body: Body of a `POST`, otherwise empty.
    """

    method: str
    path: str
    query: dict[str, list[str]]
    headers: Message
    head: bytes
    body: bytes

    def all(self, header: str) -> list[str]:
        """Returns the values of a header."""
        return [str(value) for value in self.headers.get_all(header, [])]


def read_request(connection: socket.socket) -> Request | None:
    """Returns the request of a new connection; None if the client left.

    Raises:
        RequestError: If it is too slow, too large or no HTTP.
    """
    deadline = time.monotonic() + REQUEST_SECONDS
    received = bytearray()
    while (end := received.find(b"\r\n\r\n") + 4) < 4 and len(received) <= MAX_HEAD:
        part = _receive(connection, deadline)
        if not part:
            return None
        received += part
    if not 4 <= end <= MAX_HEAD:
        raise RequestError(431, f"more than {MAX_HEAD} bytes of headers")
    head, rest = bytes(received[:end]), received[end:]
    method, target, headers = _parse_head(head)
    try:
        parts = urlsplit(target)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise RequestError(400, "the path is no path of a URL") from None
    size = _body_size(method, headers)
    if size > len(rest) and headers.get("Expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    while len(rest) < size:
        part = _receive(connection, deadline)
        if not part:
            return None
        rest += part
    if len(rest) > size:
        raise RequestError(400, "more bytes than Content-Length: send one request per connection")
    return Request(method, parts.path, query, headers, head, bytes(rest))


def _receive(connection: socket.socket, deadline: float) -> bytes:
    seconds = deadline - time.monotonic()
    try:
        if seconds > 0:
            connection.settimeout(seconds)
            return connection.recv(1 << 16)
    except TimeoutError:
        pass
    raise RequestError(408, f"the request did not arrive within {REQUEST_SECONDS:g} seconds")


def _parse_head(head: bytes) -> tuple[str, str, Message]:
    """Method, target and headers."""
    line, _, lines = head.partition(b"\r\n")
    try:
        method, target, version = line.decode("ascii").split(" ")
        headers = http.client.parse_headers(io.BytesIO(lines))
    except (ValueError, http.client.HTTPException):
        raise RequestError(400, "not an HTTP request") from None
    if not version.startswith("HTTP/1."):
        raise RequestError(505, "expected HTTP/1.1")
    if method not in ("GET", "POST"):
        raise RequestError(405, f"method {method[:20]}: expected GET or POST")
    return method, target, headers


def _body_size(method: str, headers: Message) -> int:
    sizes = headers.get_all("Content-Length", [])
    if "Transfer-Encoding" in headers or len(sizes) > 1 or not all(x.isascii() and x.isdigit() for x in sizes):
        raise RequestError(411, "send the body with one Content-Length")
    size = int(sizes[0][:20]) if sizes else 0
    if method == "POST" and not sizes:
        raise RequestError(411, "send the body with one Content-Length")
    if size > MAX_MESSAGE:
        raise RequestError(413, f"more than {MAX_MESSAGE} bytes")
    return size


def send_response(connection: socket.socket, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
    """Sends a response, which is the last one of its connection."""
    headers = {
        "Content-Length": str(len(body)),
        "Content-Type": kind,
        "Connection": "close",
        **SECURITY_HEADERS,
    }
    lines = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", *(f"{name}: {x}" for name, x in headers.items())]
    connection.settimeout(REQUEST_SECONDS)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)


class WebSocket:
    """A web socket, opened by the answer to a request.

    Args:
        connection: The connection.
        head: Request line and headers.

    Raises:
        RequestError: If the request is none for a web socket.
    """

    def __init__(self, connection: socket.socket, head: bytes):
        from websockets.server import ServerProtocol

        self._connection = connection
        self._protocol = ServerProtocol(max_size=MAX_MESSAGE, logger=_LOG)
        self._protocol.receive_data(head)
        requests = self._protocol.events_received()
        if not requests:
            raise RequestError(400, "not a request for a web socket")
        self._protocol.send_response(self._protocol.accept(cast(Any, requests[0])))
        self._flush()

    @property
    def is_open(self) -> bool:
        """True until one side closes it."""
        from websockets.protocol import State

        return self._protocol.state is State.OPEN

    def send(self, text: str) -> None:
        """Sends a message, unless the client has left."""
        if self.is_open:
            self._protocol.send_text(text.encode())
            self._flush()

    def messages(self) -> Iterator[bytes]:
        """Yields the messages of the client until it leaves, is too slow, or sends what is no message.

        Raises:
            OSError: If the connection breaks.
        """
        from websockets.frames import Opcode

        message, last, pinged = bytearray(), time.monotonic(), False
        while self.is_open:
            for frame in cast(Any, self._frames(last + PING_SECONDS * (1 + pinged))):
                last, pinged = time.monotonic(), False
                if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    message += frame.data
                    if frame.fin:
                        yield bytes(message)
                        message.clear()
            waited = time.monotonic() - last
            if waited >= 2 * PING_SECONDS:
                self._protocol.fail(1011, "too slow")
            elif waited >= PING_SECONDS and not pinged and self.is_open:
                self._protocol.send_ping(b"")
                pinged = True
            self._flush()

    def _frames(self, deadline: float) -> list[Any]:
        """Frames that arrive with the next data, [] if none does before the deadline."""
        try:
            self._connection.settimeout(max(0.01, deadline - time.monotonic()))
            data = self._connection.recv(1 << 16)
        except TimeoutError:
            return []
        if data:
            self._protocol.receive_data(data)
        else:  # the client left, or the server stops
            self._protocol.fail(1001, "going away")
        return self._protocol.events_received()

    def _flush(self) -> None:
        """Sends what the protocol has to send."""
        self._connection.settimeout(PING_SECONDS)
        for data in self._protocol.data_to_send():
            if data:
                self._connection.sendall(data)
            else:
                self._connection.shutdown(socket.SHUT_WR)


def close_gently(connection: socket.socket) -> None:
    """Closes a connection after the client has read what was sent, for which it has a second."""
    deadline = time.monotonic() + 1
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while (seconds := deadline - time.monotonic()) > 0:
            connection.settimeout(seconds)
            if not connection.recv(1 << 16):
                break
    connection.close()
