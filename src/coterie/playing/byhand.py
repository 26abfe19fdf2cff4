"""`coterie play --human` and `--record`: a game on a page of this machine, and games that nobody sits at."""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from pathlib import Path

from coterie.playing.game import Game
from coterie.playing.recording import Recorder, encode
from coterie.playing.serve import Address, require_server, serving, until_interrupted
from coterie.playing.server import Server
from coterie.playing.session import Session, packed


def play_by_hand(game: Game, title: str, fps: float, record: Path | None, address: Address) -> None:
    """Serves a game until Ctrl-C. What is played is recorded to `record`, if given."""
    require_server()
    with contextlib.ExitStack() as stack:
        told: list[Server] = []  # the server needs the session, and the session the server

        def send(kind: str, message: bytes) -> None:
            for server in told:
                server.send(kind, message)

        session = Session(game, title, fps, send)
        if record is not None:
            recorder = Recorder(record, session.header)
            stack.callback(recorder.close)  # also where the environment fails: what was played so far is worth keeping
            session.record(recorder)
        server = stack.enter_context(serving(address, "play.html", lambda path: None, lambda: session.welcome))
        told.append(server)
        with until_interrupted():
            _run(session, server)
    if record is not None:
        print(f"wrote {record}", file=sys.stderr)


def _run(session: Session, server: Server) -> None:
    """Does what pages ask for, and lets time go on between."""
    at: float | None = None  # when the next step is due
    while True:
        pause, now = session.waits, time.monotonic()
        at = None if pause is None else min(at or now + pause, now + pause)
        try:
            said = server.inbox.get(timeout=1.0 if at is None else max(0.0, min(at - now, 1.0)))
        except queue.Empty:
            if at is not None and pause is not None and time.monotonic() >= at:
                session.tick()
                at = max(at, now - pause) + pause
            continue
        try:
            session.handle(said)
        except ValueError as error:
            server.send("note", packed({"kind": "note", "text": f"not understood: {str(error).splitlines()[0]}"}))


def record_episodes(game: Game, title: str, episodes: int, path: Path) -> Path:
    """Records so many episodes to a file and returns it."""
    moment = game.begin()
    with Recorder(path, game.header(title, moment.frame)) as recorder:
        while True:
            recorder.add(moment.row, encode(moment.frame))
            episodes -= game.over
            if not episodes:
                return path
            moment, _ = game.step()
