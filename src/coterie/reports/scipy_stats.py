"""SciPy's statistics, with one line that names the install command if SciPy is missing."""

from __future__ import annotations

from types import ModuleType

from coterie.core.installation import install_extra
from coterie.runs.loggers import library


def scipy_stats() -> ModuleType:
    """Returns `scipy.stats`. Raises UserError if SciPy is not installed."""
    return library("scipy.stats", setting="coterie compare", name="SciPy", install=install_extra("report"))
