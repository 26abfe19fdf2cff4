"""Environments stepped by Ray workers, on this machine or on the machines of a cluster."""

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

from coterie.config.schema import WorkersConfig
from coterie.core.errors import UserError
from coterie.core.installation import install_extra
from coterie.core.process import available_cores
from coterie.core.waiting import noted
from coterie.envs.external.hosting.shared_arrays import SharedArrays
from coterie.envs.external.workers.processes import ProcessBackend
from coterie.envs.external.workers.ray_actor import HEADER, START, action_arrays, array_shapes, required_versions
from coterie.envs.external.workers.ray_client import ENDED, ID_BYTES, KILL, LOCAL
from coterie.envs.external.workers.worker_loop import (
    FAILED,
    LOAD,
    REFUSED,
    RESET,
    STEP,
    Worker,
    WorkerFailure,
    WorkerSpec,
    pack,
    unpack,
)

_START_TIMEOUT = 120.0  # seconds to start Ray or to connect to it
_CLOSE_TIMEOUT = 10.0  # seconds for it to end
connections: dict[str, RayConnection] = {}  # those in use, by address
_last_known: dict[str, str] = {}  # last address of `auto`; Ray would search for a dead cluster for minutes
_worker_ids = itertools.count(1)
_ENDED_HERE = "the trainer has ended it"
_TRAINER_ARRAYS = ("discrete ", "continuous ", "lost")
"""Prefixes of the arrays that the trainer writes."""


def ray_backend(
    name: str, params: Mapping[str, Any], num_envs: int, config: WorkersConfig, *, first_index: int = 0
) -> ProcessBackend:
    """Returns a backend whose workers run on Ray.

    Args:
        name: Name of the environment.
        params: Its settings `env.*`.
        num_envs: Number of environments.
        config: Number of workers, address of Ray, timeout and restarts.
        first_index: Index of the first environment within the whole vectorized environment.

    Raises:
        UserError: If Ray is not installed, or cannot be started or connected to.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"workers.kind=ray needs Ray, which is not installed: {install_extra('ray')}")
    workers = config.count * (1 + config.overlap)  # with double buffering, each half has `count` workers
    with connect(config.address, workers) as connection:
        try:
            connection.wait_until_ready()
        except WorkerFailure as failure:
            raise UserError(str(failure)) from None
        return ProcessBackend(
            name,
            params,
            num_envs,
            config,
            first_index=first_index,
            start_worker=lambda spec, shared: RayWorker(config.address, workers, spec=spec, shared=shared),
        )


@final
class RayConnection:
    """The process that talks to Ray, and the socket to it. All backends of an address share one.

    Args:
        address: `local`, `auto` or `host:port`.
        workers: Number of workers, for which a local Ray needs cores.
    """

    def __init__(self, address: str, workers: int):
        self.address, self.users = address, 0
        # A short path, because it holds sockets, whose paths are limited to about a hundred characters.
        self.folder = tempfile.mkdtemp(prefix="coterie-", dir="/tmp") if address == LOCAL else ""
        cores = str(max(workers, available_cores()))
        output = None if os.environ.get("COTERIE_DEBUG", "") not in {"", "0"} else subprocess.DEVNULL
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", "from coterie.envs.external.workers.ray_client import main; main()"),
                    *(str(other.fileno()), address, _last_known.get(address, address), self.folder, cores),
                ],
                pass_fds=[other.fileno()],
                env=process_environment(address),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                stdout=output,
                stderr=output,
            )
        self._connection = Connection(own.detach())
        self._replies: dict[int, deque[bytes]] = {0: deque()}
        self._error, self._ready, self._started = "", False, time.monotonic()

    @property
    def closed(self) -> bool:
        return bool(self._error) or self._process.poll() is not None

    def wait_until_ready(self) -> None:
        """Waits until Ray is started or connected to.

        Raises:
            WorkerFailure: If that fails.
        """
        if self._ready:
            return
        what = f"Ray (workers.address={self.address}) to {'start' if self.address == LOCAL else 'answer'}"
        try:
            with noted(what, _START_TIMEOUT):
                reply = self.receive(0, self._started + _START_TIMEOUT)
        except WorkerFailure as failure:
            reply = FAILED + str(failure).encode()
        if reply is None or reply[:1] == FAILED:
            why = f"no reply within {_START_TIMEOUT:g} s" if reply is None else reply[1:].decode()
            verb = "started" if self.address == LOCAL else "reached"
            self._error = f"workers.address={self.address}: Ray cannot be {verb}: {why}"
            if self.address != LOCAL:
                self._process.kill()  # Ray may ignore the end of the connection for minutes
            raise WorkerFailure(self._error)
        self._ready, _last_known[self.address] = True, reply[1:].decode()

    def send(self, worker: int, command: bytes) -> None:
        """Sends a command to a worker.

        Raises:
            WorkerFailure: If the connection is closed.
        """
        self._replies.setdefault(worker, deque())
        try:
            self._connection.send_bytes(worker.to_bytes(ID_BYTES, "big") + command)
        except OSError as error:
            raise WorkerFailure(self._closed_reason()) from error

    def receive(self, worker: int, deadline: float) -> bytes | None:
        """Returns the worker's next reply, None if there is none before the monotonic time `deadline`."""
        own = self._replies[worker]
        while not own:
            try:
                if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                    return None
                sender = int.from_bytes(self._connection.recv_bytes(), "big")
                reply = self._connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise WorkerFailure(self._closed_reason()) from error
            if sender in self._replies:  # otherwise from a worker that has been replaced
                self._replies[sender].append(reply)
        return own.popleft()

    def remove(self, worker: int) -> None:
        """Ends a worker."""
        with suppress(OSError):
            self._connection.send_bytes(worker.to_bytes(ID_BYTES, "big") + KILL)
        self._replies.pop(worker, None)

    def _closed_reason(self) -> str:
        if not self._error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._error = f"the process that talks to Ray ended with code {self._process.returncode}"
        return self._error

    def close(self) -> None:
        """Ends the process, and a local Ray with it."""
        with suppress(OSError):
            self._connection.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def process_environment(address: str) -> dict[str, str]:
    """Environment variables of the process that talks to Ray, and of a local Ray and its workers."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(_module_paths()), "RAY_USAGE_STATS_ENABLED": "0"}
    variables.pop("PYTHONWARNINGS", None)  # Ray's own warnings are not the user's to fix
    if address == LOCAL:
        variables |= {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listens on this machine only, on Linux as well
            "RAY_AUTH_MODE": "token",  # only for processes that know a secret, which is in no file
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
    return variables


def _module_paths() -> list[str]:
    """`sys.path` with absolute paths."""
    return [os.path.abspath(path) for path in sys.path]


@contextmanager
def connect(address: str, workers: int) -> Iterator[RayConnection]:
    """Keeps the connection to an address open."""
    connection = _acquire(address, workers)
    try:
        yield connection
    finally:
        _release(connection)


def _acquire(address: str, workers: int) -> RayConnection:
    connection = connections.get(address)
    if connection is None or connection.closed:
        connection = connections[address] = RayConnection(address, workers)
    connection.users += 1
    return connection


def _release(connection: RayConnection) -> None:
    connection.users -= 1
    if not connection.users:
        if connections.get(connection.address) is connection:
            del connections[connection.address]
        connection.close()


@final
class RayWorker(Worker):
    """A worker that Ray runs.

    Args:
        address: `local`, `auto` or `host:port`.
        workers: Number of workers of the whole backend.
        spec: The environments to step.
        shared: The trainer's arrays. Actions are sent from them, and results are copied into them.
    """

    def __init__(self, address: str, workers: int, *, spec: WorkerSpec, shared: SharedArrays):
        self.spec, self._shared = spec, shared
        self._id, self._command = next(_worker_ids), START
        self._pid: int | None = None
        self.host = ""
        """Name of the machine that it runs on."""
        self._connection: RayConnection | None = _acquire(address, workers)
        self._start_failure: WorkerFailure | None = None
        content = {
            "name": spec.name,
            "params": spec.params,
            "count": spec.count,
            "first_index": spec.first_index,
            "shapes": array_shapes(shared),
            "paths": _module_paths(),
            "code": None if spec.code is None else np.frombuffer(spec.code, np.uint8),
        }
        versions = json.dumps(required_versions()).encode()
        try:
            self._connection.send(self._id, START + versions + b"\n" + pack(content))
        except WorkerFailure as failure:  # raised by `receive`
            self._start_failure = failure

    @property
    def pid(self) -> int | None:
        return self._pid

    def send(self, command: bytes) -> None:
        if self._connection is None:
            raise WorkerFailure(_ENDED_HERE)
        self._command = command[:1]
        if self._command == STEP:
            command += b"".join(x[self.spec.own].tobytes() for x in action_arrays(self._shared))
        self._connection.send(self._id, command)

    def receive(self, deadline: float, timeout: float) -> bytes:
        if self._start_failure is not None:
            raise self._start_failure
        if self._connection is None:
            raise WorkerFailure(_ENDED_HERE)
        self._connection.wait_until_ready()
        reply = self._connection.receive(self._id, deadline)
        if reply is None:
            hint = ". Does the cluster have free cores? Each worker needs half a core" if self._command == START else ""
            raise WorkerFailure(f"it did not reply within {timeout:g} s{hint}", timed_out=True)
        if reply[:1] in (FAILED, REFUSED, ENDED):
            raise WorkerFailure.of_reply(reply)
        if self._command == START:
            started = unpack(reply[1:])
            self._pid, self.host = started["pid"], started["host"]
        elif self._command in (STEP, RESET, LOAD):
            self._copy_results(reply)
            return b""
        return reply[1:]

    def _copy_results(self, reply: bytes) -> None:
        """Copies the arrays that the worker wrote."""
        received = SharedArrays(self._shared.layout, self.spec.count, memoryview(reply)[HEADER:])
        for name, array in received.arrays.items():
            if not name.startswith(_TRAINER_ARRAYS):
                np.copyto(self._shared.arrays[name][self.spec.own], array)

    def close(self, grace: float = 0.0) -> None:
        if self._connection is None:
            return
        self._connection.remove(self._id)
        _release(self._connection)
        self._connection = None
