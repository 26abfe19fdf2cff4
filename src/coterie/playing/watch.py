"""`coterie watch`: the newest policies of a run in the browser, while another process trains it."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.assembly.environment import make_environment
from coterie.assembly.learners import EvalMode
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.envs.contract.vector import closed
from coterie.playing.game import Game
from coterie.playing.page import Address, until_interrupted
from coterie.playing.page_server import PageServer, serving
from coterie.playing.session import Session, encode_message
from coterie.playing.watched_run import WatchedRun

_STATUS_SECONDS = 1.0
_PAUSE_SECONDS = 1.0
"""Time for which the last timestep of an episode is shown."""
_EPISODES = 20
"""Latest episodes whose mean return is shown."""


@dataclass(frozen=True)
class WatchOptions:
    """Options of `watch`.

    Attributes:
        mode: Action selection.
        fps: Environment steps per second at the start.
        size: Longer side of the images in pixels.
        seed: Seed of the episodes; by default derived from the run's.
    """

    mode: EvalMode = "auto"
    fps: float = 10.0
    size: int = 480
    seed: int | None = None


def watch(run: Path, options: WatchOptions, address: Address) -> None:
    """Serves a page that plays episodes with the newest policies of a run, until Ctrl-C.

    The run may be training, finished or stopped. If it has no checkpoint yet, the page waits for one.
    """
    configure_process(1)  # the cores are left to the training
    watched = WatchedRun(run, options.mode)
    config = watched.config
    with closed(make_environment(config, "play", num_envs=1, device=watched.device)) as env:
        seed = seed_of(config.seed if options.seed is None else options.seed, "play")
        game = Game(env, watched.players, [], seed=seed, size=options.size)
        title = f"{config.algo.name} on {config.env.name} ({watched.folder.path.name})"
        watcher = Watcher(watched, game, title, options.fps)
        with serving(address, "play.html", welcome=watcher.welcome) as server, until_interrupted():
            watcher.send = server.send
            _run(watcher, server)


def _run(watcher: Watcher, server: PageServer) -> None:
    """Handles requests of pages and calls the watcher in between."""
    while True:
        try:
            request = server.inbox.get(timeout=watcher.advance())
        except queue.Empty:
            continue
        watcher.handle(request)


class Watcher:
    """Plays episodes, loads newer policies between them, and sends messages to pages.

    Messages are those of `Session`, and `run`: the state of the run, sent every second.
    """

    def __init__(
        self, run: WatchedRun, game: Game, title: str, fps: float, clock: Callable[[], float] = time.monotonic
    ):
        self.run, self._game, self._title, self._fps, self._clock = run, game, title, fps, clock
        self.send: Callable[[str, bytes], None] = lambda kind, message: None
        self._session: Session | None = None
        self._episodes: deque[dict[str, Any]] = deque(maxlen=_EPISODES)
        self._counted = False
        self._next_step = self._next_status = -float("inf")
        self._status = self._encode_status()

    def welcome(self) -> list[bytes]:
        """Messages for a newly connected page."""
        return [*(self._session.welcome if self._session is not None else ()), self._status]

    def advance(self) -> float:
        """Takes the steps that are due and returns the seconds until the next ones."""
        now = self._clock()
        if self._session is None:
            self._begin(now)
        session = self._session
        if session is not None and not session.paused and now >= self._next_step:
            session.tick()
            self._count_episode()
            pause = _PAUSE_SECONDS if self._game.over else 1 / session.fps
            # A late step does not make the next ones follow faster.
            self._next_step = max(self._next_step + pause, now)
        if now >= self._next_status:
            self._send_status(now)
        steps = self._next_step if session is not None and not session.paused else float("inf")
        return max(0.0, min(steps, self._next_status) - self._clock())

    def handle(self, request: str) -> None:
        """Executes a request of a page. Invalid ones are answered with a note."""
        if self._session is None:
            return
        try:
            self._session.handle(request)
        except ValueError as error:
            text = f"invalid request: {str(error).splitlines()[0]}"
            self.send("note", encode_message({"kind": "note", "text": text}))
        self._count_episode()

    def _begin(self, now: float) -> None:
        """Starts the first episode as soon as there are policies."""
        if not self.run.refresh():
            return
        self.run.apply_lesson(self._game.env)
        session = Session(self._game, self._title, self._fps, self._forward, before_episode=self._before_episode)
        session.paused = False
        self._session = session
        for number, message in enumerate(session.welcome):
            self.send(f"welcome {number}", message)
        self._next_step = now + 1 / self._fps

    def _forward(self, kind: str, message: bytes) -> None:
        if self._session is not None:  # pages first need the header of the session
            self.send(kind, message)

    def _before_episode(self) -> None:
        self.run.refresh()
        self.run.apply_lesson(self._game.env)
        self._counted = False
        self._send_status(self._clock())

    def _count_episode(self) -> None:
        """Adds the returns of an episode that has ended."""
        if self._game.over and not self._counted and self._session is not None:
            self._episodes.append(self._session.returns)
            self._counted = True

    def _send_status(self, now: float) -> None:
        self._next_status = now + _STATUS_SECONDS
        self._status = self._encode_status()
        self.send("run", self._status)

    def _encode_status(self) -> bytes:
        return encode_message({"kind": "run", "watched": self._watched(), **self.run.status()})

    def _watched(self) -> dict[str, Any]:
        """Returns the mean return of the latest episodes by team, and their number."""
        means: dict[str, float] = {}
        for team in self.run.players.policies:
            values = [episode[team] for episode in self._episodes if episode[team] is not None]
            with contextlib.suppress(ZeroDivisionError):
                means[team] = sum(values) / len(values)
        return {"episodes": len(self._episodes), "returns": means}
