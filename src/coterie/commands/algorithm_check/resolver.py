"""From the name or the class of an algorithm, and its settings, to the algorithm under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from coterie.algos.algorithm import Algorithm
from coterie.commands.algorithm_check.subject import Subject
from coterie.config import registry
from coterie.config.resolve import resolve
from coterie.core.errors import UserError

_NO_PROBE = {"frozen": "plays a trained run", "scripted": "plays the script of an environment"}


def subject_of_name(name: str, overrides: Sequence[str] = ()) -> Subject:
    """Returns the algorithm with a name, such as `mappo`, `mappo/original` or `package.module:Class`.

    Args:
        name: Its name.
        overrides: Settings, `algo.KEY=VALUE`.

    Raises:
        UserError: If there is no such algorithm or setting.
    """
    for text in overrides:
        if not text.startswith("algo."):
            raise UserError(f"{text}: not a setting of the algorithm. Write algo.KEY=VALUE.")
    if name in _NO_PROBE:
        raise UserError(f"algo={name}: nothing to check, it {_NO_PROBE[name]}. Name an algorithm that acts on its own.")
    choice = resolve([f"algo={name}", "env=probe/both", *overrides]).config.algo
    given = frozenset(text.removeprefix("algo.").partition("=")[0] for text in overrides)
    return Subject(name, _algorithm_class(registry.algorithm(name)), choice.params, given)


def subject_of_class(cls: type[Algorithm], settings: dict[str, Any]) -> Subject:
    """Returns the algorithm of a class with the defaults of its `Config`, apart from `settings`.

    Raises:
        UserError: If it is no class of an algorithm, or a setting is wrong.
    """
    cls = _algorithm_class(cls)
    try:
        params = cls.Config(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{key}={first.get('input')!r}: {first['msg']}. Settings are those of its Config.") from error
    return Subject(cls.__name__, cls, params, frozenset(settings))


def _algorithm_class(cls: Any) -> type[Algorithm]:
    if not isinstance(cls, type) or not issubclass(cls, Algorithm):
        raise UserError(f"{cls!r}: not an algorithm. Derive a class from coterie.algos.algorithm.Algorithm.")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    missing += [name for name in ("Config", "capabilities") if not hasattr(cls, name)]
    if missing:
        raise UserError(f"{cls.__name__}: it lacks {', '.join(missing)}. See Algorithm in coterie.algos.algorithm.")
    return cls
