"""Code outside Coterie that settings name: its import, and its exceptions as one line with the user's file and line."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coterie.config import callables
from coterie.config.trust import run_folder_of
from coterie.core.errors import ReportedError, UserCodeError, UserError, nearest, one_line

_files: dict[str, str] = {}
"""Description of the object that was imported from each file, such as `algorithm 'package.module:Class'`."""

_place: list[str] = []
"""Current folder of a command, until modules are searched in it."""


def search_current_folder() -> None:
    """Lets `add_current_folder` add the current folder to the search path of modules."""
    _place[:] = [os.getcwd()]


def add_current_folder() -> None:
    """Adds the current folder to the search path of modules, if this process runs a command."""
    while _place:
        folder = _place.pop()
        if folder not in sys.path:
            sys.path.append(folder)


def load(target: str, what: str) -> Any:
    """Imports the object `package.module:name`.

    Args:
        target: Module and name of the object.
        what: Description of the object for error messages.

    Raises:
        UserError: If the module or the name does not exist, or a package that the module imports is not installed.
    """
    path, _, name = target.partition(":")
    if not path or not name:
        raise UserError(f"{what}: '{target}' is not of the form package.module:name")
    own = path.partition(".")[0] == "coterie"
    if not own:
        require_importable(path, what)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            fix = "Install it, or add its folder to PYTHONPATH."
            raise UserError(f"{what}: there is no module '{error.name}'. {fix}") from error
        fix = f"Install it: pip install {error.name}."
        raise UserError(f"{what}: '{path}' requires '{error.name}', which is not installed. {fix}") from error
    except (ReportedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(f"{what}: '{path}' could not be imported: {one_line(error)}") from error
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{what}: module '{path}' has no '{name}'. {nearest(name, public)}")
    found = getattr(module, name)
    _require_own(found, what)
    remember(found, what)
    return found


def module_factory(name: str, setting: str) -> Callable[..., Any]:
    """Returns a user's factory of torch modules, `package.module:factory`.

    Args:
        name: Its name.
        setting: Key of the setting that names it.

    Raises:
        UserError: If it cannot be imported or is not callable.
    """
    if name.startswith(callables.PREFIX):
        return callables.find(name, "mixer" if setting.endswith("mixer") else "network")
    found = load(name, f"{setting}={name}")
    if not callable(found):
        raise UserError(f"{setting}={name}: expected a function or class of torch modules, not {type(found).__name__}.")
    return found


def require_importable(path: str, what: str) -> None:
    """Raises UserError for modules of Python itself, and for modules in a run folder, which are not imported.

    From then on, commands also search modules in the current folder. Before a command names code that the user trusts,
    they do not, because the current folder may come from someone else.
    """
    parts = path.split(".")
    if parts[0] in sys.stdlib_module_names:
        raise UserError(f"{what}: module '{parts[0]}' belongs to Python's standard library. Name a module of your own.")
    add_current_folder()
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        try:
            spec = importlib.util.find_spec(name)  # imports the packages around it, which were checked before
        except KeyboardInterrupt:
            raise
        except BaseException:  # the import that follows reports it
            return
        if spec is None:
            return
        files = [Path(spec.origin)] if spec.has_location and spec.origin else []
        files += [Path(place) / "__init__.py" for place in spec.submodule_search_locations or ()]
        folder = next((found for found in map(run_folder_of, files) if found is not None), None)
        if folder is not None:
            raise UserError(f"{what}: module '{name}' is in the run folder {folder}. Move it elsewhere to import it.")


def _require_own(found: Any, what: str) -> None:
    """Raises UserError for a function or class of Python's standard library that another module has imported."""
    module = str(getattr(found, "__module__", "")).partition(".")[0]
    if (inspect.isclass(found) or inspect.isroutine(found)) and module in sys.stdlib_module_names:
        raise UserError(
            f"{what}: {found.__qualname__} belongs to Python's standard library ('{module}'). Name one of your own."
        )


def remember(target: Any, what: str) -> None:
    """Remembers the file of an object that a setting names, for `reported`.

    Args:
        target: Function or class of the user.
        what: Its description for error messages.
    """
    module = getattr(target, "__module__", None) or ""
    if module.partition(".")[0] != "coterie":
        with contextlib.suppress(OSError, TypeError):
            _files[os.path.abspath(inspect.getfile(getattr(target, "func", target)))] = what


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turns exceptions that pass through remembered files into a UserCodeError; others pass unchanged."""
    try:
        yield
    except ReportedError:
        raise
    except Exception as error:
        for frame in traceback.extract_tb(error.__traceback__):
            what = _files.get(os.path.abspath(frame.filename))
            if what is not None:
                raise UserCodeError.of(what, frame.name, error) from error
        raise
