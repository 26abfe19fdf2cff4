"""The check of generated blocks of the pages, in a process in which no test has declared metrics or algorithms."""

from __future__ import annotations

import os
import runpy
import sys

from places import ROOT


def check_generated_blocks() -> None:
    """Ends the process with the status of `docs/generate.py --check`."""
    os.chdir(ROOT)
    sys.argv = ["docs/generate.py", "--check"]
    runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="__main__")
