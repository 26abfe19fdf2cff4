"""The process that talks to Ray for a trainer.

Ray ends the process that uses it when Ray's own processes are lost, and it replaces signal handlers. A trainer must
still save a checkpoint then, so this process uses Ray, and the trainer is connected to it by a socket. It ends with the
trainer, and with it end a local Ray that it started and the trainer's workers on a cluster.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import shutil
import signal
import socket
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, final

from coterie.envs.external.workers.ray_actor import RayActor

KILL = b"k"
"""Command to this process: end an actor."""

ENDED = b"~"
"""First byte of the reply for an actor that ended; the reason follows."""

ID_BYTES = 8
"""Bytes of the worker ID: before every command, and in a message of its own before every reply."""

LOCAL = "local"

_DONE, _FAILED = b".", b"!"  # as in worker_loop.py, which imports PyTorch
_CONNECT_TIMEOUT = 10.0  # seconds in which the head of a cluster has to accept a connection and to answer
_SHUTDOWN_TIMEOUT = 8.0  # seconds for Ray to end
_POLL_INTERVAL = 2.0  # seconds between two checks that Ray is alive
_OBJECT_STORE = 128 * 2**20  # bytes of a local Ray's object store
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Begin of an HTTP/2 connection, which gRPC uses: the preface and a frame of settings, those of default."""
_FRAME_HEADER, _SETTINGS = 9, 4  # size of a frame's header in bytes, and the type of settings, its fourth byte
_CORES = 0.5  # per worker in a cluster: the workers of training and of evaluation are never busy at the same time


def main() -> None:
    """Runs the process.

    Its arguments are the file descriptor of the socket, Ray's address, its last known host and port, and folder and
    cores of a local Ray.
    """
    connection = Connection(int(sys.argv[1]))
    address, known, folder, cores = *sys.argv[2:5], int(sys.argv[5])
    _ignore_signals()
    threading.Thread(target=_exit_with_trainer, args=(connection,), daemon=True).start()
    try:
        import ray

        try:
            connect_ray(ray, address, known=known, folder=folder, cores=cores)
        except Exception as error:
            connection.send_bytes((0).to_bytes(ID_BYTES, "big"))
            connection.send_bytes(_FAILED + connect_error(error).encode())
            return
        _ignore_signals()  # Ray replaces the handlers
        connection.send_bytes((0).to_bytes(ID_BYTES, "big"))
        connection.send_bytes(_DONE + (address if address == LOCAL else ray.get_runtime_context().gcs_address).encode())
        threading.Thread(target=_exit_with_node, args=(ray,), daemon=True).start()
        RayRelay(ray, connection, 0.0 if address == LOCAL else _CORES).serve()
        ray.shutdown()
    except OSError:  # the trainer closed the connection
        pass
    finally:
        if address == LOCAL:
            shutil.rmtree(folder, ignore_errors=True)


def _ignore_signals() -> None:
    """Leaves it to the trainer when this process ends."""
    for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        signal.signal(number, signal.SIG_IGN)


def _exit_with_trainer(connection: Connection) -> None:
    """Ends this process some seconds after the trainer, even while it waits. The kernel ends a local Ray with it."""
    poll = select.poll()
    poll.register(connection.fileno(), 0)
    poll.poll()
    time.sleep(_SHUTDOWN_TIMEOUT)
    os._exit(1)


def _exit_with_node(ray: Any) -> None:
    """Ends this process when Ray is lost on this machine, because no command would be answered any more."""
    own_node = ray.get_runtime_context().get_node_id()
    with suppress(Exception):  # Ray was shut down
        while not any(node["NodeID"] == own_node and not node["Alive"] for node in ray.nodes()):
            time.sleep(_POLL_INTERVAL)
        os._exit(1)


def connect_ray(ray: Any, address: str, *, known: str, folder: str, cores: int) -> None:
    """Starts a local Ray, or connects to the one at the address."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != LOCAL:
        host, _, port = known.rpartition(":")
        if host:  # fails early; Ray would retry for minutes
            require_answer(host.strip("[]"), int(port))
        ray.init(address=address, **quiet)
        return
    ray.init(
        address="local",
        num_cpus=cores,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE,
        _temp_dir=os.path.join(folder, "r"),  # readable by all users, unlike the folder around it
        **quiet,
    )


def require_answer(host: str, port: int) -> None:
    """Connects to a port and ends the connection once it answers as Ray's gRPC does, with a frame of settings.

    Raises:
        OSError: If it does not within 10 seconds.
    """
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT) as connection:
            is_encrypted = os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true")
            if is_encrypted:  # with certificates that Ray reads
                return
            answer = _first_bytes(connection)
        if answer is None:
            found = f"the port is open, but Ray did not answer within {_CONNECT_TIMEOUT:g} s"
        elif answer[3] == _SETTINGS:
            return
        else:
            found = f"the port is open, but its answer {answer!r} is not that of Ray"
    except ConnectionRefusedError:
        raise
    except ConnectionError:  # also while the connection is made
        found = "the port is open, but closes connections without an answer of Ray"
    raise ConnectionError(f"{found}. Check that it is the port of `ray start --head`, 6379 by default")


def _first_bytes(connection: socket.socket) -> bytes | None:
    """Begins HTTP/2 and returns the header of the first frame received, None if it does not come in time."""
    deadline, received = time.monotonic() + _CONNECT_TIMEOUT, b""
    try:
        connection.sendall(_PREFACE)
        while len(received) < _FRAME_HEADER:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(_FRAME_HEADER - len(received))
            if not part:
                raise ConnectionResetError
            received += part
    except TimeoutError:
        return None
    return received


def connect_error(error: Exception) -> str:
    """The reason why Ray cannot be used, in one line."""
    message = " ".join(f"{error}: {error.__cause__}".split() if error.__cause__ else str(error).split())
    if "AuthToken" in message or "AuthenticationError" in message:
        return "it requires a token. Set RAY_AUTH_MODE=token, and copy the head's ~/.ray/auth_token to this machine"
    return message.partition(" Traceback ")[0]


@final
class RayRelay:
    """Passes commands from the trainer to actors, and their replies back in the order in which they arrive.

    Args:
        ray: The module `ray`, initialized.
        connection: Connection to the trainer.
        cores: Cores to reserve per actor.
    """

    def __init__(self, ray: Any, connection: Connection, cores: float):
        self._ray, self._connection = ray, connection
        # No automatic restarts: the trainer must know that episodes were lost.
        options = {"num_cpus": cores, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self._actor_class = ray.remote(**options)(RayActor)
        self._actors: dict[int, Any] = {}
        self._refs: dict[int, Any] = {}  # pending replies: Ray drops results that nothing refers to
        self._replies: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Passes commands until the trainer closes the connection."""
        threading.Thread(target=self._send_replies, daemon=True).start()
        with suppress(EOFError, OSError):
            while True:
                message = self._connection.recv_bytes()
                worker, command = int.from_bytes(message[:ID_BYTES], "big"), message[ID_BYTES:]
                if command == KILL:
                    self._end_actor(worker)
                else:
                    self._execute(worker, command)

    def _execute(self, worker: int, command: bytes) -> None:
        if worker not in self._actors:
            self._actors[worker] = self._actor_class.remote()
        self._refs[worker] = self._actors[worker].do.remote(command)
        self._refs[worker].future().add_done_callback(lambda future: self._replies.put((worker, future)))

    def _end_actor(self, worker: int) -> None:
        actor = self._actors.pop(worker, None)
        self._refs.pop(worker, None)
        if actor is None:
            return
        with suppress(Exception):  # it may have ended already
            self._ray.kill(actor)

    def _send_replies(self) -> None:
        """Sends replies from a thread of its own: Ray's threads must not block while the trainer is not reading."""
        with suppress(OSError):
            while True:
                worker, future = self._replies.get()
                error = future.exception()
                reply = future.result() if error is None else ENDED + _actor_error(error).encode()
                self._connection.send_bytes(worker.to_bytes(ID_BYTES, "big"))
                self._connection.send_bytes(reply if isinstance(reply, bytes) else memoryview(reply))


def _actor_error(error: BaseException) -> str:
    """Describes in a few words why an actor failed."""
    message = " ".join(str(error).split())
    if "node has died" in message or "node died" in message or "node was terminated" in message:
        return "its node died"
    if type(error).__name__ == "ActorUnavailableError":
        return "its process or its node cannot be reached"
    if "ModuleNotFoundError" in message:
        reason = message[message.rindex("ModuleNotFoundError") :].split(". ")[0]
        return f"{reason} on its node. Install the same packages there"
    _, found, detail = message.partition("Worker exit detail: ")
    if found:
        return f"its process ended: {detail.split('. ')[0]}"
    return f"{type(error).__name__}: {message[:300]}"
