"""What players see: the 115 numbers of the package's `simple115v2`, as pure functions of its raw observation.

| place | what |
|---|---|
| 0-21, 22-43 | own side: positions x, y of eleven, then their steps; -1 where there are fewer players |
| 44-65, 66-87 | the other side, alike |
| 88-90, 91-93 | the ball: position x, y, z, then its step |
| 94-96 | who has the ball, one of: nobody, the own side, the other side |
| 97-107 | which of the own eleven one is |
| 108-114 | mode of play, one of: normal, kick-off, goal kick, free kick, corner, throw-in, penalty |

The field is [-1, 1] x [-0.42, 0.42]; every side sees itself play from left to right.
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
"""The actions by number: the package's default set."""

MIRRORED = (0, 5, 6, 7, 8, 1, 2, 3, 4, *range(9, 19))
"""What the right side's choices are called from the left: directions turned by half a turn."""

Raw = Mapping[str, Any]
"""The package's raw observation, as the left side sees it, with `left_agent_controlled_player` and the right's."""


def shared(raw: Raw, side: int, out: np.ndarray) -> None:
    """Writes what all players of a side (0 left, 1 right) see alike: all of out [115] but who one is, which is zero."""
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


def see(raw: Raw, side: int, out: np.ndarray) -> None:
    """Writes what each controlled player of a side sees: out [n, 115]."""
    shared(raw, side, out[0])
    out[1:] = out[0]
    for i, active in enumerate(controlled(raw, side)):
        if active >= 0:  # nobody, while the ball is out of play
            out[i, _ACTIVE + active] = 1.0


def overview(raw: Raw, frames: int, out: np.ndarray) -> None:
    """Writes the state that critics may read, out [127]: what the left side sees with all of its controlled players
    marked, the right side's controlled players (11), and the share of the episode's frames that is left.
    """
    shared(raw, 0, out[:SIZE])
    out[SIZE:] = 0.0
    for side, at in ((0, _ACTIVE), (1, SIZE)):
        for active in controlled(raw, side):
            if active >= 0:
                out[at + active] = 1.0
    out[-1] = raw["steps_left"] / frames


def controlled(raw: Raw, side: int) -> list[int]:
    """Numbers within their side of the players that are controlled; -1 for one who has none at the moment."""
    return raw["left_agent_controlled_player" if side == 0 else "right_agent_controlled_player"]


def owner_of(raw: Raw, side: int) -> int:
    """Who has the ball, seen from a side: -1 nobody, 0 itself, 1 the other one."""
    owner = int(raw["ball_owned_team"])
    return owner if side == 0 or owner < 0 else 1 - owner


def ball_of(raw: Raw, side: int) -> tuple[float, float]:
    """Where the ball lies along and across the field, seen from a side."""
    sign = 1.0 if side == 0 else -1.0
    return sign * float(raw["ball"][0]), sign * float(raw["ball"][1])
