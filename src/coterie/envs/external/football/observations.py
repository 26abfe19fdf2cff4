"""Player observations: the 115 features of the package's `simple115v2`, as pure functions of its raw observation.

| index | content |
|---|---|
| 0-21, 22-43 | own side: positions x, y of eleven players, then their velocities; -1 for missing players |
| 44-65, 66-87 | the other side, in the same format |
| 88-90, 91-93 | ball: position x, y, z, then its velocity |
| 94-96 | ball possession, one-hot: nobody, own side, other side |
| 97-107 | index of the observing player, one-hot |
| 108-114 | game mode, one-hot: normal, kick-off, goal kick, free kick, corner, throw-in, penalty |

The field is [-1, 1] x [-0.42, 0.42]; each side observes itself playing from left to right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SIZE = 115
STATE = SIZE + 11 + 1
_TEAM = ("left_team", "left_team_direction", "right_team", "right_team_direction")
_OWNER, _ACTIVE, _MODE = 94, 97, 108

CHOICES = (
    *("idle", "left", "top_left", "top", "top_right", "right", "bottom_right", "bottom", "bottom_left"),
    *("long_pass", "high_pass", "short_pass", "shot", "sprint", "release_direction", "release_sprint", "sliding"),
    *("dribble", "release_dribble"),
)
"""Action names by index: the package's default action set."""

MIRRORED = (0, 5, 6, 7, 8, 1, 2, 3, 4, *range(9, 19))
"""Indices of the right side's actions as seen from the left: directions rotated by 180 degrees."""

Raw = Mapping[str, Any]
"""Raw observation of the package from the left side, with `left_agent_controlled_player` and the right side's."""


def write_shared(raw: Raw, side: int, out: np.ndarray) -> None:
    """Writes the features shared by all players of a side (0 left, 1 right) to out [115]; the player index is zero."""
    sign = 1.0 if side == 0 else -1.0
    names = _TEAM if side == 0 else (*_TEAM[2:], *_TEAM[:2])
    for k, name in enumerate(names):
        numbers = np.asarray(raw[name]).reshape(-1)
        at = 22 * k + len(numbers)
        np.multiply(numbers, sign, out=out[22 * k : at], casting="same_kind")
        out[at : 22 * k + 22] = -1.0
    for at, name in ((88, "ball"), (91, "ball_direction")):
        x, y, z = raw[name]
        out[at], out[at + 1], out[at + 2] = sign * x, sign * y, z
    out[_OWNER:] = 0.0
    out[_OWNER + 1 + owner_of(raw, side)] = 1.0
    out[_MODE + raw["game_mode"]] = 1.0


def write_observations(raw: Raw, side: int, out: np.ndarray) -> None:
    """Writes the observations of all controlled players of a side to out [n, 115]."""
    write_shared(raw, side, out[0])
    out[1:] = out[0]
    for i, active in enumerate(controlled(raw, side)):
        if active >= 0:  # no player while the ball is out of play
            out[i, _ACTIVE + active] = 1.0


def write_state(raw: Raw, frames: int, out: np.ndarray) -> None:
    """Writes the critic state to out [127]: the left side's features with all its controlled players marked, the
    controlled players of the right side (11), and the remaining fraction of the episode.
    """
    write_shared(raw, 0, out[:SIZE])
    out[SIZE:] = 0.0
    for side, at in ((0, _ACTIVE), (1, SIZE)):
        for active in controlled(raw, side):
            if active >= 0:
                out[at + active] = 1.0
    out[-1] = raw["steps_left"] / frames


def controlled(raw: Raw, side: int) -> list[int]:
    """Indices of the controlled players within their side; -1 for slots without a player at the moment."""
    return raw["left_agent_controlled_player" if side == 0 else "right_agent_controlled_player"]


def owner_of(raw: Raw, side: int) -> int:
    """Ball possession relative to a side: -1 nobody, 0 own, 1 other."""
    owner = int(raw["ball_owned_team"])
    return owner if side == 0 or owner < 0 else 1 - owner


def ball_of(raw: Raw, side: int) -> tuple[float, float]:
    """Ball position along and across the field relative to a side."""
    sign = 1.0 if side == 0 else -1.0
    return sign * float(raw["ball"][0]), sign * float(raw["ball"][1])
