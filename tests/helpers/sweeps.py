"""Sweeps of tiny runs in processes of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from coterie.sweeps.ray_sweep import RayOptions
from tinyruns import Process, tiny


def start(folder: Path, *words: str, prepare: Callable[[], None] | None = None, **environment: str) -> Process:
    """Starts `coterie train -m` with settings of tiny runs in a folder."""
    prepare = prepare or partial(update_environment, environment)
    return Process(folder, "train", "-m", *tiny(*words), prepare=prepare)


def update_environment(variables: dict[str, str]) -> None:
    """Sets environment variables of this process."""
    os.environ.update(variables)


def sweep(folder: Path, *words: str, **options: Any) -> tuple[int, list[dict[str, Any]], str]:
    """Runs a sweep as `start`. Returns its exit code, the outcome of each job, and its output."""
    code, output = start(folder, *words, "--json", **options).end()
    return code, [json.loads(line) for line in output.splitlines() if line.startswith("{")], output


def copy_often() -> None:
    """Sweeps of this process on Ray copy runs all the time."""
    defaults = RayOptions.__init__.__defaults__ or ()
    RayOptions.__init__.__defaults__ = (*defaults[:-1], 0.1)
