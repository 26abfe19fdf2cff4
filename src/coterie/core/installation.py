"""Commands that install missing libraries, for error messages. They work as they are, from a clone, too."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_extra(extra: str) -> str:
    """Returns the command that adds an extra of Coterie, such as `pip install -e '.[wandb]'` in a clone."""
    clone = source_checkout()
    if clone is not None:
        folder = "." if clone == Path.cwd() else str(clone)
        return f"{pip()} install -e {shlex.quote(f'{folder}[{extra}]')}"
    origin = _installed_from() or "coterie"
    return f"{pip()} install {shlex.quote(f'{origin}[{extra}]')}"


def source_checkout() -> Path | None:
    """Returns the clone that this package is part of; None if it was installed as a copy."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "src" / "coterie").is_dir() else None


def pip() -> str:
    """Returns `pip` if that is this Python's, otherwise the command that runs it."""
    found = shutil.which("pip")
    own = Path(sys.executable).absolute().parent
    if found is not None and Path(found).absolute().parent == own:
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"


def _installed_from() -> str | None:
    """Returns the folder that the package was installed from with `pip install FOLDER`; None if it is not there."""
    try:
        text = metadata.distribution("coterie").read_text("direct_url.json")
        url = urlsplit(json.loads(text or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    folder = Path(unquote(url.path))
    return str(folder) if url.scheme == "file" and (folder / "pyproject.toml").is_file() else None
