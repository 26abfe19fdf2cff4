"""Level-based foraging, step by step equal to the package `lbforaging` and batched.

Agents on a grid collect food together. Agents and food have levels, and food is collected when the levels of the
agents that load it add up to at least its own. Sources: Albrecht and Ramamoorthy 2013, who introduced the task;
Christianos et al. 2020 and Papoudakis et al. 2021, whose environment this is.
"""

from __future__ import annotations

import re
from typing import Any

_HERE = "coterie.envs.worlds.foraging"

TASKS: tuple[str, ...] = (
    *("8x8-2p-2f", "8x8-2p-2f-coop", "2s-8x8-2p-2f-coop"),
    *("10x10-3p-3f", "2s-10x10-3p-3f"),
    *("15x15-3p-5f", "15x15-4p-3f", "15x15-4p-5f"),
)
"""Tasks that are listed: the benchmark of Papoudakis et al. 2021, and the task without forced cooperation."""

SCENARIOS: dict[str, str] = {name: f"{_HERE}.foraging:{name}" for name in TASKS}
"""Task name to `module:maker`; the maker holds its configuration model as `Config`."""

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "*": {"greedy": (f"{_HERE}.scripts:greedy", ("agent",))},
    **{name: {} for name in TASKS if name.startswith("2s-")},
}
"""Task name to its scripts: script name to `module:make` and the roles it can play. `*` holds for all other tasks. See
`coterie.envs.script_registry`.
"""

_NAME = re.compile(
    r"(?P<grid>grid-)?((?P<sight>[1-9]\d?)s-)?(?P<size>[1-9]\d?)x(?P=size)"
    r"-(?P<players>[1-9]\d?)p-(?P<foods>[1-9]\d?)f(?P<coop>-coop)?(?P<ind>-ind)?(?P<pen>-pen)?"
)


def find(name: str) -> str | None:
    """Returns the maker `module:name` of any task by the package's naming scheme, or None for another name."""
    return f"{_HERE}.foraging:{name}" if _NAME.fullmatch(name) else None


def settings(name: str) -> dict[str, Any]:
    """Returns the settings that a task's name stands for, as the package registers it.

    Args:
        name: The package's ID without `Foraging-` and the version, for example `2s-8x8-2p-2f-coop`.
    """
    match = _NAME.fullmatch(name)
    assert match is not None
    found: dict[str, Any] = {key: int(match[key]) for key in ("size", "players", "foods")}
    if match["sight"]:
        found["sight"] = int(match["sight"])
    if match["grid"]:
        found["grid_observation"] = True
    if match["coop"]:
        found["coop"] = True
    if match["ind"]:
        found["max_food_level"] = 1
    if match["pen"]:
        found["penalty"] = 0.1
    return found
