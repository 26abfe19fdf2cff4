"""Top view of a match, drawn from the raw observation; the package's renderer needs a screen and a GPU."""

from __future__ import annotations

import numpy as np
from PIL import Image

from coterie.envs.external.football.observations import Raw, controlled
from coterie.envs.worlds.drawing.colors import INK, PALETTE, WHITE, Color, mix
from coterie.envs.worlds.drawing.shapes import Pen
from coterie.envs.worlds.drawing.text import layout_header

__all__ = ["draw"]

_GRASS: tuple[Color, Color] = ((84, 140, 82), (90, 148, 88))
_LINE: Color = (226, 238, 224)
_SIDES: tuple[Color, Color] = (PALETTE["blue"], PALETTE["red"])
_HALF = 0.42  # half the field width, in units of half its length
_EDGE = 0.1  # margin around the field
_GOAL = 0.044  # half the goal width
_SMOOTH = 3
_REACH = 0.028  # player radius


def draw(raw: Raw, title: str, width: int = 640) -> np.ndarray:
    """Draws a match as uint8 [H, width, 3]. Blue plays to the right; controlled players have a yellow rim, lines show
    velocities, and the player with the ball has a white disc.
    """
    score = {"left": float(raw["score"][0]), "right": float(raw["score"][1]), "to go": float(raw["steps_left"])}
    header = layout_header(title.rpartition("/")[2], score, width)
    tall = round(width * (_HALF + _EDGE) / (1 + _EDGE))
    canvas = Image.new("RGB", (width * _SMOOTH, tall * _SMOOTH), _GRASS[0])
    pen = Pen(canvas, width * _SMOOTH / (2 * (1 + _EDGE))).at(width * _SMOOTH / 2, tall * _SMOOTH / 2)
    _field(pen)
    for side in (0, 1):
        _team(pen, raw, side)
    _ball(pen, raw)
    image = Image.new("RGB", (width, tall + header.height), WHITE)
    image.paste(canvas.reduce(_SMOOTH), (0, header.height))
    header.write(image)
    return np.array(image)


def _field(pen: Pen) -> None:
    for k in range(-5, 5):
        if k % 2:
            pen.box(k / 5, -_HALF, (k + 1) / 5, _HALF, fill=_GRASS[1])
    pen.line([(-1, -_HALF), (1, -_HALF), (1, _HALF), (-1, _HALF), (-1, -_HALF)], _LINE, 0.006)
    pen.line([(0, -_HALF), (0, _HALF)], _LINE, 0.006)
    pen.disc(0, 0, 0.17, None, rim=_LINE, width=0.006)
    pen.disc(0, 0, 0.01, _LINE)
    for end in (-1, 1):
        for deep, half in ((0.3, 0.24), (0.1, 0.11)):
            inner = end * (1 - deep)
            pen.line([(end, -half), (inner, -half), (inner, half), (end, half)], _LINE, 0.006)
        low, high = sorted((end, end * 1.05))
        pen.box(low, -_GOAL, high, _GOAL, fill=(*WHITE, 150), rim=_LINE)


def _team(pen: Pen, raw: Raw, side: int) -> None:
    """The y axis of observations points down."""
    name = ("left_team", "right_team")[side]
    color = _SIDES[side]
    dark = mix(color, INK, 0.5)
    controlled_players = set(controlled(raw, side))
    has_ball = int(raw["ball_owned_player"]) if int(raw["ball_owned_team"]) == side else -1
    for i, ((x, y), (dx, dy)) in enumerate(zip(raw[name], raw[f"{name}_direction"], strict=True)):
        if i == has_ball:
            pen.disc(x, -y, 1.6 * _REACH, (*WHITE, 130))
        pen.line([(x, -y), (x + 8 * dx, -y - 8 * dy)], dark, 0.012)
        pen.disc(x, -y, _REACH, color, rim=PALETTE["yellow"] if i in controlled_players else dark, width=0.01)
        pen.text(x, -y, str(i), height=1.2 * _REACH, color=WHITE)


def _ball(pen: Pen, raw: Raw) -> None:
    x, y, z = (float(at) for at in raw["ball"])
    pen.disc(x, -y, 0.011, (*INK, 90))
    pen.disc(x, -y + 0.03 * z, 0.013, WHITE, rim=INK, width=0.005)
