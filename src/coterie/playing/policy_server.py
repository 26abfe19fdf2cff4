"""An exported team over HTTP and on web sockets, for programs without an ONNX runtime or NumPy.

Every web socket at `/act` is a player of its own. Messages are JSON objects:

    {"reset": true, "seed": 3}                 starts an episode; answered by {"reset": true}
    {"obs": {...}, "action_mask": {...}}       answered by {"actions": {...}}; the mask may be missing

Mistakes are answered by {"error": "..."}, and the connection stays open.

`POST /act` takes one object with obs and keeps nothing: hidden states of recurrent policies are returned as
`hidden_state`, which the next request passes on. `GET /policy` returns the content of every team's `policy.json`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.terminal import print_message
from coterie.core.text import shorten
from coterie.export.portable.player import Player
from coterie.export.portable.policy_files import PolicyError
from coterie.playing.server import LOOPBACK, MAX_BODY, Server, error_response, read_body

_SHORT_MESSAGE = 1 << 14
"""Size of messages whose answers take about as long as passing them to another thread."""
MAX_WEB_SOCKETS = 64
"""Maximum number of web sockets."""


def serve_policy(
    export: Path, mode: str, host: str, port: int, *, token: str | None = None, allow_origins: Sequence[str] = ()
) -> Server:
    """Returns a running server of an export. Addresses that other machines reach get a token if none is given.

    Raises:
        UserError: If the export is damaged, the token is empty, an origin is none, or the server cannot listen.
    """
    if token is not None and not token.strip():
        raise UserError("--token '': an empty password protects nothing. Leave --token out to get a new one.")
    for origin in allow_origins:
        _check_origin(origin)
    try:
        player = Player(export, mode=mode)
    except PolicyError as error:
        raise UserError(str(error)) from error
    for policy in player.policies:
        if policy.info.get("centralized"):
            print_message(
                f"team {policy.info['team']}: its agents act by what others observe, so that each request needs the "
                "observations of all of them"
            )
    if token is None and host not in LOOPBACK:
        token = secrets.token_urlsafe(16)
    routes = policy_routes(player)
    return Server(routes, host, port, max_message=MAX_BODY, token=token, allow_origins=allow_origins)


def _check_origin(origin: str) -> None:
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and parts.netloc and origin == f"{parts.scheme}://{parts.netloc}"
    except ValueError:
        is_origin = False
    if not is_origin:
        raise UserError(
            f"--allow-origin {shorten(origin)}: not an origin. Pass one such as https://example.com, without a path."
        )


def policy_routes(player: Player) -> list[BaseRoute]:
    """Routes of a player, which requests and web sockets act with copies of."""
    web_sockets: set[WebSocket] = set()

    async def act(request: Request) -> Response:
        if request.method != "POST":
            raise HTTPException(426, "GET /act opens a web socket: without one, send POST /act")
        _check_content(request)
        found = await _answer_in_time(answer_once, player, await read_body(request))
        return _json(found, 400 if "error" in found else 200)

    async def act_on_web_socket(web_socket: WebSocket) -> None:
        if len(web_sockets) >= MAX_WEB_SOCKETS:
            message = f"{MAX_WEB_SOCKETS} web sockets are open: close one, or send POST /act"
            await web_socket.send_denial_response(error_response(503, message))
            return
        web_sockets.add(web_socket)
        try:
            await web_socket.accept()
            await _act_until_closed(player.another(), web_socket)
        finally:
            web_sockets.discard(web_socket)

    async def policy(request: Request) -> Response:
        return _json([policy.info for policy in player.policies])

    return [
        Route("/act", act, methods=["GET", "POST"]),
        WebSocketRoute("/act", act_on_web_socket),
        Route("/policy", policy),
    ]


async def _act_until_closed(player: Player, web_socket: WebSocket) -> None:
    """Answers the messages of a web socket."""
    while (message := await web_socket.receive())["type"] == "websocket.receive":
        text = message.get("text")
        found = await _answer_in_time(answer, player, message["bytes"] if text is None else text)
        await web_socket.send_text(json.dumps(found))


async def _answer_in_time(
    function: Callable[[Player, Any], dict[str, Any]], player: Player, content: str | bytes
) -> dict[str, Any]:
    """Answers short messages at once, and long ones in another thread, so that other clients do not wait for them."""
    if len(content) <= _SHORT_MESSAGE:
        return function(player, content)
    return await run_in_threadpool(function, player, content)


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")


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
    """Returns the answer of a new player to `POST /act`: `actions`, with `hidden_state` if there is one, or `error`."""

    def act(request: dict[str, Any]) -> dict[str, Any]:
        if "obs" not in request:
            raise ValueError("expected an object with obs")
        own = player.another(_seed(request))
        if request.get("hidden_state"):
            own.set_hidden_state(request["hidden_state"])
        actions = _plain(own.act(request["obs"], request.get("action_mask")))
        hidden_state = _plain(own.hidden_state())
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
    """Raises HTTPException if the headers name another content than JSON in UTF-8."""
    for value in request.headers.getlist("Content-Type"):
        kind, _, parameters = value.lower().replace(" ", "").partition(";")
        if kind != "application/json" or parameters not in ("", "charset=utf-8", 'charset="utf-8"'):
            raise HTTPException(415, f"Content-Type {shorten(value, 60)!r}: send application/json")
    for value in request.headers.getlist("Content-Encoding"):
        if value.strip().lower() != "identity":
            raise HTTPException(415, f"Content-Encoding {shorten(value, 60)!r}: send the body without encoding")


def _plain(value: Any) -> Any:
    """Actions as JSON has them."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
