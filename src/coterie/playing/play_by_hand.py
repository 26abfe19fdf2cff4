"""`coterie play --human` and `--record`: a game in the browser, and recorded games of policies."""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import time
from pathlib import Path

from coterie.commands.rendering import print_returns
from coterie.core.terminal import print_line
from coterie.playing.episode_recording import Recorder, encode
from coterie.playing.game import Game
from coterie.playing.page import Address, until_interrupted
from coterie.playing.page_server import PageServer, serving
from coterie.playing.session import Session, encode_message


def play_by_hand(game: Game, title: str, fps: float, record: Path | None, address: Address) -> None:
    """Serves a game until Ctrl-C and records it to `record` if given."""
    with contextlib.ExitStack() as stack:
        servers: list[PageServer] = []  # the server needs the session, and the session needs the server

        def send(kind: str, message: bytes) -> None:
            for server in servers:
                server.send(kind, message)

        session = Session(game, title, fps, send)
        if record is not None:
            recorder = Recorder(record, session.header)
            stack.callback(recorder.close)  # also if the environment fails: keep the episodes played so far
            session.record(recorder)
        server = stack.enter_context(serving(address, "play.html", welcome=lambda: session.welcome))
        servers.append(server)
        with until_interrupted():
            _run(session, server)
    if record is not None:
        print_line(f"wrote {record}", sys.stderr)


def _run(session: Session, server: PageServer) -> None:
    """Handles requests of pages and advances time in between."""
    next_step: float | None = None  # time in seconds
    while True:
        pause, now = session.pending, time.monotonic()
        next_step = None if pause is None else min(next_step or now + pause, now + pause)
        try:
            request = server.inbox.get(timeout=1.0 if next_step is None else max(0.0, min(next_step - now, 1.0)))
        except queue.Empty:
            if next_step is not None and pause is not None and time.monotonic() >= next_step:
                session.tick()
                next_step = max(next_step, now - pause) + pause
            continue
        try:
            session.handle(request)
        except ValueError as error:
            server.send(
                "note", encode_message({"kind": "note", "text": f"invalid request: {str(error).splitlines()[0]}"})
            )


def record_episodes(game: Game, title: str, episodes: int, path: Path) -> Path:
    """Records a number of episodes to a file, prints the returns of the teams, and returns its path."""
    returns: dict[str, list[float]] = {}
    moment = game.begin()
    with Recorder(path, game.header(title, moment.frame)) as recorder:
        while True:
            recorder.add(moment.timestep, encode(moment.frame))
            episodes -= game.over
            if game.over:
                for team, value in moment.timestep["returns"].items():
                    returns.setdefault(team, []).append(math.nan if value is None else value)
            if not episodes:
                break
            moment, _ = game.step()
    print_returns(returns)
    return path
