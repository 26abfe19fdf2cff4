"""An exported team behind a web socket, for programs without an ONNX runtime or NumPy.

Every connection to `/act` is a player of its own. Messages are JSON objects:

    {"reset": true, "seed": 3}                 starts an episode; answered by {"reset": true}
    {"obs": {...}, "action_mask": {...}}       answered by {"actions": {...}}; the mask may be missing

Mistakes are answered by {"error": "..."}, and the connection stays open. `GET /policy` returns the content of every
team's `policy.json`.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from coterie.commands.export.portable.player import Player
from coterie.commands.export.portable.policy_files import PolicyError
from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.playing.server import LOOPBACK, build_response, names_server

MAX_MESSAGE = 1 << 20
"""Maximum size of an incoming message in bytes."""
MAX_CONNECTIONS = 64


class PolicyServer:
    """Listens from construction until it is closed.

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
        from websockets.sync.server import serve

        self._player, self._host, self.token = player, host, token
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            self._server = serve(
                self._handle,
                host,
                port,
                process_request=self._respond,
                max_size=MAX_MESSAGE,
                compression=None,
                server_header=None,
            )
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port} ({error.strerror}). Choose another --port.") from error
        self.port: int = self._server.socket.getsockname()[1]

    @property
    def url(self) -> str:
        """URL of the web socket."""
        return f"ws://[{self._host}]:{self.port}/act" if ":" in self._host else f"ws://{self._host}:{self.port}/act"

    def run(self) -> None:
        """Serves until `close` is called from another thread, or the process is interrupted."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()

    def _respond(self, connection: Any, request: Any) -> Any:
        """Response to a request; None opens a web socket."""
        hosts, path = request.headers.get_all("Host"), urlsplit(request.path)
        if len(hosts) != 1 or not names_server(hosts[0], self._host, self.port):
            return build_response(connection, 421, b"unknown host: use the address that coterie printed\n")
        if not self._is_allowed(request.headers.get_all("Authorization"), parse_qs(path.query).get("token", [])):
            return build_response(connection, 401, b"wrong or missing token: send Authorization: Bearer TOKEN\n")
        origins = request.headers.get_all("Origin")
        if self.token is None and origins and origins != [f"http://{hosts[0]}"]:
            return build_response(connection, 403, b"pages of other origins need a token: start with --token\n")
        if path.path == "/policy":
            body = json.dumps([policy.info for policy in self._player.policies]).encode()
            return build_response(connection, 200, body, "application/json")
        if path.path != "/act":
            return build_response(connection, 404, b"not found: there are /act and /policy\n")
        return None

    def _is_allowed(self, headers: list[str], queries: list[str]) -> bool:
        if self.token is None:
            return True
        given = [header.removeprefix("Bearer ") for header in headers] + queries
        return len(given) == 1 and hmac.compare_digest(given[0].encode(), self.token.encode())

    def _handle(self, connection: Any) -> None:
        """Answers the messages of one connection until it ends, in whatever way."""
        from websockets.exceptions import ConnectionClosed

        if not self._places.acquire(blocking=False):
            connection.close(1013, "too many connections")
            return
        try:
            player = self._player.another()
            with suppress(ConnectionClosed):  # clients may be killed
                for message in connection:
                    connection.send(json.dumps(answer(player, message)))
        finally:
            self._places.release()


def answer(player: Player, message: str | bytes) -> dict[str, Any]:
    """Returns the answer to a message: `actions`, `reset` or `error`."""
    try:
        request = strict_json.parse(message)
        if not isinstance(request, dict) or len({"reset", "obs"} & request.keys()) != 1:
            return {"error": "expected an object with obs, or with reset"}
        unknown = request.keys() - {"reset", "seed", "obs", "action_mask"}
        if unknown:
            return {"error": f"unknown key '{min(unknown)[:30]}': expected reset, seed, obs or action_mask"}
        if "reset" in request:
            seed = request.get("seed")
            if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
                return {"error": "seed: expected an integer of at least 0"}
            player.reset(seed)
            return {"reset": True}
        return {"actions": _plain(player.act(request["obs"], request.get("action_mask")))}
    except (PolicyError, ValueError) as error:
        return {"error": str(error)[:300]}
    except (KeyError, TypeError, AttributeError):
        return {"error": "obs: expected arrays by agent or by role"}


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
