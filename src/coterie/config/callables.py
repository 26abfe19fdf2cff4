"""Environments that Python code passes as a function or class instead of a name.

A function or class at the top level of a module gets the name `package.module:name`, by which every process imports it.
Any other one, such as that of a script, a notebook or within a function, is kept by this process under `python:name`.
Workers receive it in memory, serialized with cloudpickle. It is never written to disk.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from coterie.core.errors import UserError, one_line

PREFIX = "python:"
"""Prefix of names that only the process has to which the function was passed."""

_functions: dict[str, Callable[..., Any]] = {}


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of an environment's function or class, and keeps it if it cannot be imported by name."""
    module, qualified = getattr(function, "__module__", None), _qualified_name(function)
    if module and module != "__main__" and getattr(sys.modules.get(module), qualified, None) is function:
        return f"{module}:{qualified}"
    name = PREFIX + qualified.replace("<locals>.", "").replace("<lambda>", "lambda")
    _functions[name] = function
    return name


def keep(name: str, function: Any) -> None:
    """Keeps the function of a run's environment under the name that the run has recorded.

    Raises:
        UserError: If the run imports its environment by name, or `function` cannot be called.
    """
    if not name.startswith(PREFIX):
        raise UserError(f"env: the run's environment is {name}, which is made by its name. Leave env= out.")
    if not callable(function):
        raise UserError(f"env={function!r}: the run's environment is {name}. Pass the function or class that makes it.")
    _functions[name] = function


def named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Python settings in which the name of the environment replaces its function or class."""
    found = dict(settings)
    for key in ("env", "env.name"):
        if callable(found.get(key)):
            found[key] = name_of(found[key])
    section = found.get("env")
    if isinstance(section, Mapping) and callable(section.get("name")):
        found["env"] = {**section, "name": name_of(section["name"])}
    return found


def find(name: str) -> Callable[..., Any]:
    """Returns the function or class with a name that starts with `PREFIX`.

    Raises:
        UserError: If it was not passed to this process.
    """
    if name not in _functions:
        own = name.removeprefix(PREFIX)
        raise UserError(
            f"environment '{name}': made by Python code that this process does not have ({own}). Pass it again: "
            "coterie.resume(run, env=make_env). For the command line, train with env=package.module:make_env."
        )
    return _functions[name]


def source_of(name: str) -> dict[str, Any] | None:
    """Returns module, qualified name, file and line of a function of this process; None for other environments."""
    if name not in _functions:
        return None
    function = _functions[name]
    target: Any = function if hasattr(function, "__qualname__") else type(function)
    try:
        file, line = inspect.getsourcefile(target), inspect.getsourcelines(target)[1]
    except (OSError, TypeError):  # typed at a prompt
        file, line = None, None
    return {"module": target.__module__, "name": target.__qualname__, "file": file, "line": line}


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
