"""Search for runs: below folders, by patterns, and files that contain runs of other programs."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from coterie.core.errors import UserError
from coterie.runs.folder import runs_below

_MOST_RUNS = 100_000
_DEEPEST = 12


def find_runs(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Returns the JSON files and the folders of runs of the paths, each once.

    Raises:
        UserError: If a path is neither and contains no run.
    """
    files: dict[Path, Path] = {}
    folders: dict[Path, Path] = {}
    for given in paths:
        matches = [Path(given)]
        if not matches[0].exists() and glob.has_magic(str(given)):
            matches = [Path(match) for match in sorted(glob.glob(str(given), recursive=True))]
        before = len(files) + len(folders)
        known = False
        for path in matches:
            if path.is_file() and path.suffix == ".json" and len(matches) == 1:
                files.setdefault(path.resolve(), path)
                continue
            for folder in _runs_of(path):
                known = True
                folders.setdefault(folder.resolve(), folder)
        if len(files) + len(folders) == before and not known and not (len(matches) == 1 and matches[0].is_file()):
            raise _not_found(given, matches)
        if len(matches) == 1 and matches[0].is_file() and matches[0].suffix != ".json":
            raise UserError(f"{given}: is a file. Name folders of runs, or JSON files of marl-eval.")
    return list(files.values()), list(folders.values())


def _runs_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    if (path / "config.yaml").is_file() and (path / "manifest.json").is_file():
        return [path]
    return runs_below(path, depth=_DEEPEST, limit=_MOST_RUNS)


def _not_found(given: str | Path, matches: Sequence[Path]) -> UserError:
    if len(matches) == 1 and not matches[0].exists():
        return UserError(f"{given}: no such folder or file. Name folders of runs, or folders that contain runs.")
    return UserError(f"{given}: contains no runs. Name folders that `coterie train` has written.")
