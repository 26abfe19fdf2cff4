"""Workers: a worker as its backend sees it, and the main loop that executes the commands of the trainer on its share of
the environments.

Messages are encoded as JSON and safetensors, which cannot execute code.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import numpy as np
from safetensors.torch import load, save

from coterie.config import callables
from coterie.config.samplers import parse_sampler
from coterie.core import waiting
from coterie.core.errors import UserError, one_line
from coterie.core.serialize import Parts, decode, encode
from coterie.envs.external.hosting.factory import instance_factory
from coterie.envs.external.hosting.randomized import EnvFactory
from coterie.envs.external.hosting.shared_arrays import SerialEnvs, SharedArrays

_HEADER = 8  # bytes that hold the length of the JSON part


def pack(value: Any) -> bytes:
    """Encodes nested plain values and tensors.

    Raises:
        TypeError: For values of other types.
    """
    parts = Parts()
    text = json.dumps(encode(value, "", parts)).encode()
    return len(text).to_bytes(_HEADER, "big") + text + save(parts.tensors)


def unpack(content: bytes) -> Any:
    """Decodes what `pack` encoded."""
    stop = _HEADER + int.from_bytes(content[:_HEADER], "big")
    return decode(json.loads(content[_HEADER:stop]), Parts(load(content[stop:])))


STEP, RESET, STATE, LOAD, RENDER, SET_SAMPLERS, CLOSE = b"s", b"r", b"g", b"l", b"p", b"v", b"c"
"""First byte of a command."""
CLOSED = b"closed:"
"""Result of CLOSE, which the reason follows if that failed. It tells the reply from those to earlier commands."""
DONE, FAILED, REFUSED = b".", b"!", b"?"
"""First byte of a reply. REFUSED: the environment returned what its interface does not allow."""


@dataclass(frozen=True)
class WorkerSpec:
    """The environments that a worker steps.

    Attributes:
        name: Name of the environment.
        params: Its settings `env.*`.
        num_envs: Number of environments in the shared arrays.
        start: Index of the worker's first environment within the shared arrays.
        count: Number of the worker's environments.
        first_index: Index of its first environment within the whole vectorized environment.
        code: The environment's function, serialized by `callables.serialize`; None if it is imported by name.
    """

    name: str
    params: dict[str, Any]
    num_envs: int
    start: int
    count: int
    first_index: int
    code: bytes | None = None

    @property
    def own(self) -> slice:
        """The worker's part of the shared arrays."""
        return slice(self.start, self.start + self.count)


def run_worker(spec: WorkerSpec, memory: Any, commands: Connection, lifeline: Connection) -> None:
    """Executes commands until the trainer closes the connection.

    Args:
        spec: The environments to step.
        memory: Memory of the shared arrays, a ctypes array.
        commands: Receives commands and sends replies, each DONE, FAILED or REFUSED and the result.
        lifeline: A pipe whose other end only the trainer has. When it closes, this process exits.
    """
    gc.freeze()  # a collection would copy all that the fork server has imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the trainer decides
    ignore_sigterm()
    _exit_with_trainer(lifeline)
    waiting.is_worker = True
    try:
        worker = WorkerService(spec, memory)
        commands.send_bytes(DONE)
    except BaseException as error:  # signals do not raise KeyboardInterrupt in a worker
        commands.send_bytes(FAILED + error_bytes(error))
        return
    with suppress(EOFError, OSError):  # the trainer closed the connection
        while True:
            command = commands.recv_bytes()
            try:
                reply = worker.handlers[command[:1]](command[1:])
            except BaseException as error:
                reply = failed_reply(error)
            commands.send_bytes(reply)
            if command == CLOSE:
                return
    worker.handlers[CLOSE](b"")  # the trainer ended without closing the environments


class WorkerService:
    """The environments of a worker, and a handler for every command.

    Attributes:
        shared: The shared arrays.
        envs: The worker's environments.
        handlers: By first byte of a command, the function from its arguments to the reply.
    """

    def __init__(self, spec: WorkerSpec, memory: Any):
        import torch

        torch.set_num_threads(1)
        callables.deserialize(spec.name, spec.code)
        layout, make = instance_factory(spec.name, spec.params)
        self.shared = SharedArrays(layout, spec.num_envs, memoryview(memory))
        self.envs = SerialEnvs(make, self.shared, start=spec.start, count=spec.count, first_index=spec.first_index)
        self._factory = EnvFactory(spec.name, spec.params)
        self._float_arrays = _float_arrays(self.shared, spec.own)
        self.handlers: dict[bytes, Callable[[bytes], bytes]] = {
            STEP: self._step,
            RESET: self._reset,
            STATE: lambda _: DONE + pack(self.envs.state_dict()),
            LOAD: self._load,
            RENDER: self._render,
            SET_SAMPLERS: self._set_samplers,
            CLOSE: self._close,
        }

    def _step(self, _: bytes) -> bytes:
        self.envs.step()
        return self._checked()

    def _reset(self, seed: bytes) -> bytes:
        self.envs.reset(unpack(seed))
        return self._checked()

    def _load(self, state: bytes) -> bytes:
        self.envs.load_state_dict(unpack(state))
        return DONE

    def _set_samplers(self, samplers: bytes) -> bytes:
        parsed = {name: parse_sampler(value) for name, value in unpack(samplers).items()}
        self.envs.set_samplers(self._factory, parsed)
        return DONE

    def _render(self, index: bytes) -> bytes:
        image = self.envs.instances[int(index)].render()
        return DONE + pack(None if image is None else np.ascontiguousarray(image))

    def _close(self, _: bytes) -> bytes:
        try:
            self.envs.close()
        except BaseException as error:
            return DONE + CLOSED + error_bytes(error)
        return DONE + CLOSED

    def _checked(self) -> bytes:
        """DONE, or FAILED with the name of an array that contains NaN or infinity."""
        for what, array in self._float_arrays:
            if not np.isfinite(array).all():
                index = int(np.argwhere(~np.isfinite(array))[0][0])
                return FAILED + f"{what} is NaN or infinite (environment {index} of this worker)".encode()
        return DONE


def _float_arrays(shared: SharedArrays, own: slice) -> list[tuple[str, np.ndarray]]:
    """The floating-point arrays that environments write, with descriptions."""
    found = [("a reward", shared.reward[own]), ("a group reward", shared.group_reward[own])]
    found += [(f"state '{name}'", x[own]) for name, x in shared.state.items()]
    for role, arrays in shared.obs.items():
        found += [(f"an observation of role '{role}'", x[own]) for x in arrays.values() if x.dtype.kind == "f"]
    return [(what, array) for what, array in found if array.size]


def failed_reply(error: BaseException) -> bytes:
    """Returns the reply to a command that raised."""
    return (REFUSED if isinstance(error, UserError) else FAILED) + error_bytes(error)


def error_bytes(error: BaseException) -> bytes:
    """Returns the one-line description of an error for a reply."""
    return one_line(error).encode(errors="backslashreplace")  # lone surrogates cannot be encoded


_LEFT = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


def ignore_sigterm() -> None:
    """Leaves SIGTERM, which `timeout` and schedulers send to the whole process group, and SIGHUP to the trainer.

    Child processes keep the default action; a signal set to SIG_IGN would be ignored there as well.
    """
    for number in _LEFT:
        if signal.getsignal(number) != signal.SIG_IGN:  # as by `nohup`, also for child processes
            signal.signal(number, _ignore)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_restore_sigterm)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _restore_sigterm() -> None:
    for number in _LEFT:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)


def _exit_with_trainer(lifeline: Connection) -> None:
    """Ends this process together with the trainer, even while an environment hangs."""
    if sys.platform == "linux":  # works even in native code that never returns to the interpreter
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    def watch() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


class WorkerFailure(Exception):
    """A worker failed. The message gives the reason.

    Attributes:
        replied: The worker reported an error of its environment; otherwise it ended or did not reply in time.
        refused: The environment returned what its interface does not allow.
        timed_out: It did not reply in time.
    """

    def __init__(self, reason: str, *, replied: bool = False, refused: bool = False, timed_out: bool = False):
        super().__init__(reason)
        self.replied, self.refused, self.timed_out = replied or refused, refused, timed_out

    @classmethod
    def of_reply(cls, reply: bytes) -> WorkerFailure:
        """Returns the failure that a reply reports."""
        return cls(reply[1:].decode(), replied=reply[:1] == FAILED, refused=reply[:1] == REFUSED)


class Worker(ABC):
    """Receives commands and replies to each. Results are in the backend's shared arrays when it has replied."""

    spec: WorkerSpec

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process ID on the machine where the worker runs."""

    @abstractmethod
    def send(self, command: bytes) -> None:
        """Sends a command.

        Raises:
            WorkerFailure: If the connection is closed.
        """

    @abstractmethod
    def receive(self, deadline: float, timeout: float) -> bytes:
        """Waits for the reply to the last command.

        Args:
            deadline: Monotonic time until which to wait.
            timeout: Seconds that the worker had, for the error message.

        Raises:
            WorkerFailure: If there is no reply in time, or it reports an error.
        """

    @abstractmethod
    def close(self, grace: float = 0.0) -> None:
        """Ends the worker.

        Args:
            grace: Seconds for a process to end on its own before it is killed, once its environments are closed.
        """
