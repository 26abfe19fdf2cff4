"""The server of exported teams: messages, limits, tokens, hosts and origins, and the example clients."""

from __future__ import annotations

import http.client
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from coterie.__main__ import main
from coterie.commands.export.portable.player import Player
from coterie.core.errors import UserError
from coterie.playing import policy_server
from coterie.playing.policy_server import MAX_MESSAGE, PolicyServer, serving
from places import ROOT
from tinyruns import train


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    train(folder / "run", "env=particle/simple_spread", "algo=mappo", "algo.rnn=gru")
    assert main(["export", str(folder / "run"), "--format", "numpy", "--out", str(folder / "out")]) == 0
    return folder / "out"


@contextmanager
def running(export: Path, token: str | None = None, host: str = "127.0.0.1") -> Iterator[PolicyServer]:
    with serving(export, "greedy", host, 0, token=token) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        yield server
    thread.join(10)
    assert not thread.is_alive()


def ask(socket: Any, request: Any) -> Any:
    socket.send(request if isinstance(request, str) else json.dumps(request))
    return json.loads(socket.recv(timeout=10))


def observations(seed: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {f"agent_{i}": rng.normal(size=18).tolist() for i in range(3)}


def test_every_connection_is_a_player_of_its_own(export: Path):
    own = Player(export, mode="greedy")
    with running(export) as server, connect(server.url) as one, connect(server.url) as other:
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
        ("{}", "expected an object"),
        ('{"obs": {}, "code": 1}', "unknown key 'code'"),
        ('{"reset": true, "seed": -1}', "seed"),
        ('{"reset": true, "seed": true}', "seed"),
        ('{"obs": {"agent_9": [1]}}', "no agent or role 'agent_9'"),
        ('{"obs": {"agent_0": [1]}}', "has shape [1], expected [18]"),
        ('{"obs": {"agent_0": NaN}}', "NaN is not JSON"),
        ('{"obs": 3}', "pass a dict by agent"),
        ('{"obs": ' + "[" * 200 + "]" * 200 + "}", "nested"),
        ('{"obs": {"agent": 3}}', "obs"),
    ],
)
def test_mistakes_are_answered(export: Path, message: str, error: str):
    assert error in policy_server.answer(Player(export), message)["error"]


def test_mistakes_and_large_messages_end_no_other_connection(export: Path):
    with running(export) as server, connect(server.url) as one:
        with connect(server.url) as other:
            assert "error" in ask(other, "[")
            assert "actions" in ask(other, {"obs": observations(0)})
            other.send(" " * (MAX_MESSAGE + 1))
            with pytest.raises(ConnectionClosed):
                other.recv(timeout=10)
        assert "actions" in ask(one, {"obs": observations(0)})


def test_a_client_that_is_killed_leaves_no_traceback(export: Path, caplog: pytest.LogCaptureFixture):
    with running(export) as server:
        with connect(server.url) as killed:
            assert "actions" in ask(killed, {"obs": observations(0)})
            killed.socket.shutdown(socket.SHUT_RDWR)
        with connect(server.url) as other:
            assert "actions" in ask(other, {"obs": observations(0)})
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_an_empty_token_is_refused(export: Path):
    with pytest.raises(UserError, match="an empty password"), serving(export, "greedy", "0.0.0.0", 0, token=" "):
        pass


def test_the_number_of_connections_is_limited(export: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy_server, "MAX_CONNECTIONS", 1)
    with running(export) as server, connect(server.url) as one:
        assert "reset" in ask(one, {"reset": True})
        with connect(server.url) as other, pytest.raises(ConnectionClosed, match="too many connections"):
            other.recv(timeout=10)


def get(server: PolicyServer, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_hosts_origins_and_paths_are_checked(export: Path):
    with running(export) as server:
        status, body = get(server, "/policy")
        assert (status, json.loads(body)[0]["team"]) == (200, "agent")
        assert get(server, "/policy", Host=f"evil.example:{server.port}")[0] == 421
        assert get(server, "/other")[0] == 404
        assert get(server, "/policy", Origin="http://evil.example")[0] == 403
        with pytest.raises(InvalidStatus, match="403"):
            connect(server.url, origin="http://evil.example")  # pyright: ignore[reportArgumentType]


def test_a_token_is_required_where_there_is_one(export: Path):
    with running(export, token="secret") as server:
        for wrong in (
            {},
            {"Authorization": "Bearer secre"},
            {"Authorization": "Bearer sécret".encode().decode("latin-1")},
        ):
            with pytest.raises(InvalidStatus, match="401"):
                connect(server.url, additional_headers=wrong)
        with connect(server.url, additional_headers={"Authorization": "Bearer secret"}) as socket:
            assert "reset" in ask(socket, {"reset": True})
        with connect(f"{server.url}?token=secret") as socket:
            assert "reset" in ask(socket, {"reset": True})


def test_other_addresses_always_have_a_token(export: Path):
    with running(export, host="0.0.0.0") as server:
        assert server.token is not None
        assert len(server.token) >= 20
        assert get(server, "/policy")[0] == 401
        assert get(server, f"/policy?token={server.token}")[0] == 200


def test_damaged_exports_are_not_served(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UserError, match=r"no policy\.json"), serving(tmp_path, "auto", "127.0.0.1", 0, token=None):
        pass
    assert main(["serve", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_python_client_acts(export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    expected = Player(export, mode="greedy").act({f"agent_{i}": [0.1 * i] * 18 for i in range(3)})
    with running(export) as server:
        monkeypatch.setattr(sys, "argv", ["policy_client.py", server.url])
        runpy.run_path(str(ROOT / "examples" / "policy_client.py"), run_name="__main__")
    assert json.loads(capsys.readouterr().out) == expected


@pytest.mark.skipif(shutil.which("node") is None and "CI" not in os.environ, reason="needs Node.js")
def test_the_javascript_client_acts(export: Path):
    expected = Player(export, mode="greedy").act({f"agent_{i}": [0.1 * i] * 18 for i in range(3)})
    client = ROOT / "examples" / "policy_client.mjs"
    with running(export) as server:
        command = ["node", "--experimental-websocket", str(client), server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected
