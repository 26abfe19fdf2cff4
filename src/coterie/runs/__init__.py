"""Files of a run: folder, checkpoints, logs, plots and summaries. Called, it returns a table of runs."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """This package, which is also the function `coterie.runs`: importing a module of it would hide such a function."""

    def __call__(self, *paths: Any, **options: Any) -> Any:
        """Returns a table of runs, see `coterie.reports.run_table.runs`."""
        return import_module("coterie.reports.run_table").runs(*paths, **options)


runs = sys.modules[__name__]
runs.__class__ = _CallableModule
