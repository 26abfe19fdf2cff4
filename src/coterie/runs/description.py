"""Description of a run for its manifest: command, machine, packages, and changes in the user's git repository.

No environment variables are recorded. Everything of git is optional: without git, or if it fails, entries are missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

PATCH_BYTES = 100_000
"""Bytes of a patch that are recorded; the rest is omitted."""

_TIMEOUT = 5.0
"""Seconds allowed for each call of git."""

_MOST_NAMES = 200
"""Untracked files and folders that are named."""

_SECRET = ("*.env", ".env*", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa*", "id_ed25519*", "*credential*", "*secret*")
"""Patterns of names of files that may hold secrets. Their changes are not recorded."""

_GIT = (
    "git",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.quotePath=false",
    "-c",
    "color.ui=never",
)
"""The start of each git command: it writes nothing, and starts no program that the repository configures."""


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
        "started": now.astimezone(UTC).isoformat(timespec="seconds"),
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
        "git": {
            "revision": _git("rev-parse", "HEAD"),
            "modified": bool(_git("status", "--porcelain", "-uno")),
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Returns git's output for the current folder, or None outside a repository, without git or after a timeout."""
    found = _read(Path(), *arguments)
    return found.decode(errors="replace").strip() or None if found else None


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


# ----------------------------------------------------------------------------------------------------------------- code


def project_record(folders: list[Path]) -> dict[str, Any] | None:
    """Returns revision, patch and untracked files of the first of `folders` in a git repository; None without one.

    Returns:
        `folder`, the repository's folder; `revision`, None before the first commit; `patch`, the difference between the
        revision and the tracked files, at most `PATCH_BYTES`; `patch_bytes` and `patch_sha256` of the whole patch;
        `patch_truncated`, which also marks a patch that git could not complete; `omitted`, changed files that may hold
        secrets; `untracked`, names of files and folders that git neither tracks nor ignores; `untracked_more`, the
        number of those that are not named.
    """
    root = next((found for found in map(_root, folders) if found is not None), None)
    if root is None:
        return None
    revision = _read(root, "rev-parse", "--verify", "--quiet", "HEAD")
    record: dict[str, Any] = {"folder": str(root), "revision": revision.decode().strip() or None if revision else None}
    if record["revision"]:
        record |= _patch(root)
    names = _names(root, "ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory", "-z")
    return record | {"untracked": names[:_MOST_NAMES], "untracked_more": len(names[_MOST_NAMES:])}


def installed_versions() -> dict[str, str]:
    """Returns the versions of all installed packages by normalized name, sorted.

    They are read from the names of the packages' folders, which takes a thousandth of the time of reading their files.
    """
    found: dict[str, str] = {}
    for place in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(place or ".")):
                match = re.fullmatch(r"([^-]+)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info", name)
                if match:
                    found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
    return dict(sorted(found.items()))


def _root(folder: Path) -> Path | None:
    """Returns the folder of the git repository of a folder; None for installed packages and without a repository."""
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return None
    found = _read(folder, "rev-parse", "--show-toplevel")
    return Path(os.fsdecode(found).rstrip("\n")) if found else None


def _patch(root: Path) -> dict[str, Any]:
    """Returns the entries of the record that describe changes of tracked files."""
    secret = [f":(icase,glob)**/{pattern}" for pattern in _SECRET]
    omitted = _names(root, "diff", "--name-only", "-z", "HEAD", "--", *secret)
    options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/")
    kept, size, digest = bytearray(), 0, hashlib.sha256()
    arguments = ("diff", *options, "HEAD", "--", ".", *(f":(exclude,{pattern[2:]}" for pattern in secret))
    with _running(root, *arguments) as (process, stream):
        for chunk in iter(lambda: stream.read(1 << 16), b""):
            kept += chunk[: PATCH_BYTES - len(kept)]
            digest.update(chunk)
            size += len(chunk)
    complete = process.returncode == 0
    return {
        "patch": kept.decode(errors="replace"),
        "patch_bytes": size,
        "patch_sha256": digest.hexdigest() if complete else None,
        "patch_truncated": size > len(kept) or not complete,
        "omitted": omitted,
    }


def _names(root: Path, *arguments: str) -> list[str]:
    """Returns the names that a git command prints, separated by null bytes."""
    found = _read(root, *arguments) or b""
    return [name.decode(errors="replace") for name in found.split(b"\0") if name]


def _read(folder: Path, *arguments: str) -> bytes | None:
    """Returns git's output; None without git, a repository or a result."""
    try:
        return subprocess.run([*_GIT, *arguments], cwd=folder, capture_output=True, timeout=_TIMEOUT, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


@contextlib.contextmanager
def _running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Starts git and opens its output, which may be long. Ends git after a timeout."""
    command = [*_GIT, *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        timer = threading.Timer(_TIMEOUT, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            yield process, process.stdout
        finally:
            timer.cancel()
