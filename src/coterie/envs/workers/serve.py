"""What a worker process does: steps its part of the copies whenever it is told to."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import numpy as np

from coterie.envs.hosting.board import Board
from coterie.envs.hosting.crew import Crew
from coterie.envs.hosting.instance import Layout
from coterie.envs.hosting.opening import opened
from coterie.envs.hosting.varied import Kind
from coterie.envs.samplers import sampler
from coterie.envs.workers.wire import pack, unpack
from coterie.errors import one_line

STEP, RESET, STATE, LOAD, RENDER, VARY = b"s", b"r", b"g", b"l", b"p", b"v"
DONE, FAILED = b".", b"!"


@dataclass(frozen=True)
class Post:
    """Which copies a worker steps, and where.

    name, params: the environment and its keys; copies: of the whole board; start, count: the worker's own; first: the
    number of its first copy in the whole environment, where the board is not all of it.
    """

    name: str
    params: dict[str, Any]
    copies: int
    start: int
    count: int
    first: int | None = None


def serve(post: Post, memory: Any, orders: Connection, life: Connection) -> None:
    """Does what `orders` says until the trainer hangs up. Every answer is DONE or FAILED, and what belongs to it.

    memory: the board's, an array of ctypes; life: a line whose other end the trainer alone has.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the trainer decides
    outlast()
    _die_with(life)
    try:
        worker = Service(post, memory)
        orders.send_bytes(DONE)
    except Exception as error:
        orders.send_bytes(FAILED + words_of(error))
        return
    with suppress(EOFError, OSError):  # the trainer is gone
        while True:
            order = orders.recv_bytes()
            try:
                answer = worker.answers[order[:1]](order[1:])
            except Exception as error:
                answer = FAILED + words_of(error)
            orders.send_bytes(answer)
    with suppress(Exception):
        worker.crew.close()


class Service:
    """The crew of a worker, and how it answers."""

    def __init__(self, post: Post, memory: Any):
        import torch

        torch.set_num_threads(1)
        layout, make = opened(post.name, post.params)
        self.board = board = Board(layout, post.copies, memoryview(memory))
        self.crew = Crew(make, board, post.start, post.count, post.first)
        self._kind = Kind(post.name, post.params)
        own = slice(post.start, post.start + post.count)
        self._numbers = _numbers(board, layout, own)
        self.answers: dict[bytes, Callable[[bytes], bytes]] = {
            STEP: self._step,
            RESET: self._reset,
            STATE: lambda _: DONE + pack(self.crew.state_dict()),
            LOAD: self._load,
            RENDER: self._render,
            VARY: self._vary,
        }

    def _step(self, _: bytes) -> bytes:
        self.crew.step()
        return self._checked()

    def _reset(self, said: bytes) -> bytes:
        self.crew.reset(unpack(said))
        return self._checked()

    def _load(self, said: bytes) -> bytes:
        self.crew.load_state_dict(unpack(said))
        return DONE

    def _vary(self, said: bytes) -> bytes:
        self.crew.vary(self._kind, {name: sampler(given) for name, given in unpack(said).items()})
        return DONE

    def _render(self, said: bytes) -> bytes:
        picture = self.crew.instances[int(said)].render()
        return DONE + pack(None if picture is None else np.ascontiguousarray(picture))

    def _checked(self) -> bytes:
        """DONE, or what is not finite of what was shown and earned."""
        for what, array in self._numbers:
            if not np.isfinite(array).all():
                copy = int(np.argwhere(~np.isfinite(array))[0][0])
                return FAILED + f"{what} is NaN or infinite (copy {copy} of the worker's)".encode()
        return DONE


def _numbers(board: Board, layout: Layout, own: slice) -> list[tuple[str, np.ndarray]]:
    """The floating-point arrays that copies write, with what they are."""
    found = [("a reward", board.reward[own]), ("a group's reward", board.group_reward[own])]
    found += [(f"state '{name}'", x[own]) for name, x in board.state.items()]
    for role, arrays in board.obs.items():
        found += [(f"an observation of role '{role}'", x[own]) for x in arrays.values() if x.dtype.kind == "f"]
    return [(what, array) for what, array in found if array.size]


def words_of(error: Exception) -> bytes:
    """One line that names the error, and where it comes from if it is not a UserError."""
    return one_line(error).encode()


def outlast() -> None:
    """SIGTERM, which `timeout` and schedulers send to the whole process group, is left to the trainer from now on.

    What this process starts ends of it as ever: a signal that is ignored outright would be ignored there too.
    """
    signal.signal(signal.SIGTERM, _go_on)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_end_of_sigterm)


def _go_on(number: int, frame: FrameType | None) -> None:
    pass


def _end_of_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _go_on:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_with(life: Connection) -> None:
    """Ends this process when the trainer does, also while an environment hangs: nobody else holds the line's end."""
    if sys.platform == "linux":  # even in code that never gives the interpreter back
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    def watch() -> None:
        with suppress(EOFError, OSError):
            life.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, name="life line", daemon=True).start()
