"""Runs of others may name code, which is imported only if the user trusts them.

A run's `config.yaml` can name environments, algorithms and scripts outside Coterie (`package.module:name`), and
programs such as Unity builds. A run that this user created on this machine has a signature in its manifest, made with a
key in the user's state folder. Without it, such a run is refused unless the user trusts it explicitly.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import read_bytes
from coterie.core.user_folders import user_folder

_PROGRAMS = ("unity/",)
"""Environments whose settings name a program that is started."""

_PETTINGZOO = ("pettingzoo", "atari", "butterfly", "classic", "sisl", "mpe2")
"""Packages of PettingZoo's environments. Other environments `pettingzoo/MODULE` are modules of any package."""

_CODE_SETTINGS = tuple(f".algo.{name}" for name in ("name", "script", "network", "critic_network", "mixer"))
"""Ends of the keys that may name code, besides `env.name`; a dot precedes them."""
_LOCAL = {"workers.address": ("local", "auto"), "log.mlflow_uri": ("file", "sqlite")}
"""Settings that are addresses, which a run contacts, with the values and schemes that stay on this machine. The replies
of a Ray cluster may contain code.
"""

_KEY_BYTES = 32


@contextlib.contextmanager
def trusted_runs() -> Iterator[None]:
    """Trusts all runs that are opened in this context, also by processes that it starts, as `--trust` does."""
    before = os.environ.get("COTERIE_TRUST")
    os.environ["COTERIE_TRUST"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["COTERIE_TRUST"]
        else:
            os.environ["COTERIE_TRUST"] = before


def code_names(settings: Mapping[str, Any]) -> list[str]:
    """Returns `key=value` of the settings that name code outside Coterie."""
    found = []
    for key, value in settings.items():
        if not isinstance(value, str):
            continue
        names_code = key == "env.name" or f".{key}".endswith(_CODE_SETTINGS)
        is_outside = ":" in value or value.startswith(_PROGRAMS) or not is_known_module(value)
        if is_address(key, value) or (names_code and is_outside):
            found.append(f"{key}={value}")
    return found


def is_address(key: str, value: Any) -> bool:
    """True if a run with this setting contacts a server or cluster that the setting names."""
    if key not in _LOCAL or not isinstance(value, str) or value in _LOCAL[key]:
        return False
    scheme = urlsplit(value).scheme
    return key != "log.mlflow_uri" or value == "databricks" or scheme not in ("", *_LOCAL[key])


def is_known_module(env: str) -> bool:
    """True unless an environment's name is `pettingzoo/MODULE` with a module of another package than PettingZoo's."""
    family, _, module = env.partition("/")
    return family != "pettingzoo" or module.partition(".")[0] in _PETTINGZOO


def signature(settings: Mapping[str, Any]) -> str | None:
    """Returns the signature of a run's settings; None if the key cannot be read or written."""
    key = _key()
    if key is None:
        return None
    content = json.dumps(dict(settings), sort_keys=True, default=str).encode()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def require_trust(config_path: Path, settings: Mapping[str, Any], signed: Mapping[str, Any]) -> None:
    """Checks the signature of a run that names code outside Coterie.

    Args:
        config_path: The run's `config.yaml`, next to its manifest.
        settings: All settings of the run.
        signed: The settings that were signed.

    Raises:
        UserError: If this user did not create the run on this machine, and does not trust it.
    """
    names = code_names(settings)
    if not names or os.environ.get("COTERIE_TRUST", "") not in {"", "0"}:
        return
    found = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = strict_json.parse(read_bytes(config_path.parent / "manifest.json")).get("signature")
    expected = signature(signed)
    if not isinstance(found, str) or expected is None or not hmac.compare_digest(found.encode(), expected.encode()):
        hint = "" if expected is not None else " Your runs are not signed: set XDG_STATE_HOME to a folder of yours."
        what = "a server" if all(name.startswith("log.mlflow_uri=") for name in names) else "code"
        raise UserError(
            f"{config_path.parent}: names {what} outside Coterie ({', '.join(names)}) and was not created by you on "
            f"this machine. {'Read that code' if what == 'code' else 'Check it'} first, then add --trust, or set "
            f"COTERIE_TRUST=1.{hint}"
        )


def run_folder_of(module_file: Path) -> Path | None:
    """Returns the run folder that contains a module, from which nothing is imported; None for other modules."""
    for folder in module_file.resolve().parents:
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            manifest = strict_json.parse(read_bytes(folder / "manifest.json"))
            if (folder / "config.yaml").is_file() and "coterie" in manifest.get("versions", {}):
                return folder
    return None


def _key() -> bytes | None:
    """Returns the user's key, which is created on first use."""
    state = user_folder("XDG_STATE_HOME", ".local/state")
    if state is None:
        return None
    with contextlib.suppress(OSError):
        file = state / "coterie" / "key"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = file.with_name(f".writing-key-{os.getpid()}-{secrets.token_hex(4)}")
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(secrets.token_bytes(_KEY_BYTES))
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(new, file)
            new.unlink()
        content = file.read_bytes()
        if len(content) == _KEY_BYTES:
            return content
    return None
