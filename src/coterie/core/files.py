"""Atomic file writing, synchronized to disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from coterie.core.errors import UserError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None


def disk_error(description: str, path: Path, error: OSError) -> UserError:
    """Returns the error of a failed write: the file, the reason, and how to fix it."""
    if error.errno == errno.ELOOP:
        return UserError(f"cannot write {description} {path}: it is a symbolic link, which is not followed. Remove it.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        run = next((folder for folder in (path, *path.parents) if _is_run(folder)), None)
        again = "start again" if run is None else f"continue with `coterie resume {shlex.quote(str(run))}`"
        fix = f"Free some space, then {again}."
    else:
        fix = "Choose another folder."
    return UserError(f"cannot write {description} {path}: {error.strerror or error}. {fix}")


def _is_run(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return (folder / "config.yaml").is_file() and (folder / "manifest.json").is_file()
    return False


def sync_folder(path: Path) -> None:
    """Synchronizes a folder, so that created, renamed and removed names survive a power failure."""
    if os.name == "nt":  # folders cannot be opened on Windows
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time read and replace files of a folder; others wait.

    The lock is the folder's own and leaves no file. It has no effect on systems and file systems without locks.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def without_links(path: str, flags: int) -> int:
    """Opener for `open` that raises OSError (ELOOP) instead of following a symbolic link in the last part of `path`."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file and synchronizes it to disk.

    Raises:
        OSError: If the file cannot be written, or is a symbolic link.
    """
    with open(path, "wb", opener=without_links) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Replaces a file atomically: readers and crashes see either the old or the new content.

    Raises:
        UserError: If the file cannot be written; the old content is kept.
    """
    temporary = path.with_name(f".writing-{path.name}")
    try:
        if temporary.is_symlink():
            temporary.unlink()
        write_bytes(temporary, text.encode())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise disk_error("the file", path, error) from error
