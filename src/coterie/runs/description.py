"""Description of a run for its manifest: command, versions of packages, code and machine."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any


def describe(seed: int, command: Sequence[str], threads: int | None, now: datetime, **more: Any) -> dict[str, Any]:
    """Returns the manifest of this process: versions, git revision, seed, hardware and command line.

    Args:
        seed: Seed of the run.
        command: Words of the command line.
        threads: Number of PyTorch threads.
        now: Time of the start, with a time zone.
        **more: Further entries, such as `env`, `algo` and `levels` (returns that `coterie plot` draws as dashed lines).
    """
    return {
        "started": now.astimezone(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "seed": seed,
        "threads": threads,
        **code_versions(),
        "platform": platform.platform(),
        "hardware": {"cpu": _cpu(), "cores": _cores(), "memory_bytes": _memory(), "gpus": _gpus()},
        **more,
    }


def code_versions() -> dict[str, Any]:
    """Returns the manifest's entries `versions`, of Python and packages, and `git`, of the current folder."""
    packages = ("coterie", "torch", "numpy", "gymnasium", "safetensors")
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "git": {"revision": _git("rev-parse", "HEAD"), "modified": bool(_git("status", "--porcelain", "-uno"))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Returns git's output for the current folder, or None outside a repository, without git or after a timeout."""
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=3, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def _cpu() -> str:
    """Returns the processor's model."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Returns the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    """Returns the bytes of main memory, or None if the system does not report them."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _gpus() -> list[str]:
    """Returns the names of the GPUs, if PyTorch is loaded and finds any."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
