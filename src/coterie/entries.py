"""Environments that installed packages bring: entry points of the group `coterie.environments`.

A package names its own in its pyproject, and then they are there by name wherever it is installed:

    [project.entry-points."coterie.environments"]
    pond = "lab.pond:make"

The environment is `lab/pond`, by the installed package and the entry's name, or `pond` for short where no other
package has one of that name. Nothing is imported before it is named.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

from coterie.errors import UserError

GROUP = "coterie.environments"


@dataclass(frozen=True)
class Entry:
    """One entry point. name: in full, `package/name`; target: `package.module:factory`; origin: who brought it."""

    name: str
    target: str
    origin: str


def entries() -> dict[str, Entry]:
    """All that the packages on the path bring, by full name."""
    return _found(tuple(sys.path))


def entry(name: str) -> Entry | None:
    """The one of this name, in full or for short; None if there is none. UserError where a short name has several."""
    known = entries()
    package, slash, own = name.partition("/")
    name = f"{_plain(package)}/{own}" if slash and name not in known else name
    if name in known:
        return known[name]
    alike = [one for full, one in known.items() if full.rpartition("/")[2] == name]
    if len(alike) > 1:
        raise UserError(f"environment '{name}' is brought by several: name one of {[one.name for one in alike]}")
    return alike[0] if alike else None


@lru_cache(maxsize=4)
def _found(_: tuple[str, ...]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for point in metadata.entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else ""
        version = point.dist.version if point.dist is not None else ""
        name = point.name if "/" in point.name else f"{_plain(package)}/{point.name}"
        target = re.sub(r"\s*\[.*\]$", "", point.value.strip()).replace(" ", "")  # extras of older packages
        found.setdefault(name, Entry(name, target, f"{package} {version}".strip()))
    return found


def _plain(package: str) -> str:
    """A package's name as Python writes it: `my_lab` for `My-Lab`."""
    return re.sub(r"[-_.]+", "_", package).lower()
