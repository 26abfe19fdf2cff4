"""Free memory and disk space, as reported by the operating system and its containers."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import torch


def free_bytes(store: str, device: torch.device) -> int | None:
    """Returns the free bytes of the GPU (`device`), main memory or the temporary folder (`disk`); None if unknown."""
    if store == "disk":
        return shutil.disk_usage(tempfile.gettempdir()).free
    if store == "device" and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes() if store == "cpu" or device.type == "cpu" else None


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Returns the bytes of main memory that this process can still allocate, limited by machine and container."""
    known = [free for free in (_machine_free(root), *_container_free(root)) if free is not None]
    return min(known) if known else None


def _machine_free(root: Path) -> int | None:
    """Memory available without swapping, else free pages."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return None


def _container_free(root: Path) -> list[int]:
    """Limit minus usage of every control group of this process, versions 1 and 2."""
    try:
        lines = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    free = []
    for _, kinds, path in (line for line in lines if len(line) == 3):
        if kinds == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            with contextlib.suppress(OSError, ValueError):  # a group without limit has `max` instead of a number
                free.append(_group_free(base.joinpath(*parts[:depth]), *names))
    return free


def _group_free(folder: Path, limit: str, use: str, idle: str) -> int:
    """Remaining bytes of a group's limit; cached file pages count as free."""
    left = int((folder / limit).read_text()) - int((folder / use).read_text())
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith(idle + " "):
                left += int(line.split()[1])
    return max(0, left)


def format_bytes(nbytes: float) -> str:
    """Formats a number of bytes: `43 MB`, `1.2 GB`."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = 0
    while nbytes >= 999.5 and power < len(units) - 1:
        nbytes, power = nbytes / 1000, power + 1
    return f"{nbytes:.{1 if power and nbytes < 9.95 else 0}f} {units[power]}"
