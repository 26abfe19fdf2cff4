"""From the user's settings to one typed configuration whose values know where they came from.

parse       config/sources.py, config/overrides.py    YAML files, `key=value` words and Python arguments become settings
            aliases.py                                names of other libraries become Coterie's
layer       composition.py                            presets below them, teams filled in: one value per key
validate    validation.py                             typed models, or a one-line error
build       build.py                                  environments, algorithms and the training loop
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from coterie.assembly import aliases
from coterie.assembly.composition import Leaves, compose, with_known_case
from coterie.assembly.other_programs import mlagents_answer
from coterie.assembly.validation import validate
from coterie.config import callables, messages, sources
from coterie.config.overrides import Override, parse_all
from coterie.config.provenance import Resolved
from coterie.config.schema import Choice, RunConfig
from coterie.config.sources import ARGUMENT, COMMAND_LINE, DEFAULT, Setting
from coterie.config.trust import is_address, require_trust, signature
from coterie.core.errors import UserError
from coterie.core.text import coterie_command, shorten

CHANGEABLE = (
    "steps",
    "eval.",
    "checkpoint.",
    "log.",
    "progress",
    "threads",
    "device",
    "kernels",
    "cuda_graphs",
    "workers.",
    "rank",
    "check",
)
"""Keys, and sections of keys, that may change when a run is resumed."""


_SECTIONS = frozenset(RunConfig.model_fields)


def resolve(overrides: Sequence[str] = (), config_file: Path | None = None) -> Resolved:
    """Resolves the settings of a command line.

    Raises:
        UserError: For any mistake, in one line.
    """
    file = _file_layer(config_file)
    _refuse_sweeps(parse_all(list(overrides)), file)
    return _resolve_layers(file, _command_layer(overrides))


def resolve_kwargs(config_file: Path | None = None, **kwargs: Any) -> Resolved:
    """Resolves Python arguments: nested dicts, dotted keys (`**{"algo.lr": 1e-3}`) and names (`algo="mappo"`).

    The environment may also be the function or class that makes it.
    """
    return _resolve_layers(_file_layer(config_file), sources.from_tree(_plain(callables.named(kwargs)), ARGUMENT))


def _plain(value: Any) -> Any:
    """Returns nested dicts with paths as text."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return str(value) if isinstance(value, Path) else value


def based_on(tree: Mapping[str, Any], overrides: Sequence[str]) -> Resolved:
    """Resolves overrides on top of the settings of another run, the result of its `RunConfig.tree`."""
    return _resolve_layers(sources.from_tree(dict(tree), "the run"), _command_layer(overrides))


def load_resolved(path: Path) -> Resolved:
    """Loads the configuration that a run saved as `config.yaml`, regardless of today's presets.

    Raises:
        UserError: If the file is not a saved configuration, or was written by version 0.1.
    """
    found = sources.from_file(path, saved=True)
    names = {setting.key for setting in found}
    if not {"algo.name", "env.name"} <= names:
        raise UserError(f"{path}: not a saved configuration, it names no algo and env")
    if "copies" in names:
        raise UserError(
            f"{path}: written by Coterie 0.1, whose settings and checkpoints cannot be read. "
            "Train the run again, or use Coterie 0.1."
        )
    require_trust(path, {setting.key: setting.value for setting in found}, _signed(found))
    found = sources.with_present_names(found)
    try:
        return _finish({setting.key: setting for setting in found}, found)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def signature_of(path: Path) -> str | None:
    """Returns the signature for the manifest next to a `config.yaml`, see `config/trust.py`."""
    return signature(_signed(sources.from_file(path, saved=True)))


def _signed(found: Iterable[Setting]) -> dict[str, Any]:
    """Returns the settings that a signature covers: those that cannot change when a run is resumed, and addresses."""
    return {
        s.key: s.value
        for s in found
        if is_address(s.key, s.value) or (s.key != "out" and not s.key.startswith(CHANGEABLE))
    }


def saved_settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings that a checkpoint stores by dotted key: all but the run's folder, which may be moved."""
    return {key: value for key, value in sources.flatten(config.tree()) if key != "out"}


def with_new_settings(saved: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """Renames settings of an earlier version, and adds those that did not exist, if they have their defaults.

    A default of a new setting keeps what Coterie did before, so the run continues with equal results.

    Args:
        saved: Settings of a run by dotted key, which an earlier version may have written.
        config: Configuration to compare it with.
    """
    defaults = set(_at_default(config))
    renamed = sources.with_present_names([Setting(key, value, DEFAULT) for key, value in saved.items()])
    saved = {setting.key: setting.value for setting in renamed}
    return {key: value for key, value in sources.flatten(config.tree()) if key in defaults} | dict(saved)


def _at_default(model: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys of settings that have the defaults of their models."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _at_default(value.params if isinstance(value, Choice) else value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, BaseModel):
                    yield from _at_default(one, f"{prefix}{name}.{key}.")
        elif not field.is_required() and value == field.get_default(call_default_factory=True):
            yield f"{prefix}{name}"


def require_saved_settings(path: Path, config: RunConfig, saved: Mapping[str, Any]) -> list[str]:
    """Compares the `config.yaml` of a run with the settings that a checkpoint of it was trained with.

    Args:
        path: The file, for messages.
        config: Its configuration.
        saved: Result of `saved_settings`, from the checkpoint.

    Returns:
        A line for each difference that a resumed run may have.

    Raises:
        UserError: If another setting differs, with all of them.
    """
    found = saved_settings(config)
    saved = {key: value for key, value in with_new_settings(saved, config).items() if key != "out"}
    differing = [key for key in dict.fromkeys((*saved, *found)) if saved.get(key) != found.get(key)]
    lines = [f"{key} is {messages.show(found.get(key))}, was {messages.show(saved.get(key))}" for key in differing]
    fixed = [line for key, line in zip(differing, lines, strict=True) if not key.startswith(CHANGEABLE)]
    if fixed:
        raise UserError(
            f"{path}: not the settings that the checkpoint was trained with: {'; '.join(fixed)}. "
            "Restore the file, or start a new run."
        )
    return [f"{path}: {line} in the checkpoint" for line in lines]


def change(resolved: Resolved, overrides: Sequence[str]) -> Resolved:
    """Changes run-level settings of a run that is resumed. UserError for settings that would make it another run."""
    (changes,) = aliases.translate([_command_layer(overrides)])
    old = {setting.key: setting for setting in sources.from_tree(resolved.config.tree(), DEFAULT)}
    for setting in changes:
        if not setting.key.startswith(CHANGEABLE) and (
            setting.key in old or setting.key.partition(".")[0] in _SECTIONS
        ):
            allowed = ", ".join(key + "*" if key.endswith(".") else key for key in CHANGEABLE)
            raise UserError(
                f"{setting.key}={messages.show(setting.value)}: cannot change when a run is resumed. "
                f"Only {allowed} can; start a new run instead."
            )
    leaves = {key: setting.moved(key, resolved.origins.get(key)) for key, setting in old.items()}
    leaves |= {setting.key: setting for setting in changes}
    changed = _finish(leaves, changes)
    if changed.config.steps < resolved.config.steps:
        raise UserError(
            f"steps={changed.config.steps}: less than the {resolved.config.steps} of the run. Give at least as many."
        )
    return changed


def _resolve_layers(*layers: list[Setting]) -> Resolved:
    translated = aliases.translate(with_known_case(layers))
    leaves, user = compose(*translated)
    return _finish(leaves, user)


def _finish(leaves: Leaves, user: Iterable[Setting]) -> Resolved:
    config = validate(leaves, user)
    origins = {key: leaves[key].origin if key in leaves else DEFAULT for key, _ in sources.flatten(config.tree())}
    return Resolved(config, origins)


def _file_layer(path: Path | None) -> list[Setting]:
    if path is None:
        return []
    found = sources.from_file(path)
    if (answer := mlagents_answer(path, found)) is not None:
        raise UserError(answer)
    return found


def _command_layer(overrides: Sequence[str]) -> list[Setting]:
    parsed = parse_all(list(overrides))
    _refuse_sweeps(parsed)
    return sources.from_tree({override.key: override.values[0] for override in parsed}, COMMAND_LINE)


def _refuse_sweeps(parsed: Sequence[Override], file: list[Setting] | None = None) -> None:
    """Raises UserError for several values. Suggests a list only if one is valid with the other settings."""
    found = next((override for override in parsed if override.is_sweep), None)
    if found is None:
        return
    given = shorten(found.text, 200)
    advice = f"{given}: several values. To run each, use `{coterie_command('train', '-m', given)}`"
    if file is not None:
        text = ",".join(found.texts)
        listed = f"{found.key}=[{text[1:-1] if text.startswith('(') and text.endswith(')') else text}]"
        with contextlib.suppress(UserError):
            values = {override.key: override.values[0] for override in [*parsed, *parse_all([listed])]}
            _resolve_layers(file, sources.from_tree(values, COMMAND_LINE))
            advice += f". For a list, write {shorten(listed, 200)}"
    raise UserError(f"{advice}.")
