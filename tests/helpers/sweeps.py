"""Sweeps of tiny runs, started as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tinyruns import tiny


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Starts `coterie train -m` with settings of tiny runs in a folder."""
    command = [sys.executable, "-m", "coterie", "train", "-m", *tiny(*words)]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def sweep(folder: Path, *words: str, **environment: str) -> tuple[int, list[dict[str, Any]], str]:
    """Runs a sweep. Returns its exit code, the outcome of each job, and its messages."""
    process = start(folder, *words, "--json", **environment)
    out, messages = process.communicate(timeout=300)
    return process.returncode, [json.loads(line) for line in out.splitlines()], messages


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 200) -> None:
    """Waits until a file exists. Fails if the process ends first."""
    until = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
