"""Traffic junction: cars on fixed routes cross each other and have to avoid collisions, a benchmark of communication.

Sources: Sukhbaatar et al. 2016 (CommNet), who introduced the task; Singh et al. 2019 (IC3Net), whose environment
`ic3net_envs` sets grids, routes, arrivals, rewards and observations.
"""

from __future__ import annotations

_HERE = "coterie.envs.worlds.traffic"

SCENARIOS: dict[str, str] = {
    "junction-easy": f"{_HERE}.junction:Easy",
    "junction-medium": f"{_HERE}.junction:Medium",
    "junction-hard": f"{_HERE}.junction:Hard",
}
"""World name to `module:Class`; the class holds its configuration model as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "*": {
        "right_of_way": (f"{_HERE}.scripts:right_of_way", ("car",)),
        "gas": (f"{_HERE}.scripts:gas", ("car",)),
    },
}
"""World name to its scripts: script name to `module:make` and the roles it can play. See
`coterie.envs.script_registry`.
"""
