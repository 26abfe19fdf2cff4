"""The server answers whom it should, and nobody else; slow pages get the last of everything."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from coterie.cli import run
from coterie.errors import UserError
from coterie.playing.recording import Recorder, encode
from coterie.playing.serve import Address
from coterie.playing.server import PAGE_FILES, Answer, Server, _Outbox
from coterie.playing.viewer import view_files, viewed
from playing.test_recording import HEADER, frame, row, written


@pytest.fixture
def server() -> Iterator[Server]:
    def files(path: str) -> Answer | None:
        return Answer(b"[1]", "application/json") if path == "/one" else None

    with Server("127.0.0.1", 0, "play.html", files, lambda: [b"welcome", b"here"]) as made:
        yield made


def get(server: Server, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(asked):
        asked.request("GET", path, headers=headers)
        found = asked.getresponse()
        return found.status, found.read(), dict(found.getheaders())


def test_pages_and_files_are_served_and_nothing_else(server: Server):
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


def test_the_page_loads_nothing_from_elsewhere(server: Server):
    for name in PAGE_FILES:
        text = get(server, f"/page/{name}")[1].decode()
        assert "https://" not in text
        assert "innerHTML" not in text
        assert text.count("http://") == text.count("http://www.w3.org/")


@pytest.mark.parametrize("host", ["evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "192.0.2.1:{port}", "[::1", ""])
def test_whoever_asks_for_another_name_is_sent_away(server: Server, host: str):
    assert get(server, "/", Host=host.format(port=server.port))[0] == 421
    with pytest.raises(InvalidStatus, match="421"):
        connect(f"ws://127.0.0.1:{server.port}/socket", additional_headers={"Host": "evil.example"}, proxy=None)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_names_of_this_machine_are_answered(server: Server, host: str):
    assert get(server, "/", Host=host.format(port=server.port))[0] == 200


def test_a_server_for_others_answers_to_addresses_and_to_its_own_name_alone():
    server = Server("0.0.0.0", 0, "play.html", lambda path: None, list)
    with server:
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert get(server, "/", Host=f"192.0.2.1:{server.port}")[0] == 200
        assert get(server, "/", Host=f"localhost:{server.port}")[0] == 200
        assert get(server, "/", Host=f"evil.example:{server.port}")[0] == 421


def test_pages_from_elsewhere_get_no_socket(server: Server):
    url = f"ws://127.0.0.1:{server.port}/socket"
    for origin in ("http://evil.example", f"http://localhost:{server.port}", "null"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, origin=origin, proxy=None)  # pyright: ignore[reportArgumentType]
    with connect(url, origin=f"http://127.0.0.1:{server.port}", proxy=None) as socket:  # pyright: ignore[reportArgumentType]
        assert socket.recv(timeout=10) == b"welcome"


def test_words_come_in_and_go_out(server: Server):
    with connect(f"ws://127.0.0.1:{server.port}/socket", proxy=None) as socket:
        assert [socket.recv(timeout=10) for _ in range(2)] == [b"welcome", b"here"]
        socket.send("one")
        socket.send("two")
        assert [server.inbox.get(timeout=10) for _ in range(2)] == ["one", "two"]
        server.send("scene", b"three")
        assert socket.recv(timeout=10) == b"three"


@pytest.mark.parametrize(("said", "code"), [(b"bytes", 1003), ("x" * 5000, 1009)])
def test_messages_of_another_kind_or_size_end_the_talk(server: Server, said: Any, code: int):
    with connect(f"ws://127.0.0.1:{server.port}/socket", proxy=None) as socket:
        assert [socket.recv(timeout=10) for _ in range(2)] == [b"welcome", b"here"]
        socket.send(said)
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=10)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == code
    assert server.inbox.empty()
    assert get(server, "/")[0] == 200  # others are answered as before


def test_a_page_that_reads_slowly_gets_the_last_of_every_kind():
    async def told() -> list[bytes]:
        outbox, found = _Outbox(), []

        class Slow:
            async def send(self, message: bytes) -> None:
                found.append(message)
                await asyncio.sleep(0)

        for kind, message in (("scene", b"1"), ("note", b"a"), ("scene", b"2"), ("state", b"s"), ("scene", b"3")):
            outbox.put(kind, message)
        telling = asyncio.ensure_future(outbox.tell(Slow()))
        while len(found) < 3:
            await asyncio.sleep(0)
        telling.cancel()
        return found

    assert asyncio.run(told()) == [b"a", b"s", b"3"]


def test_a_port_that_is_taken_is_one_line(server: Server):
    with pytest.raises(UserError, match=rf"cannot listen on 127\.0\.0\.1:{server.port} .*: choose another --port"):
        Server("127.0.0.1", server.port, "play.html", lambda path: None, list)


def test_a_closed_server_listens_no_more_and_can_still_be_told_things():
    server = Server("127.0.0.1", 0, "play.html", lambda path: None, list)
    server.close()
    server.send("scene", b"nobody hears")
    with pytest.raises(ConnectionRefusedError):
        get(server, "/")
    server.close()


# ----------------------------------------------------------------------------------------------------------- the viewer


def test_the_viewer_hands_out_rows_and_pictures_of_each_file(tmp_path: Path):
    from coterie.playing.recording import Recording

    paths = [written(tmp_path / "one.zip", [0, 1]), tmp_path / "two.zip"]
    with Recorder(paths[1], HEADER) as recorder:
        recorder.add(row(0, agents=[{"alive": True, "value": None}]), encode(frame(200)))
    recordings = [Recording(path) for path in paths]
    files = viewed(recordings)
    heads, rows, picture = files("/recordings"), files("/recordings/0/rows"), files("/recordings/1/frames/0")
    assert heads is not None
    assert b'"file": "two.zip"' in heads.body
    assert rows is not None
    assert len(rows.body.splitlines()) == 2
    assert picture == Answer(encode(frame(200)), "image/webp")
    for path in ("/recordings/2/rows", "/recordings/1/frames/1", "/recordings/-1/rows", "/recordings/x/rows", "/rows"):
        assert files(path) is None
    for recording in recordings:
        recording.close()


def test_the_viewer_ends_with_ctrl_c_and_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coterie.playing.viewer.time.sleep", interrupted)
    view_files([written(tmp_path / "one.zip", [0])], Address())
    assert "in a browser; Ctrl-C ends" in capsys.readouterr().err


def test_without_the_library_the_mend_is_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "websockets.asyncio.server", None)
    for words in (["view", "a.zip"], ["play", "--env", "particle/simple_tag", "--human", "agent"]):
        with pytest.raises(UserError, match=r"needs websockets 15 or newer: pip install 'coterie\[play\]'"):
            run(words)


def test_looking_at_files_loads_no_torch():
    program = "import sys, coterie.playing.viewer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_mistakes_on_the_command_line_are_one_line(tmp_path: Path):
    for words, said in (
        (["view", str(tmp_path / "no.zip")], "cannot be read"),
        (["view", *["a.zip"] * 5], "5 files side by side"),
        (["play", "RUN", "--record", "a.mp4"], r"--record a\.mp4: expected a file that ends in \.zip"),
        (["play", "RUN", "--record", "a.zip", "--video", "a.mp4"], "leave out --video"),
        (["play", "RUN", "--human", "a", "--video", "a.mp4"], "--human plays in a browser"),
        (["play", "RUN", "--port", "8000"], "--port goes with a page: name whom you play with --human"),
        (["play", "RUN", "--record", "a.zip", "--fps", "9"], "--fps goes with a page"),
        (["play", "RUN", "--human", "a", "--episodes", "3"], "--episodes 3 goes with recording"),
        (
            ["play", "--env", "particle/simple_tag", "--human", "agnet"],
            "--human agnet: there is no such agent; did you mean 'agent'",
        ),
    ):
        with pytest.raises(UserError, match=said):
            run(words)
