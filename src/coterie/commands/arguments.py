"""Arguments of the Python interface: runs, settings of baselines, and overrides."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.assembly.resolve import Resolved, resolve_kwargs
from coterie.config import callables
from coterie.config.sources import flatten, from_run
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


def known_run_folder(run: Any, settings: dict[str, Any]) -> Path:
    """Returns the folder of a run, after it kept the Python code that is passed for it again.

    Args:
        run: As in `run_folder`.
        settings: Functions and classes under `env`, `algo`, `network` and `mixer`, which are removed.

    Raises:
        UserError: If the run does not exist, or imports such code by its name.
    """
    folder = run_folder(run)
    kept = keep_code([folder], settings)
    for key in [key for key in settings if key not in kept]:
        del settings[key]
    return folder


def only_run_folder(run: Any, settings: dict[str, Any]) -> Path:
    """`known_run_folder` of a command that has no settings next to a run. UserError if there are."""
    folder = known_run_folder(run, settings)
    if settings:
        raise UserError(
            f"{', '.join(settings)}: cannot be combined with a run, which has its own settings. Remove it, or the run."
        )
    return folder


def changed_run(run: Any, settings: dict[str, Any]) -> tuple[Path, list[str]]:
    """Returns the folder of a run, as by `known_run_folder`, and the settings that differ as overrides."""
    folder = known_run_folder(run, settings)
    return folder, to_overrides(settings)


def runs_of(members: Mapping[str, Any]) -> list[Any]:
    """Returns the members of a league that are runs."""
    return [m for m in members.values() if not isinstance(m, str) or (Path(m) / "manifest.json").exists()]


def keep_code(runs: Iterable[Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Keeps functions and classes under the names that runs recorded for them.

    Args:
        runs: As in `run_folder`. Without runs, code stays among the settings.
        settings: Functions and classes under `env`, `algo`, `network` and `mixer`, and other settings.

    Returns:
        The other settings.

    Raises:
        UserError: If a run does not exist, or if the runs import such code by its name.
    """
    given = {key: settings[key] for key in ("env", "algo", "network", "mixer") if _is_code(settings.get(key))}
    folders = [run_folder(run) for run in runs]
    if not given or not folders:
        return settings
    saved = [s for folder in folders for s in from_run(RunFolder.open(folder).config_path)]
    for kind, code in given.items():
        callables.keep(kind, [str(s.value) for s in saved if s.value and callables.kind_of(s.key) == kind], code)
    return {key: value for key, value in settings.items() if key not in given}


def _is_code(value: Any) -> bool:
    return value is not None and not isinstance(value, str | dict)


def baseline(settings: dict[str, Any], seed: int | None) -> Resolved:
    """Resolves the settings of algorithms that need no run. UserError if there are none."""
    if not settings:
        raise UserError(
            "run: missing. Pass a run, or algo= and env=, e.g. algo='random', env='particle/simple_spread'."
        )
    return resolve_kwargs(None, **settings if seed is None else settings | {"seed": seed})


def to_overrides(settings: dict[str, Any]) -> list[str]:
    """Formats settings as overrides of the command line."""
    leaves = flatten(callables.named(settings))
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in leaves]
