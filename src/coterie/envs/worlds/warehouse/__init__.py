"""The multi-robot warehouse of the package `rware`, as batched tensors.

Rules, observations and rewards are those of `rware` 2.0.0 (Papoudakis et al. 2021), by which results are comparable.
Names are the package's, `SIZE-AGENTSag` and then `-easy` or `-hard`: those of `SCENARIOS` and any other of this form.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HERE = "coterie.envs.worlds.warehouse"
_SIZES = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}
_REQUESTS_PER_AGENT = {"-easy": 2.0, "": 1.0, "-hard": 0.5}
_NAME = re.compile(rf"({'|'.join(_SIZES)})-([1-9][0-9]{{0,2}})ag(|-easy|-hard)")
_LISTED = {"tiny": (2, 4), "small": (4,), "medium": (6,), "large": (8,)}


class Site(NamedTuple):
    """A named warehouse: rows and columns of shelf blocks, agents, and requested shelves per agent."""

    shelf_rows: int
    shelf_columns: int
    agents: int
    requests_per_agent: float


def site(name: str) -> Site | None:
    """Returns the warehouse of a name such as `tiny-2ag` or `small-4ag-hard`; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    size, agents, difficulty = match.groups()
    return Site(*_SIZES[size], int(agents), _REQUESTS_PER_AGENT[difficulty])


def find(name: str) -> str | None:
    """Returns `module:maker` of a name that need not be listed; None if it is no warehouse."""
    return None if site(name) is None else f"{_HERE}.warehouse:{name}"


SCENARIOS: dict[str, str] = {
    name: f"{_HERE}.warehouse:{name}"
    for size, counts in _LISTED.items()
    for agents in counts
    for name in (f"{size}-{agents}ag", f"{size}-{agents}ag-easy", f"{size}-{agents}ag-hard")
}
"""Name to `module:maker`; the maker holds its configuration model as `Config`."""

_COURIER: dict[str, tuple[str, tuple[str, ...]]] = {"courier": (f"{_HERE}.scripts:couriers", ("agent",))}

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {"*": _COURIER}
"""Scripts of all names: script name to `module:make` and the roles it can play. See `coterie.envs.script_registry`."""
