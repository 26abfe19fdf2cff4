"""The page server: allowed hosts and origins, messages, slow pages, and the files of the viewer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playing.test_episode_recording import HEADER, frame, timestep, write_recording
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from coterie.cli.app import run
from coterie.core.errors import UserError
from coterie.playing.episode_recording import Recorder, encode
from coterie.playing.page import Address
from coterie.playing.policy_server import PolicyServer
from coterie.playing.server import PAGE_FILES, Outbox, Response, Server
from coterie.playing.viewer import view_files, viewer_files


@pytest.fixture
def server() -> Iterator[Server]:
    def files(path: str) -> Response | None:
        return Response(b"[1]", "application/json") if path == "/one" else None

    with Server("127.0.0.1", 0, page="play.html", files=files, welcome=lambda: [b"welcome", b"here"]) as made:
        yield made


def open_server(host: str, port: int) -> Server:
    return Server(host, port, page="play.html", files=lambda path: None, welcome=list)


def get(server: Server, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        found = connection.getresponse()
        return found.status, found.read(), dict(found.getheaders())


def test_only_pages_and_files_are_served(server: Server):
    status, body, headers = get(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"play.js" in body
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    for name in PAGE_FILES:
        assert get(server, f"/page/{name}")[0] == 200
    assert get(server, "/page/cards.js")[2]["Content-Type"].startswith("text/javascript")
    assert get(server, "/one")[:2] == (200, b"[1]")
    for path in ("/two", "/page/", "/page/../server.py", "/page/..%2fserver.py", "/page/server.py", "//etc/passwd"):
        assert get(server, path)[0] == 404


def test_pages_load_nothing_from_other_hosts(server: Server):
    for name in PAGE_FILES:
        text = get(server, f"/page/{name}")[1].decode()
        assert "https://" not in text
        assert "innerHTML" not in text
        assert text.count("http://") == text.count("http://www.w3.org/")


@pytest.mark.parametrize("host", ["evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "192.0.2.1:{port}", "[::1", ""])
def test_requests_for_other_host_names_are_refused(server: Server, host: str):
    assert get(server, "/", Host=host.format(port=server.port))[0] == 421
    with pytest.raises(InvalidStatus, match="421"):
        connect(f"ws://127.0.0.1:{server.port}/socket", additional_headers={"Host": "evil.example"}, proxy=None)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_requests_for_names_of_this_machine_are_served(server: Server, host: str):
    assert get(server, "/", Host=host.format(port=server.port))[0] == 200


def test_a_public_server_accepts_addresses_and_localhost_only():
    server = open_server("0.0.0.0", 0)
    with server:
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert get(server, "/", Host=f"192.0.2.1:{server.port}")[0] == 200
        assert get(server, "/", Host=f"localhost:{server.port}")[0] == 200
        assert get(server, "/", Host=f"evil.example:{server.port}")[0] == 421


def test_pages_of_other_origins_get_no_web_socket(server: Server):
    url = f"ws://127.0.0.1:{server.port}/socket"
    for origin in ("http://evil.example", f"http://localhost:{server.port}", "null"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, origin=origin, proxy=None)  # pyright: ignore[reportArgumentType]
    with connect(url, origin=f"http://127.0.0.1:{server.port}", proxy=None) as socket:  # pyright: ignore[reportArgumentType]
        assert socket.recv(timeout=10) == b"welcome"


def test_messages_are_received_and_sent(server: Server):
    with connect(f"ws://127.0.0.1:{server.port}/socket", proxy=None) as socket:
        assert [socket.recv(timeout=10) for _ in range(2)] == [b"welcome", b"here"]
        socket.send("one")
        socket.send("two")
        assert [server.inbox.get(timeout=10) for _ in range(2)] == ["one", "two"]
        server.send("scene", b"three")
        assert socket.recv(timeout=10) == b"three"


@pytest.mark.parametrize(("message", "code"), [(b"bytes", 1003), ("x" * 5000, 1009)])
def test_binary_or_oversized_messages_close_the_connection(server: Server, message: Any, code: int):
    with connect(f"ws://127.0.0.1:{server.port}/socket", proxy=None) as socket:
        assert [socket.recv(timeout=10) for _ in range(2)] == [b"welcome", b"here"]
        socket.send(message)
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=10)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == code
    assert server.inbox.empty()
    assert get(server, "/")[0] == 200  # other requests are served as before


def test_a_slow_page_receives_the_latest_message_of_each_kind():
    async def received() -> list[bytes]:
        outbox, found = Outbox(), []

        class Slow:
            async def send(self, message: bytes) -> None:
                found.append(message)
                await asyncio.sleep(0)

        for kind, message in (("scene", b"1"), ("note", b"a"), ("scene", b"2"), ("state", b"s"), ("scene", b"3")):
            outbox.put(kind, message)
        sender = asyncio.ensure_future(outbox.send_all(Slow()))
        while len(found) < 3:
            await asyncio.sleep(0)
        sender.cancel()
        return found

    assert asyncio.run(received()) == [b"a", b"s", b"3"]


def test_an_occupied_port_raises_a_one_line_error(server: Server):
    with pytest.raises(UserError, match=rf"cannot listen on 127\.0\.0\.1:{server.port} .*\. Choose another --port"):
        open_server("127.0.0.1", server.port)


@pytest.mark.parametrize("host", ["\udcff", "a\0b", "é\x80", "a" * 70, "..", "::1%none", "256.0.0.1"])
def test_a_host_that_is_none_raises_a_one_line_error(host: str):
    """The same from both servers."""
    player: Any = None
    servers = (open_server, lambda host, port: PolicyServer(player, host, port, token="t"))
    for start, port in itertools.product(servers, (0, 8765)):
        with pytest.raises(UserError, match=r"^cannot listen on .*\. Choose another --host\.$") as error:
            start(host, port)
        assert "\n" not in str(error.value)


def test_a_closed_server_refuses_connections_and_ignores_messages():
    server = open_server("127.0.0.1", 0)
    server.close()
    server.send("scene", b"ignored")
    with pytest.raises(ConnectionRefusedError):
        get(server, "/")
    server.close()


# ----------------------------------------------------------------------------------------------------------- the viewer


def test_the_viewer_serves_timesteps_and_images_of_each_file(tmp_path: Path):
    from coterie.playing.episode_recording import Recording

    paths = [write_recording(tmp_path / "one.zip", [0, 1]), tmp_path / "two.zip"]
    with Recorder(paths[1], HEADER) as recorder:
        recorder.add(timestep(0, agents=[{"alive": True, "value": None}]), encode(frame(200)))
    recordings = [Recording(path) for path in paths]
    files = viewer_files(recordings)
    headers, timesteps, image = files("/recordings"), files("/recordings/0/timesteps"), files("/recordings/1/frames/0")
    assert headers is not None
    assert b'"file": "two.zip"' in headers.body
    assert timesteps is not None
    assert len(timesteps.body.splitlines()) == 2
    assert image == Response(encode(frame(200)), "image/webp")
    for path in (
        "/recordings/2/timesteps",
        "/recordings/1/frames/1",
        "/recordings/-1/timesteps",
        "/recordings/x/timesteps",
        "/timesteps",
    ):
        assert files(path) is None
    for recording in recordings:
        recording.close()


def test_the_viewer_shows_names_with_escapes(tmp_path: Path):
    from coterie.playing.episode_recording import Recording

    name = "a\x1b]0;t\x07\x9b\u202e"
    agents = [HEADER["agents"][0] | {"name": name, "team": name}]
    with Recorder(tmp_path / "a.zip", HEADER | {"title": name, "agents": agents}) as recorder:
        recorder.add(timestep(0, returns={name: 1.0}), encode(frame(0)))
    with contextlib.closing(Recording(tmp_path / "a.zip")) as recording:
        files = viewer_files([recording])
    for path in ("/recordings", "/recordings/0/timesteps"):
        found = files(path)
        assert found is not None
        shown = [text for line in found.body.splitlines() for text in texts(json.loads(line))]
        assert r"a\x1b]0;t\x07\x9b\u202e" in shown
        assert all(text.isprintable() for text in shown)


def texts(value: Any) -> list[str]:
    """Returns all keys and texts of JSON."""
    if isinstance(value, dict):
        return [text for key, item in value.items() for text in (key, *texts(item))]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


def test_ctrl_c_ends_the_viewer_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coterie.playing.viewer.time.sleep", interrupted)
    view_files([write_recording(tmp_path / "one.zip", [0])], Address())
    assert "in a browser. Press Ctrl-C to stop." in capsys.readouterr().err


def test_a_missing_library_is_reported_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "websockets.asyncio.server", None)
    for command in (["view", "a.zip"], ["play", "--env", "particle/simple_tag", "--human", "agent"]):
        with pytest.raises(
            UserError, match=r"needs websockets 15 or newer\. Install it with: .*pip install -e '\S+\[play\]'"
        ):
            run(command)


@pytest.mark.slow
def test_viewing_files_does_not_import_torch():
    program = "import sys, coterie.playing.viewer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_command_line_mistakes_raise_one_line_errors(tmp_path: Path):
    for command, message in (
        (["view", str(tmp_path / "no.zip")], "cannot be read"),
        (["view", *["a.zip"] * 5], "5 files: too many to compare"),
        (["play", "RUN", "--record", "a.mp4"], r"--record a\.mp4: unsupported file type. Expected \.zip"),
        (["play", "RUN", "--record", "a.zip", "--video", "a.mp4"], "--record: cannot be combined with --video"),
        (["play", "RUN", "--human", "a", "--video", "a.mp4"], "--human: cannot be combined with --video"),
        (["play", "RUN", "--port", "8000"], "--port: requires --human"),
        (["play", "RUN", "--record", "a.zip", "--fps", "9"], "--fps: requires --human"),
        (["play", "RUN", "--human", "a", "--episodes", "3"], "--episodes 3: cannot be combined with --human"),
        (
            ["play", "--env", "particle/simple_tag", "--human", "agnet"],
            "--human agnet: no such agent. Did you mean 'agent'",
        ),
    ):
        with pytest.raises(UserError, match=message):
            run(command)
