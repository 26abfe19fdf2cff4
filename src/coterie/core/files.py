"""Atomic file writing, synchronized to disk."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.text import coterie_command

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

LARGEST_TEXT = 8 * 2**20
"""Largest configuration, manifest or pointer, in bytes."""
LARGEST_LOG = 2**30
"""Largest log of metrics, in bytes."""


def disk_error(description: str, path: Path, error: OSError) -> UserError:
    """Returns the error of a failed write: the file, the reason, and how to fix it."""
    if error.errno == errno.ELOOP:
        return UserError(f"cannot write {description} {path}: it is a symbolic link, which is not followed. Remove it.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        run = next((folder for folder in (path, *path.parents) if _is_run(folder)), None)
        again = "start again" if run is None else f"continue with `{coterie_command('resume', run)}`"
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
    """Opener for `open` that accepts regular files only. It does not wait, nor follow a link at the end of `path`.

    Raises:
        OSError: If it is a symbolic link (ELOOP), a pipe, device or socket (EINVAL), or cannot be opened.
    """
    try:
        handle = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", path) from error
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "not a regular file", path) from error
        raise
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        if stat.S_ISDIR(kind):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return handle


def read_bytes(path: str | Path, limit: int = LARGEST_TEXT) -> bytes:
    """Returns the content of a file of a run, which may come from anybody.

    Args:
        path: The file.
        limit: Largest size, in bytes.

    Raises:
        OSError: If it is missing, a symbolic link, not a regular file, larger than `limit` or than the free memory.
    """
    with open(path, "rb", opener=without_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, more than {limit:,}", str(path))
        try:
            return file.read(size)
        except MemoryError as error:
            raise OSError(errno.ENOMEM, f"{size:,} bytes do not fit in memory", str(path)) from error


def read_text(path: str | Path, limit: int = LARGEST_TEXT) -> str:
    """Returns the text of a file of a run, see `read_bytes`. Raises OSError, or ValueError if it is not UTF-8."""
    return read_bytes(path, limit).decode("utf-8")


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
    """Replaces a file atomically by text, see `replace_file`."""
    replace_file(path, text.encode(), "the file")


def replace_file(path: Path, content: bytes, description: str) -> None:
    """Replaces a file atomically: readers and crashes see either the old or the new content.

    Args:
        path: The file.
        content: Its new content.
        description: Its description for error messages, such as `the file`.

    Raises:
        UserError: If the file cannot be written; the old content is kept.
    """
    if not path.name or os.path.isdir(path):
        raise UserError(f"cannot write {description} {path}: it is a folder. Name a file.")
    temporary = path.with_name(f".writing-{path.name}")
    try:
        if temporary.is_symlink():
            temporary.unlink()
        write_bytes(temporary, content)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:  # also a signal: what is left would be a file of nobody
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise disk_error(description, path, error) from error
        raise
