"""File and line of a user's own environment, for errors whose traceback does not contain its code."""

from __future__ import annotations

import contextlib
import inspect
import os
from typing import Any

from coterie.config import registry


def place_of(name: str, method: str = "") -> str:
    """Returns e.g. `pond.py:12`.

    Args:
        name: Name of an environment.
        method: Method of its class; the class or function itself if it is not a class with this method.

    Returns:
        File and line; "" for environments that are not a user's own, and for code without a file.
    """
    with contextlib.suppress(Exception):  # the place only completes an error message
        if registry.is_factory(name):
            factory: Any = registry.factory(name)
            target = inspect.unwrap(getattr(factory, method, factory) if inspect.isclass(factory) else factory)
            file = inspect.getsourcefile(target)
            if file is not None:
                return f"{os.path.basename(file)}:{inspect.getsourcelines(target)[1]}"
    return ""
