"""The Ray actor of a worker: steps its environments in arrays of its own, which it sends to the trainer.

Commands and replies are those of a worker process. Heavy modules are imported with the first command only, so that the
process that talks to Ray stays small, and versions are compared before anything else is imported.
"""

from __future__ import annotations

import json
import platform
import socket
import sys
from importlib import metadata
from typing import Any, final

import numpy as np

START = b"b"
"""The first command, with the trainer's `required_versions` as a line of JSON and what the worker has to make."""

HEADER = 64
"""Bytes before the arrays in a reply. The first one is DONE."""

_MAX_INLINE = 100_000  # bytes: Ray sends smaller replies within its messages, larger ones through its object store


def required_versions() -> dict[str, str]:
    """Returns the versions that must be equal for a trainer and its workers."""
    return {"coterie": metadata.version("coterie"), "Python": ".".join(platform.python_version_tuple()[:2])}


@final
class RayActor:
    """A worker on some machine of the cluster."""

    def __init__(self) -> None:
        self._service: Any = None
        self._memory = np.zeros(0, np.uint8)

    def do(self, command: bytes) -> bytes | np.ndarray:
        """Executes a command.

        Returns:
            DONE, FAILED or REFUSED and the result. For commands that change the arrays, HEADER bytes and the arrays:
            small ones as bytes, large ones as an array, which Ray's object store does not copy.
        """
        from coterie.envs.external.workers.worker_loop import DONE, FAILED, LOAD, RESET, STEP, error_bytes, failed_reply

        kind = command[:1]
        try:
            if kind == START:
                return self._start(command[1:])
            if kind == STEP:
                self._write_actions(command[1:])
            reply = self._service.handlers[kind](command[1:])
        except BaseException as error:  # Ray would end the actor
            return FAILED + error_bytes(error) if kind == START else failed_reply(error)
        if reply != DONE or kind not in (STEP, RESET, LOAD):
            return reply
        return self._memory if self._memory.size > _MAX_INLINE else self._memory.tobytes()

    def _start(self, content: bytes) -> bytes:
        """Makes the environments, if versions and arrays are equal to the trainer's."""
        import os

        from coterie.config import callables
        from coterie.core.errors import UserError
        from coterie.envs.external.hosting.factory import instance_factory
        from coterie.envs.external.hosting.shared_arrays import SharedArrays
        from coterie.envs.external.workers.worker_loop import DONE, WorkerService, WorkerSpec, pack, unpack

        trainer_versions, _, rest = content.partition(b"\n")
        versions, host = required_versions(), socket.gethostname()
        for what, version in json.loads(trainer_versions).items():
            if versions.get(what) != version:
                raise UserError(
                    f"{host} has {what} {versions.get(what)}, the trainer {version}. Install the same version there"
                )
        given = unpack(rest)
        sys.path += [path for path in given["paths"] if path not in sys.path and os.path.isdir(path)]
        code = None if given["code"] is None else given["code"].tobytes()
        callables.deserialize(given["name"], code)
        name, params, count = given["name"], given["params"], given["count"]
        layout, _ = instance_factory(name, params)
        if array_shapes(SharedArrays(layout, 1)) != given["shapes"]:
            raise UserError(
                f"{host} has other observation or action spaces for {name}. Install the same versions of its library"
            )
        self._memory = np.zeros(HEADER + SharedArrays.size(layout, count), np.uint8)
        self._memory[0] = DONE[0]
        spec = WorkerSpec(
            name=name, params=params, num_envs=count, start=0, count=count, first_index=given["first_index"]
        )
        self._service = WorkerService(spec, self._memory[HEADER:].data)
        return DONE + pack({"pid": os.getpid(), "host": host})

    def _write_actions(self, actions: bytes) -> None:
        """Writes actions into the arrays, in the order of `action_arrays`."""
        at = 0
        for array in action_arrays(self._service.shared):
            array[...] = np.frombuffer(actions, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes


def action_arrays(shared: Any) -> list[np.ndarray]:
    """Returns the arrays that hold actions."""
    return [*shared.discrete.values(), *shared.continuous.values()]


def array_shapes(shared: Any) -> dict[str, list[Any]]:
    """Returns the shape per environment and the dtype of every array, as plain values."""
    return {name: [list(array.shape[1:]), array.dtype.str] for name, array in shared.arrays.items()}
