"""Arguments of the Python interface: runs, settings of baselines, and overrides."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from coterie.config import callables
from coterie.config.resolve import Resolved, resolve_kwargs
from coterie.config.sources import flatten
from coterie.core.errors import UserError
from coterie.runs.folder import RunFolder


def run_folder(run: Any) -> Path:
    """Returns the folder of a run that is given as path, training result or loaded run.

    Raises:
        UserError: If it is none of these.
    """
    if isinstance(run, str | os.PathLike):
        return Path(run)
    folder = getattr(run, "run", getattr(run, "path", None))  # a TrainingResult or a Loaded
    if not isinstance(folder, Path):
        raise UserError(f"run={run!r}: not a run. Pass its folder or the result of coterie.train.")
    return folder


def known_run_folder(run: Any, env: Any) -> Path:
    """Returns the folder of a run whose environment is made by Python code, which is passed again; None: by its name.

    Raises:
        UserError: If the run does not exist, or its environment is made by its name.
    """
    folder = run_folder(run)
    if env is not None:
        callables.keep(str(RunFolder.open(folder).read_manifest().get("env")), env)
    return folder


def baseline(settings: dict[str, Any], seed: int | None) -> Resolved:
    """Resolves the settings of algorithms that need no run. UserError if there are none."""
    if not settings:
        raise UserError(
            "run: missing. Pass a run, or algo= and env=, e.g. algo='random', env='particle/simple_spread'."
        )
    return resolve_kwargs(None, **settings if seed is None else settings | {"seed": seed})


def require_no_settings(settings: dict[str, Any]) -> None:
    """Raises UserError for settings next to a run, which has its own."""
    if settings:
        raise UserError(
            f"{', '.join(settings)}: cannot be combined with a run, which has its own settings. Remove it, or the run."
        )


def to_overrides(settings: dict[str, Any]) -> list[str]:
    """Formats settings as overrides of the command line."""
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in flatten(settings)]
