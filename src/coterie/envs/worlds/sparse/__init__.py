"""Sparse-reward worlds: the only reward is at a distant goal that a random policy practically never reaches.

They test intrinsic rewards such as curiosity, and learning from demonstrations.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.sparse"

SCENARIOS: dict[str, str] = {
    "rooms": f"{_HERE}.chain:Rooms",
    "plates": f"{_HERE}.chain:Plates",
}
"""World name to `module:Class`; the class holds its configuration model as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "rooms": {"straight_on": (f"{_HERE}.scripts:straight_on", ("agent",))},
    "plates": {"plate_by_plate": (f"{_HERE}.scripts:plate_by_plate", ("agent",))},
}
"""World name to its scripts: script name to `module:make` and the roles it can play. See
`coterie.envs.script_registry`.
"""
