"""Spinning of PyTorch's threads while they wait. Nothing here imports PyTorch."""

from __future__ import annotations

import os
import sys

_SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
"""Environment variables that set how long they spin. PyTorch reads them when it is loaded."""


def limit_spinning() -> None:
    """Lets PyTorch's waiting threads spin briefly, unless PyTorch is loaded already.

    Longer spinning takes time from the kernels' threads, and makes two threads many times slower than one if other
    processes use the cores.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def spinning_note(threads: int) -> str | None:
    """Returns advice if PyTorch was loaded before `limit_spinning` was called, and uses several threads; else None."""
    if threads == 1 or sys.platform != "linux" or _SETTINGS & os.environ.keys():
        return None
    return (
        "PyTorch was imported before Coterie, so its waiting threads slow down those of the kernels. "
        "Import coterie before torch, or set GOMP_SPINCOUNT=3000 in the environment"
    )
