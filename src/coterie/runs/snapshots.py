"""Light snapshots of the policies of a run that is training, for `coterie watch`.

A snapshot is one safetensors file that holds what the policies need to act and no state of the training. It is replaced
atomically, so that readers find the old or the new one. It is not synchronized to disk: runs resume from checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from coterie.core import strict_json
from coterie.core.files import without_links
from coterie.core.serialize import Parts, decode, encode

SNAPSHOT = "policies.safetensors"
"""Name of the file, in the folder of the checkpoints."""
_SHARE = 100
"""A snapshot that takes a second is followed by at least this many seconds of training."""


@dataclass(frozen=True)
class Snapshot:
    """Policies of a run.

    Attributes:
        steps: Environment steps of the run when it was written.
        policies: State of each team's policy, on the CPU.
    """

    steps: int
    policies: dict[str, dict[str, Any]]


class PolicySnapshots:
    """Writes snapshots of policies at intervals of wall time, which take at most 1% of it.

    Args:
        path: The file.
        seconds: Seconds between snapshots; 0 for none.
        clock: Current time in seconds.
    """

    def __init__(self, path: Path, seconds: float, clock: Callable[[], float] = time.monotonic):
        self.path, self._seconds, self._clock = Path(path), seconds, clock
        self._due = clock() + seconds

    def write_if_due(self, steps: int, policies: Callable[[], dict[str, dict[str, Any]]]) -> bool:
        """Writes a snapshot if it is time for one. Failures are ignored: training does not depend on snapshots.

        Args:
            steps: Environment steps of the run.
            policies: Returns the state of each team's policy.

        Returns:
            True if a snapshot was written.
        """
        started = self._clock()
        if not self._seconds or started < self._due:
            return False
        written = False
        with contextlib.suppress(OSError):
            _replace(self.path, _content(Snapshot(steps, policies())))
            written = True
        now = self._clock()
        self._due = now + max(self._seconds, _SHARE * (now - started))
        return written

    def remove(self) -> None:
        """Removes the snapshot: the run starts from a checkpoint, or has saved a newer one. Restarts the interval."""
        self._due = self._clock() + self._seconds
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def read_snapshot(path: Path) -> Snapshot | None:
    """Returns the snapshot in a file, or None if there is none or it cannot be read."""
    try:
        with open(path, "rb", opener=without_links):
            pass  # a regular file
        with safetensors.safe_open(path, framework="pt") as file:
            tree = strict_json.parse((file.metadata() or {})["tree"].encode())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return Snapshot(int(tree["steps"]), decode(tree["policies"], Parts(tensors, {})))
    except (OSError, LookupError, TypeError, ValueError, safetensors.SafetensorError):
        return None


def _content(snapshot: Snapshot) -> bytes:
    parts = Parts()
    tree = {"steps": snapshot.steps, "policies": encode(snapshot.policies, "", parts)}
    # Copies, because tensors of a safetensors file cannot share storage.
    tensors = {name: tensor.clone() for name, tensor in parts.tensors.items()}
    return safetensors.torch.save(tensors, {"tree": json.dumps(tree, allow_nan=False)})


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".writing-{path.name}")
    with open(temporary, "wb", opener=without_links) as file:
        file.write(content)
    os.replace(temporary, path)
