"""What Ray runs for a worker: some copies with a board of their own, which goes to the trainer whenever it changed.

Orders and answers are those of a worker process. Nothing heavy is imported before the first one, so that the process
that talks to Ray stays small, and versions are compared before anything else is.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
from typing import Any, final

import numpy as np

BEGIN = b"b"
"""The first order: with a line of JSON, what `versions` says of the trainer, and a packed `posting`."""

HEAD = 64
"""Bytes before a board in an answer; the first one says that all went well."""

_INLINE = 100_000  # bytes: Ray sends so much within its messages, and what is larger through its store of objects


def versions() -> dict[str, str]:
    """What has to be alike where a trainer and its workers run."""
    import coterie

    return {"coterie": coterie.__version__, "Python": ".".join(platform.python_version_tuple()[:2])}


@final
class Actor:
    """A worker, wherever it runs."""

    def __init__(self) -> None:
        self._service: Any = None
        self._memory = np.zeros(0, np.uint8)

    def do(self, order: bytes) -> bytes | np.ndarray:
        """DONE or FAILED and what belongs to it; the board behind HEAD bytes where the order changes it. A small one
        goes as bytes; a large one as an array, which leaves Ray's store without a copy.
        """
        from coterie.envs.workers.serve import DONE, FAILED, LOAD, RESET, STEP, words_of

        kind = order[:1]
        try:
            if kind == BEGIN:
                return self._begin(order[1:])
            if kind == STEP:
                self._take(order[1:])
            answer = self._service.answers[kind](order[1:])
        except Exception as error:
            return FAILED + words_of(error)
        if answer != DONE or kind not in (STEP, RESET, LOAD):
            return answer
        return self._memory if self._memory.size > _INLINE else self._memory.tobytes()

    def _begin(self, said: bytes) -> bytes:
        """Makes the copies, if all is here as it is at the trainer's."""
        import os

        from coterie.envs.hosting.board import Board
        from coterie.envs.hosting.opening import opened
        from coterie.envs.workers.serve import DONE, Post, Service
        from coterie.envs.workers.wire import pack, unpack
        from coterie.errors import UserError

        theirs, _, rest = said.partition(b"\n")
        here, host = versions(), socket.gethostname()
        for what, version in json.loads(theirs).items():
            if here.get(what) != version:
                raise UserError(f"{host} has {what} {here.get(what)}, the trainer {version}: install the same there")
        post = unpack(rest)
        sys.path += [path for path in post["paths"] if path not in sys.path and os.path.isdir(path)]
        layout, _ = opened(post["name"], post["params"])
        count = post["count"]
        if shapes(Board(layout, 1)) != post["shapes"]:
            raise UserError(f"{host} shows other arrays of {post['name']}: install the same versions of its library")
        self._memory = np.zeros(HEAD + Board.size(layout, count), np.uint8)
        self._memory[0] = DONE[0]
        own = Post(post["name"], post["params"], count, 0, count, post["first"])
        self._service = Service(own, self._memory[HEAD:].data)
        return DONE + pack({"pid": os.getpid(), "host": host})

    def _take(self, actions: bytes) -> None:
        """Puts actions on the board, in the order that `acted` gives them."""
        at = 0
        for array in acted(self._service.board):
            array[...] = np.frombuffer(actions, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes

    def leave(self) -> None:
        """Gives back what the copies hold."""
        if self._service is not None:
            self._service.crew.close()


def acted(board: Any) -> list[np.ndarray]:
    """The arrays of a board that copies are told by."""
    return [*board.discrete.values(), *board.continuous.values()]


def shapes(board: Any) -> dict[str, list[Any]]:
    """What a copy shows and takes: every array's shape and type, as plain values."""
    return {name: [list(array.shape[1:]), array.dtype.str] for name, array in board.arrays.items()}
