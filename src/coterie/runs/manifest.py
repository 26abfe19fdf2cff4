"""Reading of `manifest.json`, which may be damaged or hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config.messages import first_mistake
from coterie.core import strict_json
from coterie.core.errors import UserError

_FIX = "Restore it from a backup."


class _Manifest(BaseModel):
    """Entries that are used again; others only inform readers of the file."""

    model_config = ConfigDict(strict=True)

    env: str = ""
    algo: str = ""
    seed: int | None = None
    random: dict[str, float | None] | None = None
    published: dict[str, float | None] | None = None
    levels: dict[str, dict[str, float | None]] | None = None
    environment: dict[str, Any] | None = None
    init: dict[str, Any] | None = None
    teams: dict[str, dict[str, Any]] | None = None
    teams_because: str | None = None
    project: dict[str, Any] | None = None
    installed: dict[str, str] | None = None
    versions: dict[str, Any] = {}


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the content of a `manifest.json`.

    Raises:
        UserError: If it cannot be read, or an entry that is used again has another type.
    """
    manifest = strict_json.read_object(path, _FIX)
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        raise UserError(f"{path}: cannot be read ({first_mistake(error)}). {_FIX}") from error
    return manifest
