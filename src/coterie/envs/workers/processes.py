"""Copies stepped by worker processes, which write into memory shared with the trainer.

A worker that ends, raises, shows NaN or does not answer in time is killed and another takes its copies. Their episodes
are dropped, which the board says (`lost`), and new ones begin.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import select
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, final

import numpy as np

from coterie.envs.hosting.board import Board
from coterie.envs.hosting.hosted import Host
from coterie.envs.hosting.opening import opened
from coterie.envs.hosting.varied import Kind
from coterie.envs.samplers import Sampler
from coterie.envs.workers.serve import FAILED, LOAD, RENDER, RESET, STATE, STEP, VARY, Post, serve
from coterie.envs.workers.wire import pack, unpack
from coterie.envs.workers.worker import Failure, Worker
from coterie.errors import UserError, WorkersFailedError
from coterie.seeds import seed_of

log = logging.getLogger(__name__)

_START = 300.0
"""Seconds that a worker may take to import its library and to make its copies."""


PRELOADED = ["coterie.envs.workers.server"]
"""Modules that the server which workers are forked from imports once; the first who starts one in a process decides."""


@final
class Process(Worker):
    """One process and the lines to it."""

    def __init__(self, context: BaseContext, post: Post, memory: Any):
        self.post = post
        self._orders, theirs = context.Pipe()
        its_life, self._life = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(  # pyright: ignore[reportAttributeAccessIssue]
            target=serve, args=(post, memory, theirs, its_life), name=f"coterie copies {post.start}+", daemon=True
        )
        self._process.start()
        theirs.close()  # so that an end of the process is the end of the line
        its_life.close()
        # Who never closes it must not wait for it at the end: what multiprocessing sends to end it is SIGTERM.
        Finalize(self, _end, (self._process, self._orders, self._life), exitpriority=0)
        self._answered = _waiting(self._orders)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def tell(self, order: bytes) -> None:
        try:
            self._orders.send_bytes(order)
        except OSError as error:
            raise Failure(self._end()) from error

    def answer(self, until: float, allowed: float) -> bytes:
        try:
            if not self._answered(max(0.0, until - time.monotonic())):
                raise Failure(f"it did not answer within {allowed:g} s")
            said = self._orders.recv_bytes()
        except (EOFError, OSError) as error:
            raise Failure(self._end()) from error
        if said[:1] == FAILED:
            raise Failure(said[1:].decode())
        return said[1:]

    def _end(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its process was ended by signal {-code}"
        return f"its process ended with code {code}"

    def close(self, patience: float = 0.0) -> None:
        for line in (self._orders, self._life):
            with suppress(OSError):
                line.close()
        if patience:
            self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _end(process: BaseProcess, *lines: Connection) -> None:
    for line in lines:
        with suppress(OSError):
            line.close()
    process.kill()


@dataclass
class _Order:
    """What all workers were told: answered before the monotonic time `until`; failed: who did not hear it."""

    until: float
    failed: dict[int, Failure]


@final
class Processes(Host):
    """Steps copies in `workers` processes, as many in each.

    timeout: seconds that a step of all a worker's copies may take; restarts: how many failures are mended before
    WorkersFailedError; begin: starts a worker that writes to the board, by default a process of this machine; first:
    the number of the first copy in the whole environment.
    """

    def __init__(
        self,
        name: str,
        params: Mapping[str, Any],
        copies: int,
        workers: int,
        timeout: float = 60.0,
        restarts: int = 10,
        begin: Callable[[Post, Board], Worker] | None = None,
        first: int = 0,
    ):
        self._timeout, self._restarts, self.failures = timeout, restarts, 0
        self._context = _context()
        layout, _ = opened(name, params)
        self._name, self.kind = layout.spec.name, Kind(name, dict(params))
        self._samplers: dict[str, Any] | None = None  # as workers were told, once they were
        # Has no name: it goes when the last process does that has it, however these end.
        self._memory = self._context.RawArray("b", Board.size(layout, copies))  # pyright: ignore[reportAttributeAccessIssue]
        self.board = Board(layout, copies, memoryview(self._memory))
        self._begun = (lambda post: begin(post, self.board)) if begin else self._process
        self._seed = 0  # of the last reset that had one, from which those after a failure come
        shares = np.array_split(np.arange(copies), min(workers, copies))
        self._posts = [Post(name, dict(params), copies, int(x[0]), len(x), first + int(x[0])) for x in shares]
        self._under_way: _Order | None = None
        self._workers: list[Worker] = []
        try:
            self._workers = [self._begun(post) for post in self._posts]
            until = time.monotonic() + _START
            for worker in self._workers:
                worker.answer(until, _START)
        except Failure as failure:
            self.close()
            raise UserError(f"environment '{name}' cannot be made in a worker process: {failure}") from failure
        except BaseException:
            self.close()
            raise

    def _process(self, post: Post) -> Worker:
        return Process(self._context, post, self._memory)

    @property
    def pids(self) -> list[int | None]:
        """Process numbers of the workers, in the order of their copies."""
        return [worker.pid for worker in self._workers]

    def vary(self, samplers: Mapping[str, Sampler]) -> None:
        told = {name: sampler.model_dump(mode="json") for name, sampler in samplers.items()}
        self._samplers = (self._samplers or {}) | told
        for worker in self._workers:
            self._ask(worker, VARY + pack(told))

    def reset(self, seed: int | None) -> None:
        self._finish()
        self._seed = self._seed if seed is None else seed
        self._order(RESET + pack(seed))
        self._finish()

    def send(self) -> None:
        self.board.lost[...] = False
        self._order(STEP)

    def receive(self) -> None:
        self._finish()

    def _order(self, order: bytes) -> None:
        """Tells every worker to do it; `_finish` has to come before anything else is asked."""
        failed = {k: why for k, worker in enumerate(self._workers) if (why := _tried(worker.tell, order))}
        self._under_way = _Order(time.monotonic() + self._timeout, failed)

    def _finish(self) -> None:
        """Waits for what workers were told, if anything; copies of those that fail begin new episodes elsewhere."""
        order, self._under_way = self._under_way, None
        if order is None:
            return
        failed = order.failed
        for k, worker in enumerate(self._workers):
            if k not in failed and (why := _tried(worker.answer, order.until, self._timeout)):
                failed[k] = why
        for k, failure in failed.items():
            self._replace(k, failure)

    def _replace(self, k: int, failure: Failure) -> None:
        """Another worker in the place of the k-th, whose copies begin anew."""
        while True:
            self._workers[k].close()
            self.failures += 1
            post = self._posts[k]
            number = post.start if post.first is None else post.first
            which = f"copies {number} to {number + post.count - 1}" if post.count > 1 else f"copy {number}"
            which = f"{which} of {self._name}"
            if self.failures > self._restarts:
                raise WorkersFailedError(
                    f"workers failed {self.failures} times, the last one with {which}: {failure}; mend the environment "
                    f"(coterie check-env), or allow more than workers.restarts={self._restarts}"
                )
            log.warning("a worker with %s is replaced, their episodes are dropped: %s", which, failure)
            own = slice(post.start, post.start + post.count)
            for array in self.board.arrays.values():  # a NaN that stayed would be taken for one of the new worker's
                array[own] = 0
            self._workers[k] = self._begun(post)
            again = _tried(self._begin, self._workers[k])
            if again is None:
                break
            failure = again
        self.board.lost[own] = True

    def _begin(self, worker: Worker) -> None:
        """Waits for a worker that takes over, and begins new episodes in its copies."""
        worker.answer(time.monotonic() + _START, _START)
        if self._samplers is not None:
            worker.tell(VARY + pack(self._samplers))
            worker.answer(time.monotonic() + self._timeout, self._timeout)
        worker.tell(RESET + pack(seed_of(self._seed, "restart", self.failures)))
        worker.answer(time.monotonic() + self._timeout, self._timeout)

    def state_dict(self) -> list[dict[str, Any]]:
        return [state for worker in self._workers for state in unpack(self._ask(worker, STATE))]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for worker in self._workers:
            own = states[worker.post.start : worker.post.start + worker.post.count]
            self._ask(worker, LOAD + pack(own))

    def render(self, copy: int) -> np.ndarray | None:
        worker = next(w for w in self._workers if w.post.start <= copy < w.post.start + w.post.count)
        return unpack(self._ask(worker, RENDER + str(copy - worker.post.start).encode()))

    def _ask(self, worker: Worker, order: bytes) -> bytes:
        """The answer of one worker; what it refuses is the user's to know."""
        self._finish()
        try:
            worker.tell(order)
            return worker.answer(time.monotonic() + self._timeout, self._timeout)
        except Failure as failure:
            raise UserError(f"{self._name}: {failure}") from None

    def close(self) -> None:
        for worker in self._workers:
            worker.close(patience=2.0)
        self._workers = []


def _waiting(line: Connection) -> Callable[[float], bool]:
    """What waits so many seconds at most for something to be read, and says whether there is."""
    if not hasattr(select, "poll"):  # Windows
        return line.poll
    waits = select.poll()  # kept: `line.poll` makes one a call, which takes longer than the wait itself
    waits.register(line.fileno(), select.POLLIN)
    return lambda seconds: bool(waits.poll(math.ceil(seconds * 1000)))


def _tried(what: Callable[..., Any], *args: Any) -> Failure | None:
    """Does it, and returns the failure if it is one."""
    try:
        what(*args)
    except Failure as failure:
        return failure
    return None


def _context() -> BaseContext:
    """Processes that start clean: a fork would copy PyTorch's threads half."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
