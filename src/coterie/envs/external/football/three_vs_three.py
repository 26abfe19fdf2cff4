"""The scenario `3_vs_3_custom`, written like those of the package: a function called with the scenario builder.

Three per side, a goalkeeper and two field players, from kick-off; 500 frames, deterministic, no offside, equal
difficulty. The left side kicks off.
"""

from __future__ import annotations

import importlib
from typing import Any

NAME = "3_vs_3_custom"


def build_scenario(builder: Any) -> None:
    """Configures the builder; each side's own half is at negative x."""
    engine = importlib.import_module("gfootball_engine")
    settings, role = builder.config(), engine.e_PlayerRole
    settings.game_duration = 500
    settings.deterministic = True
    settings.offsides = False
    settings.left_team_difficulty = settings.right_team_difficulty = 0.05
    builder.SetBallPosition(0.0, 0.0)
    for team, kicks_off in ((engine.e_Team.e_Left, True), (engine.e_Team.e_Right, False)):
        builder.SetTeam(team)
        builder.AddPlayer(-1.0, 0.0, role.e_PlayerRole_GK)
        builder.AddPlayer(0.0 if kicks_off else -0.1, 0.02, role.e_PlayerRole_CM)
        builder.AddPlayer(-0.2, -0.1, role.e_PlayerRole_CB)
