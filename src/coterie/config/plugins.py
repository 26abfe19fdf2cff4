"""Environments and algorithms that installed packages provide with entry points.

A package declares them in its pyproject.toml:

    [project.entry-points."coterie.environments"]
    pond = "lab.pond:make"

    [project.entry-points."coterie.algorithms"]
    swarm = "lab.swarm:Swarm"

The environment's name is `lab/pond`, from the names of the package and the entry point, or `pond` for short if no other
package provides that name; algorithms are named in the same way. A package is imported only when something of it is
used.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

from coterie.core.errors import UserError

GROUP = "coterie.environments"
ALGORITHMS = "coterie.algorithms"

_KINDS = {GROUP: ("environment", "env"), ALGORITHMS: ("algorithm", "algo")}
"""Name for messages and key of the setting, by group."""


@dataclass(frozen=True)
class Plugin:
    """An environment or algorithm that an installed package provides.

    Attributes:
        name: Full name, `package/name`.
        target: Factory or class, `package.module:name`.
        origin: Name and version of the package.
    """

    name: str
    target: str
    origin: str


def installed_plugins(group: str = GROUP) -> dict[str, Plugin]:
    """Returns the entry points of a group of all installed packages by full name."""
    return _plugins_on(tuple(sys.path), group)


def find_plugin(name: str, group: str = GROUP) -> Plugin | None:
    """Returns the environment or algorithm with a full or short name, or None.

    Raises:
        UserError: If several packages provide the short name.
    """
    known = installed_plugins(group)
    package, slash, own = name.partition("/")
    name = f"{_module_name(package)}/{own}" if slash and name not in known else name
    if name in known:
        return known[name]
    same_name = [plugin for full, plugin in known.items() if full.rpartition("/")[2] == name]
    if len(same_name) > 1:
        kind, key = _KINDS[group]
        choices = " or ".join(f"{key}={name}" for name in sorted(plugin.name for plugin in same_name))
        raise UserError(f"{kind} '{name}' is provided by several packages. Use {choices}.")
    return same_name[0] if same_name else None


def clear_cache() -> None:
    """Searches for packages again on the next call, for those that were installed while this process runs."""
    _plugins_on.cache_clear()


@lru_cache(maxsize=8)
def _plugins_on(_: tuple[str, ...], group: str) -> dict[str, Plugin]:
    """Returns the plugins of a group that are installed on a search path."""
    found: dict[str, Plugin] = {}
    for point in metadata.entry_points(group=group):
        package = point.dist.name if point.dist is not None else ""
        version = point.dist.version if point.dist is not None else ""
        name = point.name if "/" in point.name else f"{_module_name(package)}/{point.name}"
        target = re.sub(r"\s*\[.*\]$", "", point.value.strip()).replace(" ", "")  # Older packages may append extras.
        found.setdefault(name, Plugin(name, target, f"{package} {version}".strip()))
    return found


def _module_name(package: str) -> str:
    """Returns a package's name in Python's spelling: `my_lab` for `My-Lab`."""
    return re.sub(r"[-_.]+", "_", package).lower()
