"""Addresses at which there is no Ray: one line with the reason, in time."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from coterie.config.schema import WorkersConfig
from coterie.core import waiting
from coterie.core.errors import UserError
from coterie.envs.external.workers import ray_client, ray_workers
from coterie.envs.make import make

pytest.importorskip("ray")

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""First frame of an HTTP/2 server."""


@contextmanager
def listener(respond: Callable[[socket.socket], Any]) -> Iterator[int]:
    """A port on loopback. A thread calls `respond` with every connection and keeps it open until the client leaves."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            respond(connection)
            while connection.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    """Closes a connection with an error of the client's."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    connection.close()


def end(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.shutdown(socket.SHUT_RDWR)


NO_RAY = {
    "silent": (lambda c: None, "did not answer within"),
    "slow": (lambda c: c.sendall(SETTINGS[:5]), "did not answer within"),
    "closes at once": (lambda c: c.close(), "closes connections"),
    "closes later": (end, "closes connections"),
    "resets": (reset, "closes connections"),
    "HTTP": (lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "its answer b'HTTP/1.1 ' is not that of Ray"),
    "bytes": (lambda c: c.sendall(bytes(range(256)) * 100), "is not that of Ray"),
}


@pytest.mark.parametrize("kind", NO_RAY)
def test_a_port_that_is_not_rays_is_refused_before_ray_is_used(kind: str, monkeypatch: pytest.MonkeyPatch):
    respond, message = NO_RAY[kind]
    monkeypatch.setattr(ray_client, "_CONNECT_TIMEOUT", 0.3)
    with listener(respond) as port, pytest.raises(OSError, match=message) as error:
        ray_client.connect_ray(None, f"127.0.0.1:{port}", known=f"127.0.0.1:{port}", folder="", cores=1)
    assert "ray start --head" in ray_client.connect_error(error.value)
    assert "\n" not in ray_client.connect_error(error.value)


def test_a_port_without_a_listener_is_refused():
    with pytest.raises(ConnectionRefusedError):
        ray_client.require_answer("127.0.0.1", 1)


def test_a_port_that_answers_as_ray_is_accepted():
    received: list[bytes] = []
    with listener(lambda c: (received.append(c.recv(1 << 16)), c.sendall(SETTINGS))) as port:
        ray_client.require_answer("127.0.0.1", port)
    assert received == [ray_client._PREFACE]


def test_encrypted_ports_are_left_to_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    received: list[bytes] = []
    with listener(lambda c: received.append(c.recv(1 << 16))) as port:
        ray_client.require_answer("127.0.0.1", port)
        while not received:
            time.sleep(0.01)
    assert received == [b""], "nothing is sent before the encryption begins"


def ray_env(address: str) -> None:
    make("gym/CartPole-v1", {}, 2, workers=WorkersConfig(count=1, kind="ray", address=address))


@pytest.mark.slow
def test_a_port_that_stops_answering_ends_after_the_limit_with_a_note_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """It begins as Ray does, so that Ray itself waits for it."""
    monkeypatch.setattr(waiting, "NOTE_SECONDS", 0.5)
    monkeypatch.setattr(ray_workers, "_START_TIMEOUT", 2.0)
    with listener(lambda c: c.sendall(SETTINGS)) as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(UserError, match=rf"^workers\.address={address}: Ray cannot be reached: .+"):
            ray_env(address)
    assert f"waiting for Ray (workers.address={address}) to answer, up to 2 s" in capsys.readouterr().err


def test_a_crash_of_ray_is_one_line_with_the_address(monkeypatch: pytest.MonkeyPatch):
    """Ray's own code may abort the process that uses it, which is not the trainer's."""
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGABRT)"
    popen = ray_workers.subprocess.Popen
    monkeypatch.setattr(
        ray_workers.subprocess, "Popen", lambda command, **how: popen([sys.executable, "-c", crash], **how)
    )
    with pytest.raises(UserError) as error:
        ray_env("127.0.0.1:1")
    assert str(error.value) == (
        "workers.address=127.0.0.1:1: Ray cannot be reached: the process that talks to Ray ended with code -6"
    )
