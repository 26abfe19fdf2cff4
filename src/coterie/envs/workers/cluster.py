"""Copies stepped by workers that Ray runs: on this machine, or on all those of a cluster."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np

from coterie.envs.hosting.board import Board
from coterie.envs.workers.actor import BEGIN, HEAD, acted, shapes, versions
from coterie.envs.workers.processes import Processes
from coterie.envs.workers.relay import KILL, LEAVE, LOCAL, NUMBER
from coterie.envs.workers.serve import FAILED, LOAD, RESET, STEP, Post
from coterie.envs.workers.wire import pack, unpack
from coterie.envs.workers.worker import Failure, Worker
from coterie.errors import UserError
from coterie.schema import WorkersConfig, available_cores

_START = 120.0  # seconds that Ray may take to start or to be joined
_END = 10.0  # seconds that it may take to end
_lines: dict[str, Line] = {}  # those in use, by address
_found: dict[str, str] = {}  # what `auto` was when it was last joined; Ray would look for one that died for minutes
_numbers = itertools.count(1)


def on_ray(name: str, params: Mapping[str, Any], copies: int, config: WorkersConfig, first: int = 0) -> Processes:
    """A host whose workers are Ray's; first: the number of its first copy in the whole environment. UserError without
    Ray, and where it cannot be started or joined.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError("workers.kind=ray needs Ray, which is not installed: pip install 'coterie[ray]'")
    workers = config.count * (1 + config.overlap)  # where copies stand in halves, each has so many
    with line_to(config.address, workers) as line:
        try:
            line.wait()
        except Failure as failure:
            raise UserError(str(failure)) from None
        return Processes(
            name, params, copies, config.count, config.timeout, config.restarts,
            lambda post, board: RayWorker(config.address, workers, post, board), first,
        )  # fmt: skip


@final
class Line:
    """The process that talks to Ray, and the socket to it. All hosts of an address share one."""

    def __init__(self, address: str, workers: int):
        self.address, self.users = address, 0
        # Short, because sockets lie in it, whose paths are limited to some hundred characters.
        self._folder = tempfile.mkdtemp(prefix="coterie-", dir="/tmp") if address == LOCAL else ""
        cores = str(max(workers, available_cores()))
        said = None if os.environ.get("COTERIE_DEBUG", "") not in {"", "0"} else subprocess.DEVNULL
        mine, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", "from coterie.envs.workers.relay import main; main()"),
                    *(str(theirs.fileno()), address, _found.get(address, address), self._folder, cores),
                ],
                pass_fds=[theirs.fileno()], env=_environment(address), stdin=subprocess.DEVNULL, start_new_session=True,
                stdout=said, stderr=said,
            )  # fmt: skip
        self._connection = Connection(mine.detach())
        self._answers: dict[int, deque[bytes]] = {0: deque()}
        self._fault, self._joined, self._since = "", False, time.monotonic()

    @property
    def gone(self) -> bool:
        return bool(self._fault) or self._process.poll() is not None

    def wait(self) -> None:
        """Until Ray is there. Failure if it will not be."""
        if self._joined:
            return
        said = self.answer(0, self._since + _START)
        if said is None or said[:1] == FAILED:
            why = f"no answer within {_START:g} s" if said is None else said[1:].decode()
            verb = "started" if self.address == LOCAL else "joined"
            self._fault = f"workers.address={self.address}: Ray cannot be {verb}: {why}"
            raise Failure(self._fault)
        self._joined, _found[self.address] = True, said[1:].decode()

    def tell(self, number: int, order: bytes) -> None:
        """Sends an order to a worker. Failure if nobody listens."""
        self._answers.setdefault(number, deque())
        try:
            self._connection.send_bytes(number.to_bytes(NUMBER, "big") + order)
        except OSError as error:
            raise Failure(self._ended()) from error

    def answer(self, number: int, until: float) -> bytes | None:
        """The worker's next answer; None if there is none before the monotonic time `until`."""
        mine = self._answers[number]
        while not mine:
            try:
                if not self._connection.poll(max(0.0, until - time.monotonic())):
                    return None
                sender = int.from_bytes(self._connection.recv_bytes(), "big")
                said = self._connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise Failure(self._ended()) from error
            if sender in self._answers:  # else of one that was replaced since
                self._answers[sender].append(said)
        return mine.popleft()

    def forget(self, number: int, how: bytes) -> None:
        """Lets a worker go."""
        with suppress(OSError):
            self._connection.send_bytes(number.to_bytes(NUMBER, "big") + how)
        self._answers.pop(number, None)

    def _ended(self) -> str:
        if not self._fault:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._fault = f"the process that talks to Ray ended with code {self._process.returncode}"
        return self._fault

    def close(self) -> None:
        with suppress(OSError):
            self._connection.close()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()  # a Ray that it started goes with it
            self._process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _environment(address: str) -> dict[str, str]:
    """Variables for the process that talks to Ray, and for a local Ray and its workers."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(_paths()), "RAY_USAGE_STATS_ENABLED": "0"}
    found.pop("PYTHONWARNINGS", None)  # Ray's own are not the user's to mend
    if address == LOCAL:
        found |= {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # which has it listen to this machine alone, on Linux too
            "RAY_AUTH_MODE": "token",  # to those of this machine who know a secret, which no file holds
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
    return found


def _paths() -> list[str]:
    """Where modules are found, wherever one stands."""
    return [os.path.abspath(path) for path in sys.path]


@contextmanager
def line_to(address: str, workers: int) -> Iterator[Line]:
    """The line to an address for as long as it takes."""
    line = _taken(address, workers)
    try:
        yield line
    finally:
        _given_back(line)


def _taken(address: str, workers: int) -> Line:
    line = _lines.get(address)
    if line is None or line.gone:
        line = _lines[address] = Line(address, workers)
    line.users += 1
    return line


def _given_back(line: Line) -> None:
    line.users -= 1
    if not line.users:
        if _lines.get(line.address) is line:
            del _lines[line.address]
        line.close()


@final
class RayWorker(Worker):
    """A worker that Ray runs, and its part of the board."""

    def __init__(self, address: str, workers: int, post: Post, board: Board):
        self.post, self._own = post, slice(post.start, post.start + post.count)
        self._board, self._number, self._order = board, next(_numbers), BEGIN
        self._pid: int | None = None
        self.host = ""
        """Name of the machine that it is on."""
        self._line: Line | None = _taken(address, workers)
        self._lost: Failure | None = None
        first = post.start if post.first is None else post.first
        said = {"name": post.name, "params": post.params, "count": post.count, "first": first}
        said |= {"shapes": shapes(board), "paths": _paths()}
        try:
            self._line.tell(self._number, BEGIN + json.dumps(versions()).encode() + b"\n" + pack(said))
        except Failure as failure:  # is answered
            self._lost = failure

    @property
    def pid(self) -> int | None:
        return self._pid

    def tell(self, order: bytes) -> None:
        assert self._line is not None
        self._order = order[:1]
        if self._order == STEP:
            order += b"".join(x[self._own].tobytes() for x in acted(self._board))
        self._line.tell(self._number, order)

    def answer(self, until: float, allowed: float) -> bytes:
        if self._lost is not None:
            raise self._lost
        assert self._line is not None
        self._line.wait()
        said = self._line.answer(self._number, until)
        if said is None:
            waits = ": are there free cores in the cluster? A worker takes half a one" if self._order == BEGIN else ""
            raise Failure(f"it did not answer within {allowed:g} s{waits}")
        if said[:1] == FAILED:
            raise Failure(said[1:].decode())
        if self._order == BEGIN:
            found = unpack(said[1:])
            self._pid, self.host = found["pid"], found["host"]
        elif self._order in (STEP, RESET, LOAD):
            self._show(said)
            return b""
        return said[1:]

    def _show(self, said: bytes) -> None:
        """Copies what the worker's board shows and what the step brought."""
        theirs = Board(self._board.layout, self.post.count, memoryview(said)[HEAD:])
        for name, array in theirs.arrays.items():
            if not name.startswith(_KEPT):
                np.copyto(self._board.arrays[name][self._own], array)

    def close(self, patience: float = 0.0) -> None:
        if self._line is None:
            return
        self._line.forget(self._number, LEAVE if patience else KILL)
        _given_back(self._line)
        self._line = None


_KEPT = ("discrete ", "continuous ", "lost")
"""Arrays that the trainer writes."""
