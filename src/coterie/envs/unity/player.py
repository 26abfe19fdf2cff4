"""Coterie's end of the line to a helper, which speaks to one Unity environment."""

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

from coterie.envs.unity.framing import packed, unpacked
from coterie.errors import UserError

VARIABLE = "COTERIE_UNITY_PYTHON"
"""Of the process' environment: the interpreter that has mlagents-envs."""
PLACE = ".venv-unity"
"""The folder of the interpreter's own that `install` makes, below the one that Coterie is started in."""
INSTALL = "python -m coterie.envs.unity.install"
"""What makes it."""

_RELAY = Path(__file__).with_name("relay.py")
_MARGIN = 10.0
"""Seconds longer than the helper's own limit that it is waited for."""
_PATIENCE = 8.0
"""Seconds that a helper has to end Unity and itself."""


@dataclass(frozen=True)
class Frame:
    """What Unity sent at once.

    new: behaviours that were not there since the last reset, as the helper describes them: `name`, `observations`
    (`name`, `shape`, `picture` each), `continuous`, `discrete`; arrays: by name, of the I-th behaviour, of those who
    ask for a decision (`d`) and who ended (`t`): `d id I`, `d group I`, `d reward I`, `d group_reward I`, `d obs I K`
    of the K-th sensor, `d mask I` (True where a choice is barred, left out where there is none), and `t interrupted I`.
    """

    new: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]


@final
class Player:
    """A helper and its Unity, which starts at once.

    name: the environment's, for messages; python: the interpreter that has mlagents-envs; settings: of the start,
    `file` (None: the editor), `base_port` (None: any), `args`, `no_graphics`, `timeout`, `time_scale`, `parameters`,
    `areas`, `flat` (sensors that are no pictures).
    """

    def __init__(self, name: str, python: str, settings: Mapping[str, Any]):
        self._name, self._python, self._settings = name, python, settings
        self._timeout = float(settings["timeout"])
        self._unity: int | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the helper)
        try:
            self._helper = subprocess.Popen(
                [python, "-E", "-s", str(_RELAY)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches every process of a terminal; the trainer decides
            )
        except OSError as error:
            raise UserError(f"environment '{name}': {python} cannot be run: {error.strerror}: {_mend()}") from error
        self._tell({"order": "start", **settings})

    def ready(self) -> None:
        """Waits until Unity has called. UserError if it does not."""
        said, _ = self._answer("could not be started")
        self._unity = said["pid"]

    def begin(self, seed: int) -> None:
        """Hands Unity its seed, 31 bits, with which it begins. Once only, after `ready`."""
        self._tell({"order": "seed", "seed": seed})
        self._answer("could not be begun")

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Hands the scene these environment parameters, after `begin`; it reads them in the next `reset` or `step`."""
        self._tell({"order": "parameters", "values": dict(values)})
        self._answer("did not take its parameters")

    def reset(self) -> Frame:
        """Resets everything in Unity."""
        self._tell({"order": "reset"})
        return self._frame()

    def step(self, actions: dict[str, np.ndarray]) -> Frame:
        """Lets Unity go on until somebody asks for a decision or ends.

        actions: `continuous I` [n, C] and `discrete I` [n, K] of the I-th behaviour, in the order of those who asked.
        """
        self._tell({"order": "step"}, actions)
        return self._frame()

    def _frame(self) -> Frame:
        said, arrays = self._answer("failed")
        return Frame(said["new"], arrays)

    # ------------------------------------------------------------------------------------------------------ the line

    def _tell(self, said: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        assert self._helper is not None
        assert self._helper.stdin is not None
        message = memoryview(packed(said, arrays or {}))
        with suppress(BrokenPipeError):  # the answer says what happened
            while message:
                message = message[self._helper.stdin.write(message) :]

    def _answer(self, happened: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next answer. UserError, and the end of helper and Unity, if there is none or it says what went wrong."""
        until = time.monotonic() + self._timeout + _MARGIN
        try:
            said, arrays = unpacked(lambda size: self._exactly(size, until))
        except EOFError:
            raise self._failed(happened, *self._last_words()) from None
        except (TimeoutError, ValueError) as error:
            raise self._failed(happened, f"its helper {error}") from None
        if "error" in said:
            raise self._failed(happened, *self._explained(said["kind"], said["error"]))
        return said, arrays

    def _exactly(self, size: int, until: float) -> bytes:
        assert self._helper is not None
        assert self._helper.stdout is not None
        line = self._helper.stdout.fileno()
        parts = bytearray()
        while len(parts) < size:
            if sys.platform != "win32" and not select.select([line], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError("does not answer")
            part = os.read(line, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _explained(self, kind: str, said: str) -> tuple[str, str]:
        """What went wrong in one line, and the mend."""
        if kind == "UnityTimeOutException":
            return (
                f"Unity did not answer within {self._timeout:g} s",
                "does it need a screen (env.no_graphics=true), or more time (env.timeout)? Is Behavior Type 'Default'?",
            )
        if kind == "ModuleNotFoundError":
            return f"{self._python} has no module {said.rpartition(' ')[2]}", _mend()
        if kind == "OSError" and "in use" in said:
            return said, (
                "choose another env.base_port, or leave it out"
                if self._settings["file"]
                else "the editor serves one copy and one process: copies=1, workers.count=0, eval.every=0"
            )
        if "return code" in said:
            return said.rstrip("."), "its own log says why (env.args=[-logFile,PATH])"
        return said, ""

    def _last_words(self) -> tuple[str, str]:
        """What can be known of a helper that ended."""
        assert self._helper is not None
        with suppress(subprocess.TimeoutExpired):
            self._helper.wait(1.0)
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 2000))
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = next((text.strip() for text in reversed(lines) if text.strip()), "")
        what = f"its helper ended with code {self._helper.returncode}"
        if "No module named" in said:
            return f"{self._python} has no module {said.rpartition(' ')[2]}", _mend()
        return (f"{what}: {said}", "") if said else (what, "")

    def _failed(self, happened: str, why: str, mend: str = "") -> UserError:
        self.close(patience=1.0)
        said = f"environment '{self._name}' {happened}: {why}"
        return UserError(f"{said}: {mend}" if mend else said)

    def close(self, patience: float = _PATIENCE) -> None:
        """Ends Unity and the helper; after so many seconds by force. May be called twice."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        assert helper.stdin is not None
        assert helper.stdout is not None
        if patience == _PATIENCE:
            with suppress(OSError, subprocess.TimeoutExpired):
                helper.stdin.write(packed({"order": "close"}, {}))
                helper.wait(patience)
        with suppress(OSError):
            helper.stdin.close()  # which ends it, whatever it does
        try:
            helper.wait(1.0)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()
            if self._unity is not None:  # only a helper that could not do it leaves this to us
                with suppress(OSError):
                    os.kill(self._unity, signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
        helper.stdout.close()
        self._errors.close()

    def __del__(self) -> None:
        if getattr(self, "_helper", None) is not None:
            self.close(patience=0.0)


def interpreter(given: str | None) -> str:
    """The interpreter that has mlagents-envs: the one given, else the environment variable's, else `install`'s.

    UserError if there is none.
    """
    found = given or os.environ.get(VARIABLE)
    if found is None:
        folder = Path(PLACE)
        found = str(folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))
    if not Path(found).is_file():
        where = "env.python" if given else VARIABLE if os.environ.get(VARIABLE) else "no interpreter for Unity"
        raise UserError(f"{where}: there is no {found}: {_mend()}")
    return found


def _mend() -> str:
    return f"{INSTALL} makes one (or name it with env.python or {VARIABLE})"
