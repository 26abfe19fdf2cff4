"""Environments, algorithms, networks and mixers that Python code passes as a function or class instead of a name.

A function or class at the top level of a module gets the name `package.module:name`, by which every process imports it.
Any other one, such as that of a script, a notebook or within a function, is kept by this process under `python:name`.
Workers receive the environment in memory, serialized with cloudpickle. It is never written to disk.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coterie.config.overrides import canonical
from coterie.core.errors import UserError, one_line

PREFIX = "python:"
"""Prefix of names that only the process has to which the function was passed."""

_CODE_KEYS = re.compile(r"(?:teams\.[^.]+\.)?(?:(env|algo)\.name|algo\.(?:critic_)?(network)|algo\.(mixer))")
"""Settings that a function or class may replace."""

_EXAMPLES = {"env": "make_env", "algo": "MyAlgorithm", "network": "make_network", "mixer": "MyMixer"}
_MEANINGS = {"env": "environment", "algo": "algorithm", "network": "network", "mixer": "mixer"}

_functions: dict[str, Callable[..., Any]] = {}


def kind_of(key: str) -> str | None:
    """Returns `env`, `algo`, `network` or `mixer` for a setting that may name a user's own code, None for others."""
    match = _CODE_KEYS.fullmatch(key)
    return None if match is None else match[1] or match[2] or match[3]


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function or class, and keeps it if it cannot be imported by name."""
    module, qualified = getattr(function, "__module__", None), _qualified_name(function)
    if module and module != "__main__" and getattr(sys.modules.get(module), qualified, None) is function:
        return f"{module}:{qualified}"
    name = PREFIX + qualified.replace("<locals>.", "").replace("<lambda>", "lambda")
    _functions[name] = function
    return name


def keep(kind: str, names: Iterable[str], given: Any) -> None:
    """Keeps functions or classes under the names that a run has recorded.

    Args:
        kind: Argument that passed them: `env`, `algo`, `network` or `mixer`.
        names: Names of this kind in the run's settings.
        given: A function or class; for several, a list.

    Raises:
        UserError: If the run imports all of them by name, or `given` is not what it needs.
    """
    meaning, names = _MEANINGS[kind], list(dict.fromkeys(names))
    missing = [name for name in names if name.startswith(PREFIX)]
    if not missing:
        made = "made" if kind == "env" else "imported"
        raise UserError(
            f"{kind}: the run's {meaning} is {' and '.join(names) or 'none of your own'}, which is {made} by its name. "
            f"Leave {kind}= out."
        )
    for function in given if isinstance(given, list | tuple) else [given]:
        if not callable(function):
            raise UserError(
                f"{kind}={function!r}: the run's {meaning} is {' and '.join(missing)}. Pass the function or class that "
                "makes it."
            )
        own = PREFIX + _qualified_name(function).replace("<locals>.", "").replace("<lambda>", "lambda")
        if own not in missing and len(missing) > 1:
            raise UserError(f"{kind}={own.removeprefix(PREFIX)}: the run has {' and '.join(missing)}. Pass these.")
        _functions[own if own in missing else missing[0]] = function


def named(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns Python settings in which names replace functions and classes of the user."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found[key] = named(value, f"{dotted}.")
        else:
            is_code = callable(value) and kind_of(canonical(dotted)) is not None
            found[key] = name_of(value) if is_code else value
    return found


def find(name: str, kind: str = "env") -> Callable[..., Any]:
    """Returns the function or class with a name that starts with `PREFIX`.

    Args:
        name: The name.
        kind: Its use for error messages: `env`, `algo`, `network` or `mixer`.

    Raises:
        UserError: If it was not passed to this process.
    """
    if name not in _functions:
        own, example = name.removeprefix(PREFIX), _EXAMPLES[kind]
        made = "made by" if kind == "env" else "an object of"
        raise UserError(
            f"{_MEANINGS[kind]} '{name}': {made} Python code that this process does not have ({own}). Pass it again: "
            f"coterie.resume(run, {kind}={example}). For the command line, train with "
            f"{f'algo.{kind}' if kind in ('network', 'mixer') else kind}=package.module:{example}."
        )
    return _functions[name]


def source_of(name: str) -> dict[str, Any] | None:
    """Returns module, qualified name, file and line of a function of this process; None for other names."""
    if name not in _functions:
        return None
    function = _functions[name]
    target: Any = function if hasattr(function, "__qualname__") else type(function)
    try:
        file, line = inspect.getsourcefile(target), inspect.getsourcelines(target)[1]
    except (OSError, TypeError):  # typed at a prompt
        file, line = None, None
    return {"module": target.__module__, "name": target.__qualname__, "file": file, "line": line}


def sources(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a manifest records of the functions and classes of this process that a run uses.

    Args:
        settings: All settings of the run by dotted key.

    Returns:
        `env_source`, as by `source_of`, and `code_sources`, the same by key for others; {} for none.
    """
    kinds = {key: kind_of(key) for key in settings}
    found = {key: source_of(str(settings[key])) for key, kind in kinds.items() if kind is not None}
    own = {key: source for key, source in found.items() if source is not None}
    env = own.pop("env.name", None)
    return ({"env_source": env} if env else {}) | ({"code_sources": own} if own else {})


def serialize(name: str) -> bytes | None:
    """Returns the function of this process with this name for a worker; None for environments that it can import.

    Raises:
        UserError: If it cannot be serialized.
    """
    if name not in _functions:
        return None
    import cloudpickle

    try:
        return cloudpickle.dumps(_functions[name])
    except Exception as error:  # whatever the objects raise that the function refers to
        raise UserError(
            f"environment '{name}' cannot be sent to workers: {one_line(error)}. Create such objects inside of it, or "
            "set workers.count=0."
        ) from error


def deserialize(name: str, code: bytes | None) -> None:
    """Keeps a function that the trainer has sent in this worker."""
    if code is not None:
        import cloudpickle

        _functions[name] = cloudpickle.loads(code)


def _qualified_name(function: Any) -> str:
    """Returns the qualified name of a function or class; of a partial function that of its function."""
    function = getattr(function, "func", function)
    return getattr(function, "__qualname__", type(function).__qualname__)
