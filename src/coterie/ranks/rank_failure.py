"""Reasons of failed ranks, as files for the process that started them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from coterie.core.errors import ReportedError
from coterie.core.files import write_text

FOLDER = "COTERIE_RANKS_FOLDER"
"""Environment variable of a rank that a command of Coterie started: the folder of its store and its messages."""
RANK = "COTERIE_RANK"
"""Environment variable of such a rank: its number."""
FAILED, LOST = 3, 4
"""Exit codes of a rank that failed, and of one that ended because another did."""


def write_failure(error: ReportedError) -> bool:
    """Writes the reason of a failure for the process that started this rank. Returns False if there is none."""
    if FOLDER not in os.environ:
        return False
    path = failure_path(Path(os.environ[FOLDER]), int(os.environ[RANK]))
    write_text(path, json.dumps({"type": type(error).__name__, "message": str(error)}))
    return True


def failure_path(folder: Path, rank: int) -> Path:
    """Returns the file with the reason of a rank's failure."""
    return folder / f"failure-{rank}.json"
