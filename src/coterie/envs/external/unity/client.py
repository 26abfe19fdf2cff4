"""The trainer's side of the connection to a helper process, which communicates with one Unity environment."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from coterie.core.errors import EnvironmentFailedError, ReportedError, UserError
from coterie.envs.external.unity.framing import pack_message, unpack_message

VARIABLE = "COTERIE_UNITY_PYTHON"
"""Environment variable with the path of the interpreter that has mlagents-envs."""
VENV = ".venv-unity"
"""Folder of the virtual environment that `install` creates, in the current directory."""
INSTALL = "python -m coterie.envs.external.unity.install"
"""Command that creates it."""

_HELPER = Path(__file__).with_name("helper.py")
_MARGIN = 10.0
"""Seconds to wait for the helper beyond its own timeout."""
_CLOSE_TIMEOUT = 8.0
"""Seconds for a helper to end Unity and itself."""


@dataclass(frozen=True)
class Frame:
    """One message from Unity.

    Attributes:
        new: Behaviors that appeared since the last reset: `name`, `observations` (`name`, `shape`, `image` of every
            sensor), `continuous` and `discrete`.
        arrays: By name, for the I-th behavior and its agents that request a decision (`d`) or ended (`t`): `d id I`,
            `d group I`, `d reward I`, `d group_reward I`, `d obs I K` of the K-th sensor, `d mask I` (True where a
            choice is disallowed; missing if all are allowed), and `t interrupted I`.
    """

    new: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]


@final
class UnityClient:
    """A helper process and its Unity, which is started at once.

    Args:
        name: Name of the environment, for messages.
        python: Interpreter that has mlagents-envs.
        settings: `file` (None for the editor), `base_port` (None for any), `args`, `no_graphics`, `timeout`,
            `time_scale`, `parameters`, `areas`, `flat` (sensors that are not images).

    Raises:
        UserError: If the interpreter cannot be run.
    """

    def __init__(self, name: str, python: str, settings: Mapping[str, Any]):
        self._name, self._python, self._settings = name, python, settings
        self._timeout = float(settings["timeout"])
        self._unity_pid: int | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the helper)
        try:
            self._helper = subprocess.Popen(
                [python, "-E", "-s", str(_HELPER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches every process of a terminal; the trainer decides
            )
        except OSError as error:
            raise UserError(
                f"environment '{name}': {python} cannot be run: {error.strerror}. {_install_hint()}"
            ) from error
        self._send({"command": "start", **settings})

    def ready(self) -> None:
        """Waits until Unity has connected.

        Raises:
            UserError: If it does not.
        """
        content, _ = self._receive("could not be started")
        self._unity_pid = content["pid"]

    def seed(self, seed: int) -> None:
        """Sends Unity its seed of 31 bits, with which it starts. Called once, after `ready`."""
        self._send({"command": "seed", "seed": seed})
        self._receive("did not start")

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Sets environment parameters, after `seed`. The scene reads them at the next `reset` or `step`."""
        self._send({"command": "parameters", "values": dict(values)})
        self._receive("did not accept its parameters")

    def reset(self) -> Frame:
        """Resets the Unity scene."""
        self._send({"command": "reset"})
        return self._receive_frame()

    def step(self, actions: dict[str, np.ndarray]) -> Frame:
        """Advances Unity until an agent requests a decision or ends.

        Args:
            actions: `continuous I` [n, C] and `discrete I` [n, K] of the I-th behavior, for the agents that requested a
                decision, in their order.
        """
        self._send({"command": "step"}, actions)
        return self._receive_frame()

    def _receive_frame(self) -> Frame:
        content, arrays = self._receive("failed", EnvironmentFailedError)
        return Frame(content["new"], arrays)

    # ------------------------------------------------------------------------------------------------- communication

    def _send(self, content: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        assert self._helper is not None
        assert self._helper.stdin is not None
        message = memoryview(pack_message(content, arrays or {}))
        with suppress(BrokenPipeError):  # the reply gives the reason
            while message:
                message = message[self._helper.stdin.write(message) :]

    def _receive(
        self, failure: str, kind: type[ReportedError] = UserError
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next reply. If there is none or it is an error, ends helper and Unity, and raises the error: of `kind`,
        but a UserError for values that the interface does not allow.
        """
        deadline = time.monotonic() + self._timeout + _MARGIN
        try:
            content, arrays = unpack_message(lambda size: self._read(size, deadline))
        except EOFError:
            raise self._error(kind, failure, *self._exit_reason()) from None
        except (TimeoutError, ValueError) as error:
            raise self._error(kind, failure, f"its helper {error}") from None
        if "error" in content:
            if content["kind"] == "ValueError":
                kind = UserError
            raise self._error(kind, failure, *self._explain(content["kind"], content["error"]))
        return content, arrays

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._helper is not None
        assert self._helper.stdout is not None
        stdout = self._helper.stdout.fileno()
        parts = bytearray()
        while len(parts) < size:
            if (
                sys.platform != "win32"
                and not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            ):
                raise TimeoutError("does not reply")
            part = os.read(stdout, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _explain(self, kind: str, message: str) -> tuple[str, str]:
        """The reason for an error in one line, and how to fix it."""
        if kind == "UnityTimeOutException":
            return (
                f"Unity did not reply within {self._timeout:g} s",
                "Does it need a screen (env.no_graphics=true) or more time (env.timeout)? Is Behavior Type 'Default'?",
            )
        if kind == "ModuleNotFoundError":
            return f"{self._python} has no module {message.rpartition(' ')[2]}", _install_hint()
        if kind == "OSError" and "in use" in message:
            return message, (
                "Choose another env.base_port, or leave it out."
                if self._settings["file"]
                else "The editor supports one environment in one process: num_envs=1, workers.count=0, eval.every=0."
            )
        if "return code" in message:
            return message.rstrip("."), "See Unity's log for the reason (env.args=[-logFile,PATH])."
        return message, ""

    def _exit_reason(self) -> tuple[str, str]:
        """Why the helper ended, and how to fix it."""
        assert self._helper is not None
        with suppress(subprocess.TimeoutExpired):
            self._helper.wait(1.0)
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 2000))
        lines = self._stderr.read().decode(errors="replace").split("\n")
        last = next((text.strip() for text in reversed(lines) if text.strip()), "")
        reason = f"its helper ended with code {self._helper.returncode}"
        if "No module named" in last:
            return f"{self._python} has no module {last.rpartition(' ')[2]}", _install_hint()
        return (f"{reason}: {last}", "") if last else (reason, "")

    def _error(self, kind: type[ReportedError], failure: str, reason: str, fix: str = "") -> ReportedError:
        """Closes Unity, and returns the error."""
        self.close(grace=1.0)
        message = f"environment '{self._name}' {failure}: {reason}"
        return kind(f"{message}. {fix}" if fix else message)

    def close(self, grace: float = _CLOSE_TIMEOUT) -> None:
        """Ends Unity and the helper, by force after `grace` seconds. May be called more than once."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        assert helper.stdin is not None
        assert helper.stdout is not None
        if grace == _CLOSE_TIMEOUT:
            with suppress(OSError, subprocess.TimeoutExpired):
                helper.stdin.write(pack_message({"command": "close"}, {}))
                helper.wait(grace)
        with suppress(OSError):
            helper.stdin.close()  # the helper ends when its input does
        try:
            helper.wait(1.0)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()
            if self._unity_pid is not None:  # a helper that is killed does not end Unity
                with suppress(OSError):
                    os.kill(self._unity_pid, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        helper.stdout.close()
        self._stderr.close()

    def __del__(self) -> None:
        if getattr(self, "_helper", None) is not None:
            self.close(grace=0.0)


def find_interpreter(given: str | None) -> str:
    """Returns the interpreter that has mlagents-envs.

    Args:
        given: Its path; by default the environment variable's, otherwise the one that `install` creates.

    Raises:
        UserError: If it does not exist.
    """
    found = given or os.environ.get(VARIABLE)
    if found is None:
        folder = Path(VENV)
        found = str(folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    if not Path(found).is_file():
        where = "env.python" if given else VARIABLE if os.environ.get(VARIABLE) else "no interpreter for Unity"
        raise UserError(f"{where}: there is no {found}. {_install_hint()}")
    return found


def _install_hint() -> str:
    return f"Create it with {INSTALL}, or set env.python or {VARIABLE}."
