"""Folders that tests refer to."""

import os
import shutil
import tempfile
from pathlib import Path

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parents[1]

_MEMORY = Path("/dev/shm")


def _has_room(folder: Path) -> bool:
    """True if a folder can be written to, has room for the files of all tests, and programs in it can be executed."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > 4e9


TEMPORARY = _MEMORY if _has_room(_MEMORY) else Path(tempfile.gettempdir())
"""Folder of temporary files: in main memory, since a disk takes milliseconds to replace a file, or the usual one."""
