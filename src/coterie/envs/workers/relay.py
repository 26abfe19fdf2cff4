"""The process that talks to Ray for a trainer.

Ray ends the process that it is used by when its own processes are lost, and it takes that one's signals. A trainer has
to save a checkpoint then, so Ray is used by this process, which the trainer is connected to by a socket. It ends when
the trainer does, and so do a Ray that it started and the workers that it has on any other.
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

from coterie.envs.workers.actor import Actor

KILL, LEAVE = b"k", b"x"
"""Orders to the relay itself: an actor goes at once, or after it has given back what it holds."""

NUMBER = 8
"""Bytes of the number of a worker before every order, and before every answer, in a message of its own."""

LOCAL = "local"

_DONE, _FAILED = b".", b"!"  # as serve.py has them, which imports PyTorch
_PATIENCE = 2.0  # seconds that copies may take to give back what they hold
_REACH = 10.0  # seconds that the head of a cluster may take to be reached
_ENDING = 8.0  # seconds that Ray may take to end
_LOOK = 2.0  # seconds between two looks at whether Ray is there
_STORE = 128 * 2**20  # bytes of a local Ray's store of objects
_CORES = 0.5  # of a worker in a cluster: those of training and those of evaluation are never busy at once


def main() -> None:
    """Arguments: the socket's handle, Ray's address, where that was before, a folder for a local Ray, and its cores."""
    line = Connection(int(sys.argv[1]))
    address, known, folder, cores = *sys.argv[2:5], int(sys.argv[5])
    _leave_signals()
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    try:
        import ray

        try:
            _join(ray, address, known, folder, cores)
        except Exception as error:
            line.send_bytes((0).to_bytes(NUMBER, "big"))
            line.send_bytes(_FAILED + _refusal(error).encode())
            return
        _leave_signals()  # Ray takes them
        line.send_bytes((0).to_bytes(NUMBER, "big"))
        line.send_bytes(_DONE + (address if address == LOCAL else ray.get_runtime_context().gcs_address).encode())
        threading.Thread(target=_end_with_node, args=(ray,), daemon=True).start()
        Relay(ray, line, 0.0 if address == LOCAL else _CORES).serve()
        ray.shutdown()
    except OSError:  # the trainer is gone
        pass
    finally:
        if address == LOCAL:
            shutil.rmtree(folder, ignore_errors=True)


def _leave_signals() -> None:
    """The trainer decides when this process ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _end_with(line: Connection) -> None:
    """Ends this process some seconds after the trainer, whatever it waits for. The kernel ends a local Ray with it."""
    watch = select.poll()
    watch.register(line.fileno(), 0)
    watch.poll()
    time.sleep(_ENDING)
    os._exit(1)


def _end_with_node(ray: Any) -> None:
    """Ends this process when Ray is lost on this machine: nothing that is asked of it would be answered then."""
    mine = ray.get_runtime_context().get_node_id()
    with suppress(Exception):  # Ray is shut down
        while not any(node["NodeID"] == mine and not node["Alive"] for node in ray.nodes()):
            time.sleep(_LOOK)
        os._exit(1)


def _join(ray: Any, address: str, known: str, folder: str, cores: int) -> None:
    """Starts a Ray of its own, or joins the one at the address."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != LOCAL:
        host, _, port = known.rpartition(":")
        if host:  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _REACH).close()
        ray.init(address=address, **quiet)
        return
    own = os.path.join(folder, "r")  # Ray opens its folder to all users; the one around it is the trainer's alone
    ray.init(
        address="local", num_cpus=cores, num_gpus=0, include_dashboard=False, object_store_memory=_STORE,
        _temp_dir=own, **quiet,
    )  # fmt: skip


def _refusal(error: Exception) -> str:
    """Why Ray is not there, in one line."""
    said = " ".join(f"{error}: {error.__cause__}".split() if error.__cause__ else str(error).split())
    if "AuthToken" in said or "AuthenticationError" in said:
        return "it asks for a token: set RAY_AUTH_MODE=token, and copy the head's ~/.ray/auth_token to this machine"
    return said.partition(" Traceback ")[0]


@final
class Relay:
    """Hands orders to actors, and their answers back, each as it comes."""

    def __init__(self, ray: Any, line: Connection, cores: float):
        self._ray, self._line = ray, line
        # Without restarts of Ray's: the trainer has to know that episodes were lost.
        self._kind = ray.remote(
            num_cpus=cores, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )(Actor)  # fmt: skip
        self._actors: dict[int, Any] = {}
        self._refs: dict[int, Any] = {}  # what is awaited of each actor: Ray forgets what nobody holds
        self._answers: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()

    def serve(self) -> None:
        """Until the trainer hangs up."""
        threading.Thread(target=self._answer, daemon=True).start()
        with suppress(EOFError, OSError):
            while True:
                message = self._line.recv_bytes()
                number, order = int.from_bytes(message[:NUMBER], "big"), message[NUMBER:]
                if order in (KILL, LEAVE):
                    self._end(number, order)
                else:
                    self._hand(number, order)

    def _hand(self, number: int, order: bytes) -> None:
        if number not in self._actors:
            self._actors[number] = self._kind.remote()
        self._refs[number] = self._actors[number].do.remote(order)
        self._refs[number].future().add_done_callback(lambda future: self._answers.put((number, future)))

    def _end(self, number: int, how: bytes) -> None:
        actor = self._actors.pop(number, None)
        self._refs.pop(number, None)
        if actor is None:
            return
        with suppress(Exception):  # it may be gone already
            if how == LEAVE:
                self._ray.wait([actor.leave.remote()], timeout=_PATIENCE)
            self._ray.kill(actor)

    def _answer(self) -> None:
        """Sends answers in a thread of its own: Ray's must not wait for a trainer that does not listen yet."""
        with suppress(OSError):
            while True:
                number, future = self._answers.get()
                error = future.exception()
                answer = future.result() if error is None else _FAILED + _words(error).encode()
                self._line.send_bytes(number.to_bytes(NUMBER, "big"))
                self._line.send_bytes(answer if isinstance(answer, bytes) else memoryview(answer))


def _words(error: BaseException) -> str:
    """What Ray says has become of an actor, in a few words."""
    said = " ".join(str(error).split())
    if "node has died" in said or "node died" in said or "node was terminated" in said:
        return "its node died"
    if type(error).__name__ == "ActorUnavailableError":
        return "its process or its node cannot be reached"
    if "ModuleNotFoundError" in said:
        return said[said.rindex("ModuleNotFoundError") :].split(". ")[0] + " on its node: install the same there"
    _, found, detail = said.partition("Worker exit detail: ")
    if found:
        return f"its process ended: {detail.split('. ')[0]}"
    return f"{type(error).__name__}: {said[:300]}"
