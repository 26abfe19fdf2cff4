"""Parsing: YAML files, presets and nested dicts become settings, one per leaf, each with its origin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from coterie.config import strict_yaml
from coterie.config.overrides import canonical
from coterie.core.errors import UserError
from coterie.core.files import read_text

ENVIRONMENTS = "environments"
"""File of the presets of environments in `coterie/config/presets`. Each algorithm has a file of its own."""


COMMAND_LINE = "command line"
DEFAULT = "default"
ARGUMENT = "argument"
FILE = "file "  # and its path and line
DERIVED = "derived: "  # and the reason
_AUTO = ("mixer_input", "sequence_start")
"""Settings that are auto, not null, until the run derives their values."""


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
        return remembered.strip() if saved and comment else f"{FILE}{path}:{line}"

    return from_text(text, str(path), origin)


def from_run(path: Path) -> list[Setting]:
    """Reads the `config.yaml` of a run, which an earlier version may have written. UserError as in `from_file`."""
    return with_present_names(from_file(path, saved=True))


def with_present_names(saved: list[Setting]) -> list[Setting]:
    """Renames settings of a run of an earlier version, whose `rollout_length` was that of all algorithms."""
    of_run = next((setting for setting in saved if setting.key == "rollout_length"), None)
    if of_run is None:
        return saved
    kept = [setting for setting in saved if setting is not of_run]
    if of_run.value is None:
        return kept
    name = re.compile(r"(teams\.[^.]+\.)?algo\.rollout_length")
    return [of_run.moved(setting.key) if name.fullmatch(setting.key) else setting for setting in kept]


def preset(kind: str, name: str) -> list[Setting]:
    """Returns the settings of a built-in preset; none if there is no such preset.

    Args:
        kind: `algo`, `env`, or `algo_env` for an algorithm on an environment.
        name: Name of the algorithm or its variant (`mappo/original`), of the environment or its family (`unity`), or
            both, as `mappo/original/particle/simple_spread`.
    """
    found = _presets(_file_of(kind, name)).get((kind, name))
    return [] if found is None else list(found.settings)


def presets(kind: str) -> list[str]:
    """Returns the names of all presets of a kind that are not for families, e.g. `ippo/yardstick`."""
    files = [ENVIRONMENTS] if kind == "env" else _algorithm_files()
    names = (name for file in files for of, name in _presets(file) if of == kind)
    return sorted(name for name in names if kind != "env" or "/" in name)


@dataclass(frozen=True)
class _Preset:
    title: str
    settings: tuple[Setting, ...]


@cache
def _presets(file: str) -> dict[tuple[str, str], _Preset]:
    """Reads `config/presets/FILE.yaml`, whose documents are presets. Returns them by kind and name.

    The first lines of a document name what it is for: an `algorithm`, `environments`, or both.
    """
    path = resources.files("coterie.config") / "presets" / f"{file}.yaml"
    found: dict[tuple[str, str], _Preset] = {}
    for text in path.read_text(encoding="utf-8").split("\n---\n") if path.is_file() else ():
        leaves = strict_yaml.parse_settings(text, f"presets/{file}.yaml")
        for_whom: dict[str, Any] = {key: value for key, value, _ in leaves if key in ("algorithm", "environments")}
        algorithm, environments = for_whom.get("algorithm", ""), for_whom.get("environments", [])
        kind = "env" if not algorithm else "algo_env" if environments else "algo"
        names = [algorithm] if kind == "algo" else ["/".join(filter(None, (algorithm, env))) for env in environments]
        comment = re.search(r"^# (.*)", text, re.MULTILINE)
        for name in names:
            origin = f"preset {kind}/{name}"
            settings = (Setting(canonical(key), value, origin) for key, value, _ in leaves if key not in for_whom)
            assert (kind, name) not in found, f"presets/{file}.yaml: {name} is given twice"
            found[kind, name] = _Preset(comment[1] if comment else "", tuple(settings))
    return found


def _file_of(kind: str, name: str) -> str:
    return ENVIRONMENTS if kind == "env" else name.partition("/")[0]


def _algorithm_files() -> list[str]:
    names = (entry.name.removesuffix(".yaml") for entry in (resources.files("coterie.config") / "presets").iterdir())
    return sorted(name for name in names if name != ENVIRONMENTS)


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


def preset_title(kind: str, name: str) -> str:
    """Returns the title of a preset: the first line of its comment."""
    found = _presets(_file_of(kind, name)).get((kind, name))
    return "" if found is None else found.title


def before_derivation(key: str) -> str | None:
    """Returns the value, null or auto, of a setting whose value the run derives."""
    return "auto" if key.rpartition(".")[2] in _AUTO else None
