"""Folders of the user. Variables that name no absolute path are ignored, as in the XDG Base Directory Specification."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import pwd
except ImportError:  # on Windows
    pwd = None

_XDG = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")


def home_folder() -> Path | None:
    """Returns the home folder: HOME, or that of the user database if HOME is not an absolute path.

    None if it does not exist or is the root of the file system.
    """
    if pwd is None:
        with contextlib.suppress(RuntimeError):
            return Path.home()
        return None
    named = os.environ.get("HOME", "")
    if not os.path.isabs(named):
        try:
            named = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:  # the user is in no database, as in a container
            return None
    is_usable = os.path.isabs(named) and os.path.realpath(named) != os.sep and os.path.isdir(named)
    return Path(named) if is_usable else None


def user_folder(variable: str, default: str) -> Path | None:
    """Returns a base folder of the user.

    Args:
        variable: Environment variable that names it, such as XDG_CACHE_HOME.
        default: Path in the home folder that is used otherwise, such as `.cache`.

    Returns:
        The folder, which may be missing; None if neither the variable nor the home folder is usable.
    """
    named = os.environ.get(variable, "")
    if os.path.isabs(named) and os.path.realpath(named) != os.sep:
        return Path(named)
    home = home_folder()
    return None if home is None else home / default


@contextlib.contextmanager
def without_invalid_folders() -> Iterator[None]:
    """Context manager: libraries such as Matplotlib ignore the variables that `home_folder` and `user_folder` ignore.

    Otherwise they would write to `/` or to the current folder. Without a home, Matplotlib gets a temporary folder.
    """
    invalid = [name for name in ("HOME", *_XDG) if not os.path.isabs(os.environ.get(name, os.sep))]
    removed = {name: os.environ.pop(name) for name in invalid}
    try:
        is_homeless = user_folder("XDG_CONFIG_HOME", ".config") is None or user_folder("XDG_CACHE_HOME", "") is None
        if is_homeless and "MPLCONFIGDIR" not in os.environ:
            with tempfile.TemporaryDirectory(prefix="coterie-matplotlib-") as folder:
                os.environ["MPLCONFIGDIR"] = folder
                try:
                    yield
                finally:
                    del os.environ["MPLCONFIGDIR"]
        else:
            yield
    finally:
        os.environ.update(removed)
