"""The server of exported teams: messages, limits, tokens, hosts and origins, and the example clients."""

from __future__ import annotations

import http.client
import json
import os
import re
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.export.portable.player import Player
from coterie.playing import policy_server
from coterie.playing import server as web_server
from coterie.playing.policy_server import serve_policy
from coterie.playing.server import MAX_BODY, MAX_HEAD, Server
from places import ROOT
from tinyruns import Process, train


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    train(folder / "run", "env=particle/simple_spread", "algo=mappo", "algo.rnn=gru")
    assert main(["export", str(folder / "run"), "--format", "numpy", "--out", str(folder / "out")]) == 0
    return folder / "out"


def running(
    export: Path, token: str | None = None, host: str = "127.0.0.1", mode: str = "greedy", **options: Any
) -> Server:
    return serve_policy(export, mode, host, 0, token=token, **options)


@pytest.fixture(scope="module")
def served(export: Path) -> Iterator[Server]:
    """A server for tests that change nothing about it."""
    with running(export) as server:
        yield server


def url_of(server: Server) -> str:
    return f"ws://{server.address}/act"


def ask(socket: Any, request: Any) -> Any:
    socket.send(request if isinstance(request, str) else json.dumps(request))
    return json.loads(socket.recv(timeout=10))


def requested(server: Server, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body of the answer to a request of a new connection."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


def get(server: Server, path: str, **headers: str) -> tuple[int, bytes]:
    return requested(server, "GET", path, None, headers)


def post(server: Server, body: Any, **headers: str) -> tuple[int, Any]:
    status, found = requested(server, "POST", "/act", body if isinstance(body, str) else json.dumps(body), headers)
    return status, json.loads(found)


def post_status(server: Server, **headers: str) -> int:
    return post(server, {"obs": observations(0)}, **headers)[0]


def observations(seed: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {f"agent_{i}": rng.normal(size=18).tolist() for i in range(3)}


def test_every_connection_is_a_player_of_its_own(export: Path, served: Server):
    own = Player(export, mode="greedy")
    with connect(url_of(served)) as one, connect(url_of(served)) as other:
        for step in range(5):
            expected = own.act(observations(step))
            assert ask(one, {"obs": observations(step)}) == {"actions": expected}
            assert "actions" in ask(other, {"obs": observations(step + 100)})
        assert ask(one, {"reset": True, "seed": 1}) == {"reset": True}
        own.reset()
        assert ask(one, {"obs": observations(9)}) == {"actions": own.act(observations(9))}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("not json", "Expecting value"),
        ("[]", "expected an object"),
        ('{"obs": {}, "code": 1}', "unknown key 'code'"),
        ('{"reset": true, "seed": -1}', "seed"),
        ('{"reset": true, "seed": true}', "seed"),
        ('{"obs": 3}', "pass a dict by agent"),
        ('{"obs": ' + "[" * 200 + "]" * 200 + "}", "nested"),
    ],
)
def test_mistakes_are_answered(export: Path, message: str, error: str):
    assert error in policy_server.answer(Player(export), message)["error"]


def exchange(connection: Any, message: Any) -> Any:
    connection.send(message)
    return connection.recv(timeout=10)


@pytest.mark.parametrize("large", [" " * (MAX_BODY + 1), [" " * (MAX_BODY // 2 + 1)] * 2], ids=["one", "two"])
def test_mistakes_and_large_messages_end_no_other_connection(export: Path, large: Any):
    with running(export) as server, connect(url_of(server)) as one:
        with connect(url_of(server)) as other:
            assert "error" in ask(other, "[")
            assert "actions" in ask(other, {"obs": observations(0)})
            with pytest.raises(ConnectionClosed):
                exchange(other, large)  # possibly closed before the second part is sent
        assert "actions" in ask(one, {"obs": observations(0)})


def test_an_empty_token_is_refused(export: Path):
    with pytest.raises(UserError, match="an empty password"):
        running(export, host="0.0.0.0", token=" ")


def raw(server: Server, content: bytes = b"") -> socket.socket:
    """A connection that has sent some bytes."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(content.replace(b"PORT", str(server.port).encode()))
    return connection


def received(connection: socket.socket) -> bytes:
    """Everything that the server sends until it ends the connection."""
    found = b""
    while part := connection.recv(1 << 16):
        found += part
    return found


def head(server: Server, method: str, path: str, *lines: str) -> bytes:
    """A request line and headers, of the last request of its connection unless a line says otherwise."""
    if not any(line.startswith("Connection:") for line in lines):
        lines = ("Connection: close", *lines)
    text = "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *lines, "", ""])
    return text.encode()


def opened_by_hand(server: Server) -> socket.socket:
    """A web socket of a client that answers nothing."""
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    connection = raw(server, head(server, "GET", "/act", *upgrade, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return connection


IDLE = [
    b"",
    b"GET /act HTTP/1.1\r\nHost: ",
    b"POST /act HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 99\r\n\r\n{",
]
"""What connections send that never end their request."""


def test_idle_connections_block_no_others(export: Path, monkeypatch: pytest.MonkeyPatch):
    number = web_server.MAX_REQUESTS + 50
    monkeypatch.setattr(web_server, "REQUEST_SECONDS", 1000.0)  # none ends by itself
    with running(export) as server, ExitStack() as idle, connect(url_of(server)) as early:
        connections = [idle.enter_context(raw(server, IDLE[i % len(IDLE)])) for i in range(number)]
        for _ in range(3):
            assert post_status(server) == 200
            assert get(server, "/policy")[0] == 200
            with connect(url_of(server)) as late:
                assert "actions" in ask(late, {"obs": observations(0)})
            assert "actions" in ask(early, {"obs": observations(0)})
        with selectors.DefaultSelector() as selector:
            for connection in connections:
                selector.register(connection, selectors.EVENT_READ)
            ended = selector.select(0)  # nothing was sent to them
        assert 50 <= len(ended) <= 56


def test_a_connection_that_arrives_byte_by_byte_is_ended(export: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web_server, "REQUEST_SECONDS", 0.3)
    with running(export) as server, raw(server, b"GET /") as slow:
        slow.settimeout(0.05)
        answer = b""
        while not answer:
            with suppress(TimeoutError):
                slow.sendall(b"X")
                answer = slow.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 408")


def test_too_many_web_sockets_are_refused_and_http_still_answers(export: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy_server, "MAX_WEB_SOCKETS", 2)
    with running(export) as server, connect(url_of(server)) as one:
        with opened_by_hand(server):
            with pytest.raises(InvalidStatus, match="503"):
                connect(url_of(server))
            assert post_status(server) == 200
            assert "reset" in ask(one, {"reset": True})
        reset = None
        while reset is None:  # until the thread of the closed one has ended
            with suppress(InvalidStatus), connect(url_of(server)) as other:
                reset = ask(other, {"reset": True})
        assert reset == {"reset": True}


def test_requests_that_never_end_are_ended(export: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web_server, "REQUEST_SECONDS", 0.2)
    with running(export) as server:
        for content in IDLE:
            with raw(server, content) as slow:
                assert received(slow).startswith(b"HTTP/1.1 408")


def test_web_sockets_without_complete_frames_are_ended(export: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web_server, "PING_SECONDS", 0.1)
    with running(export) as server:
        for content in (b"", b"\x81\xfe\x10\x00abcd"):
            with opened_by_hand(server) as silent:
                silent.sendall(content)
                frames = received(silent)
            assert frames[:2] == b"\x89\x04"  # a ping
            assert b"keepalive ping timeout" in frames
        with connect(url_of(server)) as other:
            received_pings = 0
            while received_pings < 3:  # this client answers
                received_pings += other.ping().wait(10)
                time.sleep(0.1)
            assert "actions" in ask(other, {"obs": observations(0)})


REFUSED = [
    ("PUT", "/act", (), b"", 405),
    ("POST", "/act", (), b"", 400),
    ("POST", "/act", ("Content-Length: 1", "Content-Length: 2"), b"", 400),
    ("POST", "/act", ("Content-Length: 1", "Transfer-Encoding: chunked"), b"", 400),
    ("POST", "/act", (f"Content-Length: {MAX_BODY + 1}",), b" " * (MAX_BODY + 1), 413),
    ("POST", "/act", ("Transfer-Encoding: chunked",), b"180000\r\n" + b" " * 0x180000 + b"\r\n0\r\n\r\n", 413),
    ("POST", "/act", ("Content-Length: 1",), b"{}", 400),
    ("GET", "/act", ("X: " + "x" * MAX_HEAD,), b"", 431),
    ("GET", "/act?" + "x" * MAX_HEAD, (), b"", 431),
    ("GET", "//[", (), b"", 404),
    ("GET", "/act", (), b"", 426),
    ("GET", "/../../etc/passwd", (), b"", 404),
    ("CONNECT", "127.0.0.1:1", (), b"", 400),
]


@pytest.mark.parametrize(
    ("method", "path", "lines", "body", "status"), REFUSED, ids=[f"{i}-{case[-1]}" for i, case in enumerate(REFUSED)]
)
def test_requests_are_refused(served: Server, method: str, path: str, lines: tuple[str, ...], body: bytes, status: int):
    with raw(served, head(served, method, path, *lines) + body) as connection:
        answer = received(connection)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert "\n" not in error


def test_a_connection_serves_several_requests(served: Server):
    body = json.dumps({"obs": observations(0)})
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)) as client:
        client.connect()
        sock = client.sock
        for method, path, content, status in (
            ("POST", "/act", body, 200),
            ("GET", "/none", None, 404),
            ("POST", "/act", "[", 400),
            ("POST", "/act", " " * (MAX_BODY + 1), 413),
            ("POST", "/act", iter([body[:9].encode(), body[9:].encode()]), 200),  # chunked
            ("GET", "/policy", None, 200),
        ):
            client.request(method, path, content)
            response = client.getresponse()
            response.read()
            assert (response.status, client.sock) == (status, sock)


def test_active_connections_outlive_idle_ones(export: Path):
    with running(export) as server, ExitStack() as idle:
        client = idle.enter_context(closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)))
        for _ in range(4):
            client.request("GET", "/health")
            assert client.getresponse().read() == b'{"status":"ok"}'
            sock = client.sock
            for _ in range(web_server.MAX_REQUESTS // 2):
                idle.enter_context(raw(server))
        assert client.sock is sock


def test_connections_without_a_request_are_closed(export: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web_server, "IDLE_SECONDS", 0.1)
    with running(export) as server, raw(server, head(server, "GET", "/health", "Connection: keep-alive")) as client:
        assert received(client).endswith(b'{"status":"ok"}')


def test_heads_that_never_end_are_refused(served: Server):
    with raw(served, b"GET /health HTTP/1.1\r\n") as client:
        with suppress(ConnectionError):
            for _ in range(2 * MAX_BODY // 1000):
                client.sendall(b"X: " + b"x" * 995 + b"\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 431")


def test_a_client_that_leaves_before_its_answer_leaves_no_message(export: Path, capfd: pytest.CaptureFixture[str]):
    with running(export) as server:
        for content in IDLE:
            raw(server, content).close()
        with opened_by_hand(server) as client:
            client.sendall(b"\x81\x83\0\0\0\0\xff\xff\xff")  # no UTF-8
        assert post_status(server) == 200
    assert capfd.readouterr().err == ""


def test_an_error_of_the_server_is_one_line(
    export: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def fail(*_: Any) -> Any:
        raise OSError("a\nb")

    monkeypatch.setattr(policy_server, "answer_once", fail)
    monkeypatch.setattr(policy_server, "answer", fail)
    with running(export) as server:
        assert post(server, {}) == (500, {"error": "internal error: OSError"})
        with connect(url_of(server)) as web_socket, pytest.raises(ConnectionClosed):
            ask(web_socket, {"reset": True})
    errors = capfd.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all("internal error at /act: OSError: a" in line for line in errors)


def test_pages_of_allowed_origins_may_send_requests(export: Path):
    page = {"Origin": "https://example.com"}
    preflight = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with running(export, allow_origins=["https://example.com"]) as server:
        for origin, allowed in (("https://example.com", "https://example.com"), ("https://evil.example", None)):
            for method, headers in (("OPTIONS", preflight), ("POST", page)):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
                connection.request(method, "/act", json.dumps({"obs": observations(0)}), headers | {"Origin": origin})
                response = connection.getresponse()
                response.read()
                assert response.getheader("Access-Control-Allow-Origin") == allowed
                assert (response.status == 200) == (allowed is not None)
                connection.close()
        with connect(url_of(server), origin="https://example.com") as web_socket:  # pyright: ignore[reportArgumentType]
            assert "reset" in ask(web_socket, {"reset": True})
        with pytest.raises(InvalidStatus, match="403"):
            connect(url_of(server), origin="https://evil.example")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("origin", ["*", "https://example.com/", "https://["])
def test_an_origin_that_is_none_is_a_one_line_error(export: Path, origin: str):
    with pytest.raises(UserError, match=r"^--allow-origin .*: not an origin\. .*https://example\.com"):
        running(export, allow_origins=[origin])


def test_health_needs_no_token_and_an_own_host_name(export: Path):
    with running(export, token="secret") as server:
        assert get(server, "/health") == (200, b'{"status":"ok"}')
        assert get(server, "/health", Host="evil.example")[0] == 421


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(export: Path, tmp_path: Path):
    """Also with an open web socket and an unfinished request. A second command cannot have its port. Ctrl-C ends the
    same server in `test_watch.py`.
    """
    process = Process(tmp_path, "serve", export, "--mode", "greedy")
    process.wait_for(lambda: process.written().endswith("\n"))
    line = process.written()
    found = re.fullmatch(
        r"Serving at (ws://127\.0\.0\.1:(\d+)/act) and http://\S+/act\. Press Ctrl-C to stop\.\n", line
    )
    assert found, line
    port = int(found[2])
    with connect(found[1]) as web_socket, socket.create_connection(("127.0.0.1", port)) as unfinished:
        unfinished.sendall(IDLE[2].replace(b"PORT", found[2].encode()))
        assert "actions" in ask(web_socket, {"obs": observations(0)})
        assert main(["serve", str(export), "--port", found[2]]) == 2
        process.signal(signal.SIGTERM)
        assert process.end() == (0, line)


def test_hidden_states_are_inputs_and_outputs_over_http(export: Path):
    own, state = Player(export, mode="greedy"), None
    with running(export) as server:
        for step in range(6):
            obs = observations(step)
            if step in (2, 3):
                del obs["agent_1"]
            status, found = post(server, {"obs": obs} | ({} if state is None else {"hidden_state": state}))
            assert (status, found["actions"]) == (200, own.act(obs))
            state = found["hidden_state"]
            assert set(state) == set(obs)
            assert len(state["agent_0"]["h"]) == own.policies[0].inputs["hidden.h"]["shape"][-1]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("{}", "expected an object with obs"),
        ({"obs": {}, "reset": True}, "unknown key 'reset'"),
        ({"obs": observations(0), "seed": "x"}, "seed"),
        ({"obs": observations(0), "hidden_state": {"agent_9": {}}}, "no agent 'agent_9'"),
        ({"obs": observations(0), "hidden_state": {"agent_0": {}}}, "lacks 'h'"),
        ({"obs": observations(0), "hidden_state": {"agent_0": {"h": [1]}}}, "has shape [1]"),
        ({"obs": observations(0), "hidden_state": [1]}, "pass a dict by agent"),
    ],
)
def test_mistakes_over_http_have_status_400(served: Server, body: Any, error: str):
    status, found = post(served, body)
    assert status == 400
    assert error in found["error"]


HOSTILE = [
    ('["1.5"' + ", 0" * 17 + "]", "obs of 'agent_0' holds '1.5' at index [0]"),
    ("[true" + ", 0" * 17 + "]", "obs of 'agent_0' holds True at index [0]"),
    ("[0, null" + ", 0" * 16 + "]", "obs of 'agent_0' holds None at index [1]"),
    ("[1e300" + ", 0" * 17 + "]", "obs of 'agent_0' holds 1e+300 at index [0]"),
    ("[[0], [0, 0]" + ", 0" * 16 + "]", "obs of 'agent_0' has lists of several lengths"),
    ("[[" + "0, " * 17 + "0]]", "obs of 'agent_0' has shape [1, 18], expected [18]"),
    ("null", "obs of 'agent_0' is None"),
    ('"left"', "obs of 'agent_0' is 'left'"),
    ("{}", "obs of 'agent_0' is a dict with no keys, expected numbers of shape [18]"),
    ('{"camera": [0]}', "obs of 'agent_0' is a dict with 'camera', expected numbers"),
    ("[NaN" + ", 0" * 17 + "]", "NaN is not JSON"),
    ("[-Infinity" + ", 0" * 17 + "]", "-Infinity is not JSON"),
    ("[1e999" + ", 0" * 17 + "]", "the number 1e999 is too large"),
    ("[1" + "0" * 400 + ", 0" * 17 + "]", "has more than 64 bits"),
    ("[0], " + '"agent_0": [0]', "the key 'agent_0' is given twice"),
    ("[0], " + '"agent_7": [0]', "no agent or role 'agent_7'"),
    ('[0], "agent": 1', "obs of role 'agent': of type int, expected 3 agents"),
]


def test_observations_that_are_no_numbers_of_the_space_are_refused(served: Server):
    """Over HTTP with status 400, and on a web socket, which stays open."""
    with connect(url_of(served)) as web_socket:
        for value, error in HOSTILE:
            body = f'{{"obs": {{"agent_0": {value}}}}}'
            status, found = post(served, body)
            assert (status, list(found)) == (400, ["error"])
            assert error in found["error"]
            assert "\n" not in found["error"]
            assert ask(web_socket, body) == found
        assert "actions" in ask(web_socket, {"obs": {"agent_0": [0, 1.5, -3, 1e10] + [0] * 14}})


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Content-Type: Application/JSON; charset=UTF-8", 200),
        ("Content-Encoding: identity", 200),
        ("Content-Type: application/json; charset=utf-16", 415),
        ("Content-Type: text/plain", 415),
        ("Content-Type: application/json\r\nContent-Type: text/html", 415),
        ("Content-Type: \xff", 415),
        ("Content-Encoding: gzip", 415),
    ],
)
def test_bodies_are_json(served: Server, line: str, status: int):
    body = json.dumps({"obs": observations(0)}).encode()
    content = head(served, "POST", "/act", f"Content-Length: {len(body)}", "LINE").replace(b"LINE", line.encode())
    with raw(served, content + body) as connection:
        answer = received(connection)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert status == 200 or list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


def test_sampled_actions_of_connections_differ_unless_they_give_the_same_seed(export: Path):
    def sampled(socket: Any) -> list[Any]:
        return [ask(socket, {"obs": observations(0)}) for _ in range(20)]

    with running(export, mode="sample") as server, connect(url_of(server)) as one, connect(url_of(server)) as other:
        assert sampled(one) != sampled(other)
        for client in (one, other):
            assert ask(client, {"reset": True, "seed": 3}) == {"reset": True}
        assert sampled(one) == sampled(other)
        seeded = [post(server, {"obs": observations(0), "seed": seed})[1]["actions"] for seed in (1, 1, *range(2, 30))]
        assert seeded[0] == seeded[1]
        free = [post(server, {"obs": observations(0)})[1]["actions"] for _ in range(30)]
        assert len({json.dumps(actions) for actions in seeded}) > 1
        assert len({json.dumps(actions) for actions in free}) > 1


def test_tokens_are_compared_in_constant_time(export: Path, monkeypatch: pytest.MonkeyPatch):
    compared = []
    compare = web_server.hmac.compare_digest
    monkeypatch.setattr(web_server.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    with running(export, token="secret") as server:
        assert post_status(server, Authorization="Bearer wrong") == 401
        assert post_status(server, Authorization="secret") == 401
        assert post_status(server, Authorization="Bearer secret") == 200
        with raw(
            server, head(server, "GET", "/policy").replace(b"Host", b"Authorization: Bearer \xff\xfe\r\nHost")
        ) as odd:
            assert received(odd).startswith(b"HTTP/1.1 401")
    assert compared[:2] == [(b"wrong", b"secret"), (b"secret", b"secret")]


def test_hosts_origins_and_paths_are_checked(served: Server):
    status, body = get(served, "/policy")
    assert (status, json.loads(body)[0]["team"]) == (200, "agent")
    assert get(served, "/policy", Host=f"evil.example:{served.port}")[0] == 421
    assert get(served, "/other") == (404, b'{"error":"not found: there are /act, /policy, /health"}')
    with pytest.raises(InvalidStatus, match="404"):
        connect(f"ws://{served.address}/")
    assert get(served, "/policy", Origin="http://evil.example")[0] == 403
    assert post_status(served, Origin="http://evil.example") == 403
    with pytest.raises(InvalidStatus, match="403"):
        connect(url_of(served), origin="http://evil.example")  # pyright: ignore[reportArgumentType]


def test_a_token_is_required_where_there_is_one(export: Path):
    with running(export, token="secret") as server:
        for wrong in (
            {},
            {"Authorization": "Bearer secre"},
            {"Authorization": "Bearer sécret".encode().decode("latin-1")},
        ):
            with pytest.raises(InvalidStatus, match="401"):
                connect(url_of(server), additional_headers=wrong)
        with connect(url_of(server), additional_headers={"Authorization": "Bearer secret"}) as socket:
            assert "reset" in ask(socket, {"reset": True})
        with connect(f"{url_of(server)}?token=secret") as socket:
            assert "reset" in ask(socket, {"reset": True})


def test_other_addresses_always_have_a_token(export: Path):
    with running(export, host="0.0.0.0") as server:
        assert server.token is not None
        assert len(server.token) >= 20
        assert get(server, "/policy")[0] == 401
        assert get(server, f"/policy?token={server.token}")[0] == 200


def test_the_python_client_acts(export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    expected = Player(export, mode="greedy").act({f"agent_{i}": [0.1 * i] * 18 for i in range(3)})
    with running(export) as server:
        monkeypatch.setattr(sys, "argv", ["policy_client.py", url_of(server)])
        runpy.run_path(str(ROOT / "examples" / "policy_client.py"), run_name="__main__")
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.skipif(shutil.which("node") is None and "CI" not in os.environ, reason="needs Node.js")
@pytest.mark.parametrize("has_web_sockets", [True, False])
def test_the_javascript_client_acts(export: Path, tmp_path: Path, has_web_sockets: bool):
    """Without web sockets, as in Node.js 18 and 20, it uses HTTP."""
    expected = Player(export, mode="greedy").act({f"agent_{i}": [0.1 * i] * 18 for i in range(3)})
    client = (ROOT / "examples" / "policy_client.mjs").read_text()
    version = int(subprocess.check_output(["node", "--version"], text=True)[1:].split(".")[0])
    if has_web_sockets and version < 20:
        pytest.skip("Node.js 18 has no web sockets")
    (tmp_path / "client.mjs").write_text(client if has_web_sockets else f"delete globalThis.WebSocket;\n{client}")
    options = ["--experimental-websocket"] if has_web_sockets and version < 22 else []
    with running(export) as server:
        command = ["node", *options, str(tmp_path / "client.mjs"), url_of(server)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
