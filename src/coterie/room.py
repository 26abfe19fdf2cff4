"""How much memory and disk is free, as far as the operating system and its containers say."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import torch


def free_bytes(store: str, device: torch.device) -> int | None:
    """Bytes free on the GPU (`device`), in main memory, or in the temporary folder (`disk`); None where unknown."""
    if store == "disk":
        return shutil.disk_usage(tempfile.gettempdir()).free
    if store == "device" and device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return host_free() if store == "cpu" or device.type == "cpu" else None


def host_free(root: Path = Path("/")) -> int | None:
    """Bytes of main memory that this process can still take: the machine's or its container's, whichever is less."""
    known = [free for free in (_machine_free(root), *_container_free(root)) if free is not None]
    return min(known) if known else None


def _machine_free(root: Path) -> int | None:
    """What the kernel believes can be had without swapping, else the pages that are free."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return None


def _container_free(root: Path) -> list[int]:
    """Limit less use of every control group that this process is in, versions 1 and 2."""
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
            with contextlib.suppress(OSError, ValueError):  # `max` is no number: this group has no limit
                free.append(_group_free(base.joinpath(*parts[:depth]), *names))
    return free


def _group_free(folder: Path, limit: str, use: str, idle: str) -> int:
    """What is left of a group's limit; pages that only keep files at hand count as free."""
    left = int((folder / limit).read_text()) - int((folder / use).read_text())
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith(idle + " "):
                left += int(line.split()[1])
    return max(0, left)


def in_words(nbytes: float) -> str:
    """Bytes for people: `43 MB`, `1.2 GB`."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = 0
    while nbytes >= 999.5 and power < len(units) - 1:
        nbytes, power = nbytes / 1000, power + 1
    return f"{nbytes:.{1 if power and nbytes < 9.95 else 0}f} {units[power]}"
