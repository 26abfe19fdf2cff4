"""Small battles against a scripted enemy or between two teams, after the StarCraft Multi-Agent Challenge (SMAC).

Rosters, unit statistics, observations, actions and rewards follow SMAC (Samvelyan et al. 2019). The battles run in a
batched simulator of Coterie's own that is much simpler than the game, so win rates are not comparable with SMAC's.
"""

from __future__ import annotations

from typing import NamedTuple

_HERE = "coterie.envs.worlds.skirmish"


class Roster(NamedTuple):
    """Units of both sides by kind; limit: steps per episode; walled: see `combat.Wall`."""

    allies: dict[str, int]
    enemies: dict[str, int]
    limit: int
    walled: bool = False


ROSTERS: dict[str, Roster] = {
    "2m_vs_1z": Roster({"marine": 2}, {"zealot": 1}, 150),
    "3m": Roster({"marine": 3}, {"marine": 3}, 60),
    "8m": Roster({"marine": 8}, {"marine": 8}, 120),
    "25m": Roster({"marine": 25}, {"marine": 25}, 150),
    "5m_vs_6m": Roster({"marine": 5}, {"marine": 6}, 70),
    "8m_vs_9m": Roster({"marine": 8}, {"marine": 9}, 120),
    "10m_vs_11m": Roster({"marine": 10}, {"marine": 11}, 150),
    "27m_vs_30m": Roster({"marine": 27}, {"marine": 30}, 180),
    "MMM": Roster(
        {"marauder": 2, "marine": 7, "medivac": 1},
        {"marauder": 2, "marine": 7, "medivac": 1},
        150,
    ),
    "MMM2": Roster(
        {"marauder": 2, "marine": 7, "medivac": 1},
        {"marauder": 3, "marine": 8, "medivac": 1},
        180,
    ),
    "2s3z": Roster({"stalker": 2, "zealot": 3}, {"stalker": 2, "zealot": 3}, 120),
    "3s5z": Roster({"stalker": 3, "zealot": 5}, {"stalker": 3, "zealot": 5}, 150),
    "3s5z_vs_3s6z": Roster({"stalker": 3, "zealot": 5}, {"stalker": 3, "zealot": 6}, 170),
    "3s_vs_3z": Roster({"stalker": 3}, {"zealot": 3}, 150),
    "3s_vs_4z": Roster({"stalker": 3}, {"zealot": 4}, 200),
    "3s_vs_5z": Roster({"stalker": 3}, {"zealot": 5}, 250),
    "2s_vs_1sc": Roster({"stalker": 2}, {"spine_crawler": 1}, 300),
    "6h_vs_8z": Roster({"hydralisk": 6}, {"zealot": 8}, 150),
    "corridor": Roster({"zealot": 6}, {"zergling": 24}, 400, walled=True),
    "2c_vs_64zg": Roster({"colossus": 2}, {"zergling": 64}, 400),
}
"""Rosters by map name, as in SMAC."""

DUELS: dict[str, Roster] = {
    f"{name}_duel": roster for name, roster in ROSTERS.items() if roster.allies == roster.enemies and not roster.walled
}
"""Maps with equal sides, by the name of the battle between two teams."""

SCENARIOS: dict[str, str] = {name: f"{_HERE}.maps:{name}" for name in (*ROSTERS, *DUELS)}
"""Map name to `module:maker`; the maker holds its configuration model as `Config`."""

_PLAYS = {name: ("left", "right") if name in DUELS else ("ally",) for name in SCENARIOS}

SCRIPTS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    name: {
        "attack_nearest": (f"{_HERE}.scripts:attackers_of_the_nearest", roles),
        "attack_weakest": (f"{_HERE}.scripts:attackers_of_the_weakest", roles),
    }
    for name, roles in _PLAYS.items()
}
"""Map name to its scripts: script name to `module:make` and the roles it can play. See `coterie.envs.script_registry`.
"""
