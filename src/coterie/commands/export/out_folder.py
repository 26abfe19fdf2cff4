"""The folder of an export: what may be replaced in it, and how."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.files import disk_error, sync_folder

_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\xa0%\\/:*?"<>|\u2000-\u206f\ufeff\ud800-\udfff]')
"""Characters that some file systems do not allow, or that are not visible."""
_LONGEST = 120
_MAX_DESCRIPTION = 1 << 24
_FIRST_WORDS = b'"""Acts with teams', b'"""Loads teams that'


def team_folders(teams: Iterable[str]) -> dict[str, str]:
    """Returns the name of each team's folder: that of the team, with characters escaped that not all systems allow.

    Names that differ by capital letters only, which some systems take for one, get a number.
    """
    found: dict[str, str] = {}
    for team in teams:
        folder = _UNSAFE.sub(_escaped, team)[:_LONGEST] or "%"
        folder = folder.replace(".", "%2E", 1) if folder.startswith(".") else folder
        taken, base = {other.lower() for other in found.values()}, folder
        while folder.lower() in taken:
            folder = f"{base}%{len(found)}"
        found[team] = folder
    return found


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="surrogatepass"))


def require_free(out: Path, teams: list[str], sources: list[str], provenance: dict[str, Any] | None) -> None:
    """Raises UserError if an export would overwrite something else, or be mixed with teams of another export.

    Args:
        out: Folder of the export.
        teams: Folders of the teams to write.
        sources: Names of the files with source code to write.
        provenance: Origin of the teams, if teams of the same run may remain; None if none may.
    """
    for team in teams:
        if os.path.lexists(out / team) and _description(out / team) is None:
            raise UserError(f"--out {out}: {out / team} exists and is no export. Choose another folder.")
    for name in sources:
        if os.path.lexists(out / name) and not _is_source(out / name):
            raise UserError(f"--out {out}: {out / name} was not written by an export. Choose another folder.")
    for folder in sorted(out.iterdir()) if out.is_dir() else []:
        info = None if folder.name in teams or folder.name.startswith(".") else _description(folder)
        if info is not None and not _same_run(info, provenance):
            raise UserError(
                f"--out {out}: {folder} is a team of another export, and a player would act with both. Remove it, or "
                "choose another folder."
            )


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A new folder that takes the place of `target` at the end; nothing changes if writing fails."""
    place, old = (target.with_name(f".{kind}-{target.name}") for kind in ("writing", "old"))
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        yield place
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.replace(target, old)
        os.replace(place, target)
        sync_folder(target.parent)
    except OSError as error:
        raise disk_error("the folder", target, error) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _description(folder: Path) -> dict[str, Any] | None:
    """The content of `policy.json` if a folder holds an export of a team and nothing else, otherwise None."""
    with contextlib.suppress(OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        path = folder / "policy.json"
        if folder.is_symlink() or path.stat().st_size > _MAX_DESCRIPTION:
            return None
        info = json.loads(path.read_bytes())
        names = {x.name for x in folder.iterdir()}
        if info["format"] == "coterie-policy" and names <= {"policy.json", *info["files"]}:
            return info
    return None


def _same_run(info: dict[str, Any], provenance: dict[str, Any] | None) -> bool:
    if provenance is None or not isinstance(info.get("provenance"), dict):
        return False
    return all(info["provenance"].get(key) == provenance[key] for key in ("run", "started", "seed"))


def _is_source(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return not path.is_symlink() and path.read_bytes().startswith(_FIRST_WORDS)
    return False
