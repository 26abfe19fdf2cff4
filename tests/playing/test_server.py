"""The page server: allowed hosts and origins, messages, slow pages, and the files of the viewer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playing.test_episode_recording import HEADER, frame, timestep, write_recording
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from coterie.cli.app import run
from coterie.core.errors import UserError
from coterie.playing.episode_recording import Recorder, encode
from coterie.playing.page import Address
from coterie.playing.page_server import Outbox, PageServer
from coterie.playing.viewer import view_files, viewer_routes
from places import ROOT

PAGE_FILES = sorted(path.name for path in (ROOT / "src" / "coterie" / "playing" / "page").iterdir())


@pytest.fixture
def server() -> Iterator[PageServer]:
    async def one(request: Request) -> Response:
        return JSONResponse([1])

    routes = [Route("/one", one)]
    made = PageServer("127.0.0.1", 0, page="play.html", routes=routes, welcome=lambda: [b"welcome", b"here"])
    with contextlib.closing(made):
        yield made


def open_server(host: str, port: int) -> PageServer:
    return PageServer(host, port, page="play.html")


def get(server: PageServer, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        found = connection.getresponse()
        return found.status, found.read(), {name.lower(): value for name, value in found.getheaders()}


def test_only_pages_and_files_are_served(server: PageServer):
    status, body, headers = get(server, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"play.js" in body
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    for name in PAGE_FILES:
        assert get(server, f"/page/{name}")[0] == 200
    assert get(server, "/page/cards.js")[2]["content-type"].startswith("text/javascript")
    assert get(server, "/one")[:2] == (200, b"[1]")
    for path in ("/two", "/page/", "/page/../server.py", "/page/..%2fserver.py", "/page/server.py", "//etc/passwd"):
        assert get(server, path)[0] == 404


def test_pages_load_nothing_from_other_hosts(server: PageServer):
    for name in PAGE_FILES:
        text = get(server, f"/page/{name}")[1].decode()
        assert "https://" not in text
        assert "innerHTML" not in text
        assert text.count("http://") == text.count("http://www.w3.org/")


def test_requests_for_other_host_names_are_refused(server: PageServer):
    for host in (f"evil.example:{server.port}", "127.0.0.1:1", "127.0.0.1", f"192.0.2.1:{server.port}", "[::1", ""):
        assert get(server, "/", Host=host)[0] == 421
    with pytest.raises(InvalidStatus, match="421"):
        connect(f"ws://127.0.0.1:{server.port}/socket", additional_headers={"Host": "evil.example"}, proxy=None)


def test_requests_for_names_of_this_machine_are_served(server: PageServer):
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert get(server, "/", Host=f"{host}:{server.port}")[0] == 200


def test_a_public_server_accepts_addresses_and_localhost_only():
    server = open_server("0.0.0.0", 0)
    with contextlib.closing(server):
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert get(server, "/", Host=f"192.0.2.1:{server.port}")[0] == 200
        assert get(server, "/", Host=f"localhost:{server.port}")[0] == 200
        assert get(server, "/", Host=f"evil.example:{server.port}")[0] == 421


def test_pages_of_other_origins_get_no_web_socket(server: PageServer):
    url = f"ws://127.0.0.1:{server.port}/socket"
    for origin in ("http://evil.example", f"http://localhost:{server.port}", "null"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, origin=origin, proxy=None)  # pyright: ignore[reportArgumentType]
    with connect(url, origin=f"http://127.0.0.1:{server.port}", proxy=None) as socket:  # pyright: ignore[reportArgumentType]
        assert socket.recv(timeout=10) == b"welcome"


def test_messages_are_received_and_sent(server: PageServer):
    with connect(f"ws://127.0.0.1:{server.port}/socket", proxy=None) as socket:
        assert [socket.recv(timeout=10) for _ in range(2)] == [b"welcome", b"here"]
        socket.send("one")
        socket.send("two")
        assert [server.inbox.get(timeout=10) for _ in range(2)] == ["one", "two"]
        server.send("scene", b"three")
        assert socket.recv(timeout=10) == b"three"


@pytest.mark.parametrize(("message", "code"), [(b"bytes", 1003), ("x" * 5000, 1009)])
def test_binary_or_oversized_messages_close_the_connection(server: PageServer, message: Any, code: int):
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

        async def send(message: bytes) -> None:
            found.append(message)
            await asyncio.sleep(0)

        for kind, message in (("scene", b"1"), ("note", b"a"), ("scene", b"2"), ("state", b"s"), ("scene", b"3")):
            outbox.put(kind, message)
        sender = asyncio.ensure_future(outbox.send_all(send))
        while len(found) < 3:
            await asyncio.sleep(0)
        sender.cancel()
        return found

    assert asyncio.run(received()) == [b"a", b"s", b"3"]


def test_an_occupied_port_raises_a_one_line_error(server: PageServer):
    with pytest.raises(UserError, match=rf"cannot listen on 127\.0\.0\.1:{server.port} .*\. Choose another --port"):
        open_server("127.0.0.1", server.port)


@pytest.mark.parametrize("host", ["\udcff", "a\0b", "é\x80", "a" * 70, "..", "::1%none", "256.0.0.1"])
def test_a_host_that_is_none_raises_a_one_line_error(host: str):
    for port in (0, 8765):
        with pytest.raises(UserError, match=r"^cannot listen on .*\. Choose another --host\.$") as error:
            open_server(host, port)
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
    paths = [write_recording(tmp_path / "one.zip", [0, 1]), tmp_path / "two.zip"]
    with Recorder(paths[1], HEADER) as recorder:
        recorder.add(timestep(0, agents=[{"alive": True, "value": None}]), encode(frame(200)))
    with serving_recordings(paths) as server:
        status, headers, _ = get(server, "/recordings")
        assert status == 200
        assert b'"file": "two.zip"' in headers
        status, timesteps, _ = get(server, "/recordings/0/timesteps")
        assert (status, len(timesteps.splitlines())) == (200, 2)
        status, image, headers = get(server, "/recordings/1/frames/0")
        assert (status, image, headers["content-type"]) == (200, encode(frame(200)), "image/webp")
        long = "1/frames/" + "1" * 5000
        for path in ("2/timesteps", "1/frames/1", long, "-1/timesteps", "x/timesteps"):
            assert get(server, f"/recordings/{path}")[0] == 404


@contextlib.contextmanager
def serving_recordings(paths: list[Path]) -> Iterator[PageServer]:
    from coterie.playing.episode_recording import Recording

    with contextlib.ExitStack() as stack:
        recordings = [stack.enter_context(contextlib.closing(Recording(path))) for path in paths]
        routes = viewer_routes(recordings)
        yield stack.enter_context(contextlib.closing(PageServer("127.0.0.1", 0, page="view.html", routes=routes)))


def test_the_viewer_shows_names_with_escapes(tmp_path: Path):
    name = "a\x1b]0;t\x07\x9b\u202e"
    agents = [HEADER["agents"][0] | {"name": name, "team": name}]
    with Recorder(tmp_path / "a.zip", HEADER | {"title": name, "agents": agents}) as recorder:
        recorder.add(timestep(0, returns={name: 1.0}), encode(frame(0)))
    with serving_recordings([tmp_path / "a.zip"]) as server:
        bodies = [get(server, path)[1] for path in ("/recordings", "/recordings/0/timesteps")]
    for body in bodies:
        shown = [text for line in body.splitlines() for text in texts(json.loads(line))]
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
