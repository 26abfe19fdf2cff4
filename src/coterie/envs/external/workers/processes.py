"""Environments stepped by worker processes, which write into memory shared with the trainer.

A worker that exits, raises, produces NaN or does not reply in time is killed and replaced. The episodes of its
environments are dropped (`SharedArrays.lost`), and new ones start. A worker that exits or does not reply outside a
step, for example while a checkpoint is saved, is replaced too; the next step drops its episodes. What an environment's
interface does not allow, such as a reward that is no number, ends the run, since new workers would not change it.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import select
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, final

import numpy as np

from coterie.config import callables
from coterie.config.samplers import Sampler
from coterie.config.schema import WorkersConfig
from coterie.core.errors import UserError, WorkersFailedError
from coterie.core.seeds import seed_of
from coterie.core.waiting import noted
from coterie.envs.contract.closing import report_once
from coterie.envs.external.hosting.factory import instance_factory, making
from coterie.envs.external.hosting.randomized import EnvFactory
from coterie.envs.external.hosting.shared_arrays import SharedArrays
from coterie.envs.external.hosting.vector_adapter import EnvBackend, located
from coterie.envs.external.workers.worker_loop import (
    CLOSE,
    CLOSED,
    FAILED,
    LOAD,
    REFUSED,
    RENDER,
    RESET,
    SET_SAMPLERS,
    STATE,
    STEP,
    Worker,
    WorkerFailure,
    WorkerSpec,
    pack,
    run_worker,
    unpack,
)

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 5.0
"""Seconds for all workers to close their environments before they are killed."""
_END_TIMEOUT = 2.0
"""Seconds for their processes to end then."""

PRELOADED = ["coterie.envs.external.workers.fork_server"]
"""Modules that the fork server imports once. The first user of a fork server in a process decides."""


@final
class ProcessWorker(Worker):
    """One process and the pipes to it."""

    def __init__(self, context: BaseContext, spec: WorkerSpec, memory: Any):
        self.spec = spec
        self._commands, worker_commands = context.Pipe()
        worker_lifeline, self._lifeline = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(  # pyright: ignore[reportAttributeAccessIssue]
            target=run_worker,
            args=(spec, memory, worker_commands, worker_lifeline),
            name=f"coterie environments {spec.start}+",
            daemon=True,
        )
        self._process.start()
        worker_commands.close()  # so that the connection closes with the process
        worker_lifeline.close()
        # A backend that is never closed must not block the interpreter's exit: multiprocessing only sends SIGTERM.
        Finalize(self, _kill, (self._process, self._commands, self._lifeline), exitpriority=0)
        self._wait_readable = _poller(self._commands)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def has_reply(self, seconds: float) -> bool:
        """True if a reply arrives within `seconds`."""
        return self._wait_readable(seconds)

    def send(self, command: bytes) -> None:
        try:
            self._commands.send_bytes(command)
        except OSError as error:
            raise WorkerFailure(self._exit_reason()) from error

    def receive(self, deadline: float, timeout: float) -> bytes:
        try:
            if not self._wait_readable(max(0.0, deadline - time.monotonic())):
                raise WorkerFailure(f"it did not reply within {timeout:g} s", timed_out=True)
            reply = self._commands.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerFailure(self._exit_reason()) from error
        if reply[:1] in (FAILED, REFUSED):
            raise WorkerFailure.of_reply(reply)
        return reply[1:]

    def _exit_reason(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its process was ended by signal {-code}"
        return f"its process ended with code {code}"

    def close(self, grace: float = 0.0) -> None:
        for connection in (self._commands, self._lifeline):
            with suppress(OSError):
                connection.close()
        if grace:
            self._process.join(grace)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _kill(process: BaseProcess, *connections: Connection) -> None:
    for connection in connections:
        with suppress(OSError):
            connection.close()
    process.kill()


@dataclass
class _PendingCommand:
    """A command that workers were sent.

    Attributes:
        deadline: Monotonic time until which they must reply.
        sent: The workers.
        failed: By worker, why it could not be sent the command.
    """

    deadline: float
    sent: list[int]
    failed: dict[int, WorkerFailure]


@final
class ProcessBackend(EnvBackend):
    """Divides the environments evenly among workers.

    Args:
        name: Name of the environment.
        params: Its settings `env.*`.
        num_envs: Number of environments.
        config: Number of workers, seconds per step, and failures to tolerate before WorkersFailedError.
        first_index: Index of the first environment within the whole vectorized environment.
        start_worker: Starts a worker that writes to the shared arrays; by default a process on this machine.

    Raises:
        UserError: If the environment cannot be made in a worker.
    """

    limits_close = True

    def __init__(
        self,
        name: str,
        params: Mapping[str, Any],
        num_envs: int,
        config: WorkersConfig,
        *,
        first_index: int = 0,
        start_worker: Callable[[WorkerSpec, SharedArrays], Worker] | None = None,
    ):
        self._timeout, self._max_restarts, self.failures = config.timeout, config.restarts, 0
        self._start_timeout = config.start_timeout
        self._context = _context()
        with making(name, config):
            layout, _ = instance_factory(name, params)
        if "agent_order" in params and params["max_agents"] is None:
            params = {**params, "agent_order": layout.spec.agents}  # in another process, agents may have another order
        self._name, self.factory = layout.spec.name, EnvFactory(name, dict(params))
        self._samplers: dict[str, Any] | None = None  # as they were sent to the workers
        # Anonymous memory: it is freed with the last process that maps it, however these end.
        size = SharedArrays.size(layout, num_envs)
        self._memory = self._context.RawArray("b", size)  # pyright: ignore[reportAttributeAccessIssue]
        self.shared = SharedArrays(layout, num_envs, memoryview(self._memory))
        self._start_worker = (
            (lambda spec: start_worker(spec, self.shared))
            if start_worker
            else (lambda spec: ProcessWorker(self._context, spec, self._memory))
        )
        self._seed = 0  # of the last seeded reset, from which seeds after a failure are derived
        specs = _worker_specs(name, params, num_envs, workers=config.count, first_index=first_index)
        self._pending: _PendingCommand | None = None
        self.dropped = np.zeros(num_envs, np.bool_)
        self.workers: list[Worker] = []
        try:
            self.workers = [self._start_worker(spec) for spec in specs]
            deadline = time.monotonic() + self._start_timeout
            for worker in self.workers:
                self._await_start(worker, deadline)
        except WorkerFailure as failure:
            self._end_workers(_END_TIMEOUT)
            raise UserError(f"environment '{name}' cannot be made in a worker process: {failure}") from failure
        except BaseException:
            self._end_workers(_END_TIMEOUT)
            raise

    def _await_start(self, worker: Worker, deadline: float) -> None:
        """Waits until a worker has made its environments. WorkerFailure if it fails or exceeds the limit."""
        try:
            with noted(f"a worker process to make {self._environments(worker.spec)}", self._start_timeout):
                worker.receive(deadline, self._start_timeout)
        except WorkerFailure as failure:
            if not failure.timed_out:
                raise
            fix = f"Fix the environment, or raise workers.timeout={self._timeout:g}: five times as long is allowed"
            raise WorkerFailure(f"{str(failure).removesuffix('.')}. {fix}", timed_out=True) from failure

    def _environments(self, spec: WorkerSpec) -> str:
        """The environments of a worker for messages."""
        last = spec.first_index + spec.count - 1
        which = f"environments {spec.first_index} to {last}" if spec.count > 1 else f"environment {last}"
        return f"{which} of {self._name}"

    @property
    def pids(self) -> list[int | None]:
        """Process IDs of the workers, in the order of their environments."""
        return [worker.pid for worker in self.workers]

    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        plain = {name: sampler.model_dump(mode="json") for name, sampler in samplers.items()}
        self._samplers = (self._samplers or {}) | plain
        for k in range(len(self.workers)):
            self._request(k, SET_SAMPLERS + pack(plain))

    def reset(self, seed: int | None) -> None:
        self._finish_pending()
        self._seed = self._seed if seed is None else seed
        self.dropped[...] = False
        self._broadcast(RESET + pack(seed))
        self._finish_pending()

    def send(self) -> None:
        self.shared.lost[...] = False
        self._broadcast(STEP, skip={k for k, w in enumerate(self.workers) if self.dropped[w.spec.start]})

    def receive(self) -> None:
        self._finish_pending()
        self.shared.lost[self.dropped] = True
        self.dropped[...] = False

    def _broadcast(self, command: bytes, skip: Collection[int] = ()) -> None:
        """Sends a command to all workers but some. `_finish_pending` must follow before any other command."""
        sent = [k for k in range(len(self.workers)) if k not in skip]
        failed = {k: why for k in sent if (why := _failure_of(self.workers[k].send, command))}
        self._pending = _PendingCommand(time.monotonic() + self._timeout, sent, failed)

    def _finish_pending(self) -> None:
        """Waits for the replies to a broadcast command, if there is one, and replaces workers that failed."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        failed = pending.failed
        for k in pending.sent:
            if k not in failed and (why := _failure_of(self.workers[k].receive, pending.deadline, self._timeout)):
                failed[k] = why
        for k, failure in failed.items():
            self._replace(k, failure)

    def _replace(self, k: int, failure: WorkerFailure) -> None:
        """Replaces the k-th worker, and starts new episodes in its environments.

        Raises:
            UserError: If the environment returned what its interface does not allow.
            WorkersFailedError: If workers failed too often.
        """
        spec = self.workers[k].spec
        which = self._environments(spec)
        while True:
            if failure.refused:
                raise located(failure, self._name, "step")
            self.workers[k].close()
            self.failures += 1
            if self.failures > self._max_restarts:
                raise WorkersFailedError(
                    f"workers failed {self.failures} times, most recently with {which}: {failure}. Fix the environment "
                    f"(see coterie check-env), or raise workers.restarts={self._max_restarts}."
                )
            log.warning("replaced a worker with %s, whose episodes are dropped: %s", which, failure)
            for array in self.shared.arrays.values():  # a NaN left here would be blamed on the new worker
                array[spec.own] = 0
            self.workers[k] = self._start_worker(spec)
            next_failure = _failure_of(self._start_episodes, self.workers[k])
            if next_failure is None:
                break
            failure = next_failure
        self.shared.lost[spec.own] = True

    def _start_episodes(self, worker: Worker) -> None:
        """Waits for a replacement, and starts new episodes in its environments."""
        self._await_start(worker, time.monotonic() + self._start_timeout)
        if self._samplers is not None:
            worker.send(SET_SAMPLERS + pack(self._samplers))
            worker.receive(time.monotonic() + self._timeout, self._timeout)
        worker.send(RESET + pack(seed_of(self._seed, "restart", self.failures)))
        worker.receive(time.monotonic() + self._timeout, self._timeout)

    def state_dict(self) -> list[dict[str, Any]]:
        return [state for k in range(len(self.workers)) for state in unpack(self._request(k, STATE))]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for k, worker in enumerate(self.workers):
            own = worker.spec.own
            self._request(k, LOAD + pack(states[own]))
            self.dropped[own] = False

    def render(self, env_index: int) -> np.ndarray | None:
        k = next(k for k, w in enumerate(self.workers) if w.spec.own.start <= env_index < w.spec.own.stop)
        return unpack(self._request(k, RENDER + str(env_index - self.workers[k].spec.start).encode()))

    def _request(self, k: int, command: bytes) -> bytes:
        """Returns the k-th worker's reply to a command. If the worker ends or does not reply, its replacement does.

        Raises:
            UserError: If the worker reports an error of its environment.
            WorkersFailedError: If workers failed too often.
        """
        self._finish_pending()
        reply = self._try_request(k, command)
        while isinstance(reply, WorkerFailure):
            if reply.replied:
                raise UserError(f"{self._name}: {reply}")
            self._replace(k, reply)
            self.dropped[self.workers[k].spec.own] = True
            if command[:1] == STATE:
                log.warning("the checkpoint holds new episodes of these environments: resuming is not exact")
            reply = self._try_request(k, command)
        return reply

    def _try_request(self, k: int, command: bytes) -> bytes | WorkerFailure:
        try:
            self.workers[k].send(command)
            return self.workers[k].receive(time.monotonic() + self._timeout, self._timeout)
        except WorkerFailure as failure:
            return failure

    def close(self) -> None:
        for line in self._end_workers(_CLOSE_TIMEOUT)[:1]:
            report_once(f"{self._name} in workers", f"{line}. Results are kept. Fix the environment.")

    def _end_workers(self, seconds: float) -> list[str]:
        """Closes the environments within a number of seconds, ends the workers, and returns what failed."""
        workers, self.workers = self.workers, []
        deadline = time.monotonic() + seconds
        for worker in workers:
            _failure_of(worker.send, CLOSE)  # it may have ended
        reasons = [_await_close(worker, deadline, seconds) for worker in workers]
        end = time.monotonic() + _END_TIMEOUT
        for worker in workers:
            worker.close(grace=max(0.0, end - time.monotonic()))
        return [f"{self._environments(w.spec)}: {why}" for w, why in zip(workers, reasons, strict=True) if why]


def _await_close(worker: Worker, deadline: float, seconds: float) -> str:
    """Waits until a worker has closed its environments, and returns what failed, if anything."""
    while True:
        failure, reply = _reply_of(worker, deadline, seconds)
        if failure is not None and failure.timed_out:
            return f"close() did not return within {seconds:g} s, the worker is killed"
        if failure is not None and not failure.replied:  # it has ended
            return ""
        if failure is None and reply.startswith(CLOSED):  # others are replies to earlier commands
            reason = reply.removeprefix(CLOSED).decode()
            return reason and f"close() failed: {reason}"


def _reply_of(worker: Worker, deadline: float, timeout: float) -> tuple[WorkerFailure | None, bytes]:
    try:
        return None, worker.receive(deadline, timeout)
    except WorkerFailure as failure:
        return failure, b""


def _worker_specs(
    name: str, params: Mapping[str, Any], num_envs: int, *, workers: int, first_index: int
) -> list[WorkerSpec]:
    """Divides the environments evenly among the workers, in order."""
    code = callables.serialize(name)
    shares = np.array_split(np.arange(num_envs), min(workers, num_envs))
    return [
        WorkerSpec(
            name=name,
            params=dict(params),
            num_envs=num_envs,
            start=int(share[0]),
            count=len(share),
            first_index=first_index + int(share[0]),
            code=code,
        )
        for share in shares
    ]


def _poller(connection: Connection) -> Callable[[float], bool]:
    """A function that waits at most the given seconds and returns True if there is data to read."""
    if not hasattr(select, "poll"):  # Windows
        return connection.poll
    poll = select.poll()  # reused: `connection.poll` makes one per call, which takes longer than the wait itself
    poll.register(connection.fileno(), select.POLLIN)
    return lambda seconds: bool(poll.poll(math.ceil(seconds * 1000)))


def _failure_of(function: Callable[..., Any], *args: Any) -> WorkerFailure | None:
    """Calls a function, and returns the WorkerFailure that it raises, if any."""
    try:
        function(*args)
    except WorkerFailure as failure:
        return failure
    return None


def _context() -> BaseContext:
    """A context whose processes start clean: a fork would copy PyTorch's thread pools in an inconsistent state."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
