"""An exported team over HTTP and on web sockets, for programs without an ONNX runtime or NumPy.

Every web socket at `/act` is a player of its own. Messages are JSON objects:

    {"reset": true, "seed": 3}                 starts an episode; answered by {"reset": true}
    {"obs": {...}, "action_mask": {...}}       answered by {"actions": {...}}; the mask may be missing

Mistakes are answered by {"error": "..."}, and the connection stays open.

`POST /act` takes one object with obs and keeps nothing: hidden states of recurrent policies are returned as
`hidden_state`, which the next request passes on. `GET /policy` returns the content of every team's `policy.json`.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from coterie.commands.export.portable.player import Player
from coterie.commands.export.portable.policy_files import PolicyError
from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.text import shorten
from coterie.playing.policy_http import Request, RequestError, WebSocket, close_gently, read_request, send_response
from coterie.playing.server import LISTEN_ERRORS, LOOPBACK, listen_error, names_server

MAX_REQUESTS = 128
"""Maximum number of connections without a web socket. One more closes the oldest, so that idle ones block no others."""
MAX_WEB_SOCKETS = 64
"""Maximum number of web sockets."""
_BACKLOG = 1024
"""Maximum number of connections that wait to be accepted."""
_POLL_SECONDS = 0.1


class PolicyServer:
    """Listens from construction until it is closed, with one thread per connection.

    Args:
        player: The player, which connections act with copies of.
        host, port: Address; port 0 selects a free port.
        token: Password of clients; None for none, which only loopback addresses may have.

    Attributes:
        port: Port that it listens on.

    Raises:
        UserError: If it cannot listen.
    """

    def __init__(self, player: Player, host: str, port: int, token: str | None):
        self._player, self._host, self.token = player, host, token
        self._stopped, self._running, self._lock = threading.Event(), threading.Lock(), threading.Lock()
        self._requests: dict[threading.Thread, socket.socket] = {}
        self._web_sockets: dict[threading.Thread, socket.socket] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.getaddrinfo(host, port, family)  # create_server leaves a socket open if this raises no OSError
            self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except LISTEN_ERRORS as error:
            raise listen_error(host, port, error) from error
        self._listener.settimeout(_POLL_SECONDS)
        self.port: int = self._listener.getsockname()[1]

    @property
    def address(self) -> str:
        """Host and port, as URLs have them."""
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    @property
    def url(self) -> str:
        """URL of the web socket."""
        return f"ws://{self.address}/act"

    def run(self) -> None:
        """Serves until `close` is called from another thread, or the process is interrupted."""
        with self._running:
            while not self._stopped.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:  # too many open files, or the client has already left
                    self._stopped.wait(_POLL_SECONDS)
                    continue
                self._start(connection)

    def close(self) -> None:
        """Stops listening and ends all connections."""
        self._stopped.set()
        with self._running:
            self._listener.close()
        with self._lock:
            threads = self._requests | self._web_sockets
        for connection in threads.values():
            _end_reading(connection)
        deadline = time.monotonic() + 5
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))

    def _start(self, connection: socket.socket) -> None:
        """Starts the thread of a connection, and ends the oldest connection if there are too many.

        The oldest is still answered if its request has arrived.
        """
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        with self._lock:
            self._requests[thread] = connection
            if len(self._requests) > MAX_REQUESTS:
                _end_reading(self._requests.pop(next(iter(self._requests))))
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        """Answers a connection and ends it, whatever the client does."""
        try:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                self._respond(connection)
        finally:
            close_gently(connection)
            with self._lock:
                self._requests.pop(threading.current_thread(), None)
                self._web_sockets.pop(threading.current_thread(), None)

    def _respond(self, connection: socket.socket) -> None:
        try:
            request = read_request(connection)
            if request is None:
                return
            self._check(request)
            if request.path == "/policy":
                _send_json(connection, 200, [policy.info for policy in self._player.policies])
            elif request.method == "POST":
                found = answer_once(self._player.another(), request.body)
                _send_json(connection, 400 if "error" in found else 200, found)
            else:
                self._count_web_socket(connection)
                web_socket, player = WebSocket(connection, request.head), self._player.another()
                for message in web_socket.messages():
                    web_socket.send(json.dumps(answer(player, message)))
        except RequestError as error:
            send_response(connection, error.status, f"{error}\n".encode())

    def _count_web_socket(self, connection: socket.socket) -> None:
        """Counts the connection of this thread as a web socket. RequestError if there are too many."""
        with self._lock:
            if len(self._web_sockets) >= MAX_WEB_SOCKETS:
                raise RequestError(503, f"{MAX_WEB_SOCKETS} web sockets are open: close one, or send POST /act")
            self._requests.pop(threading.current_thread(), None)
            self._web_sockets[threading.current_thread()] = connection

    def _check(self, request: Request) -> None:
        """Raises RequestError if a request is not allowed or there is nothing at its path."""
        hosts, origins = request.all("Host"), request.all("Origin")
        if len(hosts) != 1 or not names_server(hosts[0], self._host, self.port):
            raise RequestError(421, "unknown host: use the address that coterie printed")
        if not self._is_allowed(request.all("Authorization"), request.query.get("token", [])):
            raise RequestError(401, "wrong or missing token: send Authorization: Bearer TOKEN")
        if self.token is None and origins and origins != [f"http://{hosts[0]}"]:
            raise RequestError(403, "pages of other origins need a token: start with --token")
        if request.path not in ("/act", "/policy"):
            raise RequestError(404, "not found: there are /act and /policy")
        if request.method == "POST" and request.path == "/policy":
            raise RequestError(405, "method POST: /policy has GET alone")
        if request.method == "POST":
            _check_content(request)

    def _is_allowed(self, headers: list[str], queries: list[str]) -> bool:
        if self.token is None:
            return True
        given = [header[7:] for header in headers if header[:7].lower() == "bearer "] + queries
        encoded = [text.encode(errors="backslashreplace") for text in (*given, self.token)]
        return len(given) == 1 and hmac.compare_digest(encoded[0], encoded[1])


def answer(player: Player, message: str | bytes) -> dict[str, Any]:
    """Returns the answer to a message on a web socket: `actions`, `reset` or `error`."""

    def act(request: dict[str, Any]) -> dict[str, Any]:
        if len({"reset", "obs"} & request.keys()) != 1:
            raise ValueError("expected an object with obs, or with reset")
        if "reset" in request:
            player.reset(_seed(request))
            return {"reset": True}
        return {"actions": _plain(player.act(request["obs"], request.get("action_mask")))}

    return _answer(act, message, ("reset", "seed", "obs", "action_mask"))


def answer_once(player: Player, body: bytes) -> dict[str, Any]:
    """Returns the answer to `POST /act`: `actions`, with `hidden_state` if there is one, or `error`."""

    def act(request: dict[str, Any]) -> dict[str, Any]:
        if "obs" not in request:
            raise ValueError("expected an object with obs")
        player.reset(_seed(request))
        player.set_hidden_state(request.get("hidden_state") or {})
        actions = _plain(player.act(request["obs"], request.get("action_mask")))
        hidden_state = _plain(player.hidden_state())
        return {"actions": actions, "hidden_state": hidden_state} if hidden_state else {"actions": actions}

    return _answer(act, body, ("obs", "action_mask", "hidden_state", "seed"))


def _answer(
    act: Callable[[dict[str, Any]], dict[str, Any]], message: str | bytes, keys: tuple[str, ...]
) -> dict[str, Any]:
    """Calls `act` with the object of a message and returns its result, or {"error": ...}."""
    try:
        request = strict_json.parse(message)
        if not isinstance(request, dict):
            raise ValueError("expected an object with obs")
        unknown = request.keys() - set(keys)
        if unknown:
            raise ValueError(
                f"unknown key '{shorten(min(unknown), 30)}': expected {', '.join(keys[:-1])} or {keys[-1]}"
            )
        return act(request)
    except ValueError as error:  # also PolicyError
        return {"error": shorten(str(error), 300)}
    except (KeyError, TypeError, AttributeError):
        return {"error": "obs: expected arrays by agent or by role"}


def _seed(request: dict[str, Any]) -> int | None:
    seed = request.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ValueError("seed: expected an integer of at least 0")
    return seed


def _check_content(request: Request) -> None:
    """Raises RequestError if the headers name another content than JSON in UTF-8."""
    for value in request.all("Content-Type"):
        kind, _, parameters = value.lower().replace(" ", "").partition(";")
        if kind != "application/json" or parameters not in ("", "charset=utf-8", 'charset="utf-8"'):
            raise RequestError(415, f"Content-Type {shorten(value, 60)!r}: send application/json")
    for value in request.all("Content-Encoding"):
        if value.strip().lower() != "identity":
            raise RequestError(415, f"Content-Encoding {shorten(value, 60)!r}: send the body without encoding")


def _end_reading(connection: socket.socket) -> None:
    """Lets the thread of a connection read its end, after what has already arrived."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)


def _send_json(connection: socket.socket, status: int, value: Any) -> None:
    send_response(connection, status, json.dumps(value).encode(), "application/json")


def _plain(value: Any) -> Any:
    """Actions as JSON has them."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@contextmanager
def serving(export: Path, mode: str, host: str, port: int, *, token: str | None) -> Iterator[PolicyServer]:
    """Context with a server of an export. Addresses that other machines reach get a token if none is given.

    Raises:
        UserError: If the export is damaged, the token is empty, or the server cannot listen.
    """
    if token is not None and not token.strip():
        raise UserError("--token '': an empty password protects nothing. Leave --token out to get a new one.")
    try:
        player = Player(export, mode=mode)
    except PolicyError as error:
        raise UserError(str(error)) from error
    if token is None and host not in LOOPBACK:
        token = secrets.token_urlsafe(16)
    server = PolicyServer(player, host, port, token)
    try:
        yield server
    finally:
        server.close()
