"""Worlds in which nothing is paid until a far goal is reached: who draws at random practically never is.

For reward signals of an agent's own, such as curiosity, and for learning from demonstrations.
"""

from __future__ import annotations

_HERE = "coterie.envs.sparse"

SCENARIOS: dict[str, str] = {
    "rooms": f"{_HERE}.rooms:Rooms",
    "plates": f"{_HERE}.plates:Plates",
}
"""World to `module:Class`; the class bears its configuration as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "rooms": {"straight_on": (f"{_HERE}.scripts:straight_on", ("agent",))},
    "plates": {"plate_by_plate": (f"{_HERE}.scripts:plate_by_plate", ("agent",))},
}
"""World to its scripts: name to `module:make` and the roles that it plays. See `coterie.envs.scripts`."""
