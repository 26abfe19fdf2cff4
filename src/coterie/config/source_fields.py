"""Names of the settings of Coterie's algorithms and environments, read from their source without importing them.

Importing an algorithm imports PyTorch, which takes seconds. A mistyped key is answered before that.
"""

from __future__ import annotations

import ast
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from coterie.config import registry

_PACKAGE = "coterie"
_ROOT = Path(__file__).resolve().parents[1]

_parsing = threading.Lock()
"""Before Python 3.12, `ast.parse` in two threads at once may raise SystemError."""


class _NotPlainError(Exception):
    """The source computes what it defines, or is not part of Coterie."""


@dataclass(frozen=True)
class _Module:
    """Classes of a module, and the modules and names from which it imports others."""

    name: str
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@lru_cache
def algorithm_fields(name: str) -> tuple[str, ...] | None:
    """Returns the settings of an algorithm; None for one that is not part of Coterie."""
    target = registry.VARIANTS.get(name) or registry.ALGOS.get(registry.base_name(name))
    return None if ":" in name or target is None else _fields_of_target(target)


@lru_cache
def environment_fields(name: str) -> tuple[str, ...] | None:
    """Returns the settings of a built-in environment; None for others, and if they are not in the source."""
    if name.partition("/")[0] not in registry.FAMILIES:
        return None
    target = registry.target_of(name)
    return None if target is None else _fields_of_target(target)


def is_field_name(key: str) -> bool:
    """True if the source of any algorithm may have a setting of this name. Much faster than to parse all of them."""
    line = f"\n    {key}:"
    files = (*(_ROOT / "algos").glob("*.py"), _ROOT / "nets" / "config.py")
    return any(line in file.read_text(encoding="utf-8") for file in files)


def _fields_of_target(target: str) -> tuple[str, ...] | None:
    """Returns the fields of `Config` of the class `package.module:Class`."""
    path, _, name = target.partition(":")
    try:
        module, config = _config_name(*_find(path, name))
        return tuple(dict.fromkeys(_fields(*_find(module.name, config))))
    except (_NotPlainError, OSError, SyntaxError):
        return None


def _config_name(module: _Module, found: ast.ClassDef) -> tuple[_Module, str]:
    """Returns the module and the name of what a class or one of its bases assigns to `Config`."""
    for statement in found.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and target.id == "Config" and value is not None:
            if isinstance(value, ast.Name):
                return module, value.id
            raise _NotPlainError
    for base in found.bases:
        if isinstance(base, ast.Name):
            try:
                return _config_name(*_find(module.name, base.id))
            except _NotPlainError:
                continue
    raise _NotPlainError


def _fields(module: _Module, found: ast.ClassDef) -> list[str]:
    """Returns the fields of a configuration, those of its bases first."""
    names: list[str] = []
    for owner, definition in reversed(_resolution_order(module, found)):
        for statement in definition.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if _holds_section(owner, statement.annotation):
                    raise _NotPlainError
                names.append(statement.target.id)
    return names


def _resolution_order(module: _Module, found: ast.ClassDef) -> list[tuple[_Module, ast.ClassDef]]:
    """Returns a class and its bases in the order in which Python looks up attributes (C3 linearization)."""
    bases: list[tuple[_Module, ast.ClassDef]] = []
    for base in found.bases:
        if not isinstance(base, ast.Name):
            raise _NotPlainError
        if module.imports.get(base.id) != ("pydantic", "BaseModel"):
            bases.append(_find(module.name, base.id))
    waiting = [*(_resolution_order(*base) for base in bases), bases]
    order = [(module, found)]
    while waiting := [candidates for candidates in waiting if candidates]:
        later = [definition for _, *rest in waiting for _, definition in rest]
        free = [first for first, *_ in waiting if not any(first[1] is definition for definition in later)]
        if not free:
            raise _NotPlainError
        order.append(free[0])
        waiting = [[pair for pair in candidates if pair[1] is not free[0][1]] for candidates in waiting]
    return order


def _holds_section(module: _Module, annotation: ast.expr) -> bool:
    """True if a field is a configuration of its own, whose settings have longer keys."""
    words = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return any(word.endswith(("Config", "Model")) for word in words & (module.classes.keys() | module.imports.keys()))


def _find(path: str, name: str) -> tuple[_Module, ast.ClassDef]:
    """Returns a class and the module that defines it, which other modules may import it from."""
    module = _parse(path)
    if name in module.classes:
        return module, module.classes[name]
    if name in module.imports:
        return _find(*module.imports[name])
    raise _NotPlainError


@lru_cache
def _parse(path: str) -> _Module:
    package, *parts = path.split(".")
    if package != _PACKAGE:
        raise _NotPlainError
    file = _ROOT.joinpath(*parts)
    source = file.with_suffix(".py") if file.with_suffix(".py").is_file() else file / "__init__.py"
    module = _Module(path)
    with _parsing:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            module.classes[statement.name] = statement
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                module.imports[alias.asname or alias.name] = (statement.module, alias.name)
    return module
