"""Parsing: YAML files, presets and nested dicts become settings, one per leaf, each with its origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from coterie.config import strict_yaml
from coterie.config.overrides import canonical
from coterie.core.errors import UserError
from coterie.core.files import read_text

PRESETS = ("algo", "env", "algo_env")
"""Folders of `coterie/config/presets`."""


@dataclass(frozen=True)
class Setting:
    """Value of a dotted key, and its origin: `default`, `preset ...`, `file X:line`, `command line`."""

    key: str
    value: Any
    origin: str

    def moved(self, key: str, origin: str | None = None) -> Setting:
        """The same value under another key."""
        return replace(self, key=key, origin=origin or self.origin)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts as dotted keys and values; an empty dict is a leaf."""
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{dotted}.")
        else:
            yield dotted, value


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `flatten`: dotted keys to nested dicts. UserError for a key inside of another one's value."""
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        *sections, last = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise UserError(f"{key}: '{section}' has a value of its own. Remove one of them.")
        branch[last] = (
            dict(value) if isinstance(value, dict) else value
        )  # a dict value is copied, so that callers can change it
    return tree


def from_tree(tree: Mapping[str, Any], origin: str) -> list[Setting]:
    """Leaves of nested dicts (keys may be dotted) as settings. UserError if a key is given twice."""
    seen: dict[str, Setting] = {}
    for key, value in flatten(tree):
        _add(seen, Setting(canonical(key), value, origin), key)
    return list(seen.values())


def from_file(path: Path, saved: bool = False) -> list[Setting]:
    """Reads the settings of a YAML file, each with its line as origin.

    Args:
        path: The file.
        saved: True for the `config.yaml` of a run: a regular file, whose comments are the origins.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        text = read_text(path) if saved else path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    lines = text.splitlines()

    def origin(line: int) -> str:
        _, comment, remembered = lines[line - 1].rpartition("  # ")
        return remembered.strip() if saved and comment else f"file {path}:{line}"

    return from_text(text, str(path), origin)


def preset(folder: str, name: str) -> list[Setting]:
    """Settings of the built-in preset `config/presets/<folder>/<name>.yaml`; none if there is no such file."""
    file = resources.files("coterie.config") / "presets" / folder / f"{name}.yaml"
    if not file.is_file():
        return []
    return from_text(file.read_text(encoding="utf-8"), f"{folder}/{name}.yaml", lambda line: f"preset {folder}/{name}")


def presets(folder: str) -> list[str]:
    """Names of all presets in `config/presets/<folder>`, e.g. `ippo/yardstick`."""
    return sorted(_yaml_files(resources.files("coterie.config") / "presets" / folder, ""))


def _yaml_files(folder: Any, prefix: str) -> Iterator[str]:
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name.endswith(".yaml"):
                yield prefix + entry.name.removesuffix(".yaml")
            else:
                yield from _yaml_files(entry, f"{prefix}{entry.name}/")


def from_text(text: str, name: str, origin: Callable[[int], str]) -> list[Setting]:
    """Parses YAML text; `origin(line)` returns the origin of each setting. UserError for invalid YAML."""
    seen: dict[str, Setting] = {}
    for key, value, line in strict_yaml.parse_settings(text, name):
        _add(seen, Setting(canonical(key), value, origin(line)), f"{name}:{line}: {key}")
    return list(seen.values())


def _add(seen: dict[str, Setting], setting: Setting, where: str) -> None:
    if setting.key in seen:
        raise UserError(f"{where}: given twice. Remove one of them.")
    if (setting.key, setting.value) == ("teams", {}):  # saved by runs without team settings
        return
    seen[setting.key] = setting


def preset_title(folder: str, name: str) -> str:
    """Title of a preset: the comment on its first line."""
    file = resources.files("coterie.config") / "presets" / folder / f"{name}.yaml"
    first = file.read_text(encoding="utf-8").partition("\n")[0] if file.is_file() else ""
    return first.lstrip("# ") if first.startswith("#") else ""
