"""Temporary folders that are removed at the end, and by a later process if their own one was killed.

A folder is locked as long as its process runs. The system releases the lock when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

_LOCK, _NEW_LOCK = "temporary-folder.lock", "temporary-folder.lock.new"
"""Files that only temporary folders have. A run has a `lock`, and its folder may have any name."""


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Context manager: a temporary folder, which is removed at the end.

    Args:
        prefix: Start of its name. Folders with the same prefix whose process was killed are removed first.
    """
    remove_abandoned(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        handle = os.open(Path(name) / _NEW_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is not None and _locks(handle):
                os.rename(Path(name) / _NEW_LOCK, Path(name) / _LOCK)  # a folder without it is never removed by others
            yield Path(name)
        finally:
            os.close(handle)


def remove_abandoned(prefix: str) -> None:
    """Removes temporary folders of this user that a process left when it was killed."""
    if fcntl is None:
        return
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another process removes it, or it is another user's
            handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if os.fstat(handle).st_uid == os.getuid() and _locks(handle):
                    shutil.rmtree(lock.parent)
            finally:
                os.close(handle)


def _locks(handle: int) -> bool:
    """Locks an open file. Returns False if another process has locked it, or if the file system has no locks."""
    assert fcntl is not None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
