"""A pen in world units, and the sprites of the grid worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

from coterie.envs.worlds.drawing.colors import INK, PALETTE, WHITE, Color, mix
from coterie.envs.worlds.drawing.text import font

WALL: Color = (92, 98, 112)
FLOOR: tuple[Color, Color] = ((247, 246, 241), (239, 237, 230))
"""The two colors of the checkered floor."""

_AGENTS = tuple(PALETTE[name] for name in ("blue", "orange", "green", "pink", "sky", "yellow", "red", "gray"))
_WOOD: Color = (176, 132, 84)
_GOLD: Color = (236, 186, 32)
_STEEL: Color = (140, 150, 165)
_DRAGON: Color = (196, 62, 48)
_PORTAL: Color = (120, 84, 190)
_BLOCKS: tuple[Color, ...] = ((222, 186, 132), (196, 148, 92), (150, 106, 66))

Points = Sequence[tuple[float, float]]


class Pen:
    """Draws around a movable origin. Lengths are in units of `side` pixels, y points upward.

    Colors may have an opacity as fourth number. `fill` and `rim` (the outline) are optional.

    Args:
        canvas: image to draw on.
        side: pixels per unit, e.g. of one grid square.
    """

    def __init__(self, canvas: Image.Image, side: float):
        self._draw = ImageDraw.Draw(canvas, "RGBA")
        self._x, self._y, self._side = 0.0, 0.0, side

    def at(self, x: float, y: float, side: float | None = None) -> Pen:
        """Moves the origin to the pixel (x, y), optionally with another unit, and returns the pen."""
        self._x, self._y, self._side = x, y, side or self._side
        return self

    def _pixel(self, x: float, y: float) -> tuple[float, float]:
        return self._x + x * self._side, self._y - y * self._side

    def _line_width(self, width: float) -> int:
        return max(1, round(width * self._side))

    def box(
        self, x0: float, y0: float, x1: float, y1: float, *, fill: tuple, rim: tuple | None = None, corner: float = 0
    ) -> None:
        """Draws a rectangle with corners of radius `corner`."""
        left, top = self._pixel(x0, y1)
        right, bottom = self._pixel(x1, y0)
        width = self._line_width(0.035) if rim else 0
        box = (left, top, right, bottom)
        self._draw.rounded_rectangle(box, corner * self._side, fill=fill, outline=rim, width=width)

    def disc(
        self, x: float, y: float, r: float, fill: tuple | None, *, rim: tuple | None = None, width: float = 0.035
    ) -> None:
        """Draws a disc of radius `r` with an outline of `width`."""
        (left, top), (right, bottom) = self._pixel(x - r, y + r), self._pixel(x + r, y - r)
        box = (left, top, right, bottom)
        self._draw.ellipse(box, fill=fill, outline=rim, width=self._line_width(width) if rim else 0)

    def polygon(self, points: Points, fill: tuple, rim: tuple | None = None) -> None:
        """Draws a closed polygon."""
        self._draw.polygon([self._pixel(x, y) for x, y in points], fill)
        if rim:
            self.line([*points, points[0]], rim, 0.03)

    def line(self, points: Points, color: tuple, width: float) -> None:
        """Draws connected line segments."""
        self._draw.line([self._pixel(x, y) for x, y in points], color, self._line_width(width), joint="curve")

    def text(self, x: float, y: float, text: str, *, height: float, color: Color) -> None:
        """Writes text centered at (x, y)."""
        pixels = max(6, round(height * self._side))
        self._draw.text(self._pixel(x, y), text, color, font(pixels), anchor="mm")


def _agent(pen: Pen, number: int, mark: str) -> None:
    color = _AGENTS[number % len(_AGENTS)]
    dark = mix(color, INK, 0.5)
    pen.disc(0.02, -0.04, 0.36, (*INK, 40))
    pen.disc(0, 0, 0.35, color, rim=dark)
    for x in (-0.12, 0.12):
        pen.disc(x, 0.07, 0.085, WHITE)
        pen.disc(x + 0.015, 0.06, 0.045, INK)
    if mark == "key":
        _key_at(pen, 0.22, -0.2, 0.75)
    elif mark == "baton":
        _baton_at(pen, 0.16, -0.2, 0.8)


def _key_at(pen: Pen, x: float, y: float, scale: float) -> None:
    for outline, color in ((0.035, mix(_GOLD, INK, 0.55)), (0.0, _GOLD)):
        width = 0.075 * scale + 2 * outline
        pen.disc(x - 0.17 * scale, y, 0.15 * scale + outline, None, rim=color, width=width)
        pen.line([(x - 0.04 * scale, y), (x + 0.3 * scale + outline, y)], color, width)
        for tooth in (0.16, 0.27):
            pen.line([(x + tooth * scale, y), (x + tooth * scale, y - 0.14 * scale - outline)], color, width)


def _key(pen: Pen, number: int, mark: str) -> None:
    _ashes(pen, number, mark)
    _key_at(pen, -0.02, 0.03, 1.0)


def _ashes(pen: Pen, number: int, mark: str) -> None:
    """The remains of the dragon."""
    pen.disc(0, 0, 0.4, (*_DRAGON, 45))
    for x, y, r in ((-0.27, -0.22, 0.05), (0.25, -0.26, 0.07), (0.3, 0.22, 0.05), (-0.24, 0.26, 0.06)):
        pen.disc(x, y, r, (*_DRAGON, 110))


def _dragon(pen: Pen, number: int, mark: str) -> None:
    dark = mix(_DRAGON, INK, 0.5)
    for side in (-1, 1):
        wing = [(0.1, 0.1), (0.46, 0.4), (0.44, 0.12), (0.48, -0.04), (0.34, -0.06), (0.28, -0.18), (0.1, -0.12)]
        pen.polygon([(side * x, y) for x, y in wing], mix(_DRAGON, WHITE, 0.25), dark)
    pen.disc(0, -0.08, 0.27, _DRAGON, rim=dark)
    pen.disc(0, -0.14, 0.15, mix(_DRAGON, (255, 220, 150), 0.6))
    for side in (-1, 1):
        pen.polygon([(side * 0.06, 0.3), (side * 0.2, 0.46), (side * 0.2, 0.22)], mix(_GOLD, WHITE, 0.4), dark)
    pen.disc(0, 0.17, 0.2, _DRAGON, rim=dark)
    for x in (-0.09, 0.09):
        pen.disc(x, 0.21, 0.065, (255, 235, 120))
        pen.line([(x, 0.25), (x, 0.17)], INK, 0.03)
    for x in (-0.05, 0.05):
        pen.disc(x, 0.07, 0.022, dark)


def _door(pen: Pen, number: int, mark: str) -> None:
    dark = mix(_WOOD, INK, 0.6)
    pen.box(-0.36, -0.5, 0.36, 0.46, fill=mix(WALL, INK, 0.3), corner=0.2)
    if mark == "open":
        pen.box(-0.27, -0.5, 0.27, 0.37, fill=(255, 240, 170), corner=0.14)
        pen.polygon([(-0.27, -0.5), (-0.12, -0.42), (-0.12, 0.22), (-0.27, 0.33)], _WOOD, dark)
        return
    pen.box(-0.27, -0.5, 0.27, 0.37, fill=_WOOD, rim=dark, corner=0.14)
    for x in (-0.09, 0.09):
        pen.line([(x, -0.48), (x, 0.34)], dark, 0.02)
    pen.disc(0.15, -0.06, 0.055, _GOLD, rim=dark, width=0.02)


def _portal(pen: Pen, number: int, mark: str) -> None:
    for r, share in ((0.43, 0.6), (0.34, 0.4), (0.25, 0.2), (0.16, 0.0)):
        pen.disc(0, 0, r, mix(_PORTAL, WHITE, share))
    pen.disc(0, 0, 0.08, mix(_PORTAL, INK, 0.6))


def _bell(pen: Pen, number: int, mark: str) -> None:
    dark = mix(_GOLD, INK, 0.5)
    pen.box(-0.46, -0.46, 0.46, 0.46, fill=(*_GOLD, 60), rim=(*dark, 120), corner=0.1)
    pen.disc(0, -0.23, 0.075, dark)
    body = [(-0.3, -0.2), (-0.21, -0.08), (-0.18, 0.12), (-0.08, 0.26), (0.08, 0.26), (0.18, 0.12), (0.21, -0.08)]
    pen.polygon([*body, (0.3, -0.2)], _GOLD, dark)
    pen.disc(0, 0.3, 0.055, None, rim=dark)


def _gate(pen: Pen, number: int, mark: str) -> None:
    pen.box(-0.42, -0.46, 0.42, 0.46, fill=(*_STEEL, 70), corner=0.1)
    for x in (-0.33, 0.33):
        pen.box(x - 0.07, -0.42, x + 0.07, 0.36, fill=_STEEL, rim=mix(_STEEL, INK, 0.5), corner=0.03)
    pen.box(-0.42, 0.26, 0.42, 0.42, fill=_STEEL, rim=mix(_STEEL, INK, 0.5), corner=0.04)
    pen.polygon([(-0.14, -0.26), (0.16, -0.08), (-0.14, 0.1)], mix(_STEEL, INK, 0.3))


def _baton_at(pen: Pen, x: float, y: float, scale: float) -> None:
    dx, dy = 0.26 * scale, 0.12 * scale
    red, dark = PALETTE["red"], mix(PALETTE["red"], INK, 0.6)
    pen.line([(x - dx * 1.1, y - dy * 1.1), (x + dx * 1.1, y + dy * 1.1)], dark, 0.2 * scale)
    pen.line([(x - dx, y - dy), (x + dx, y + dy)], red, 0.14 * scale)
    for share in (-0.55, 0.55):
        bar = 0.13
        pen.line(
            [(x + dx * (share - bar), y + dy * (share - bar)), (x + dx * (share + bar), y + dy * (share + bar))],
            WHITE,
            0.14 * scale,
        )


def _baton(pen: Pen, number: int, mark: str) -> None:
    pen.disc(0, 0, 0.4, (*PALETTE["red"], 40))
    _baton_at(pen, 0, 0, 1.0)


def _goal(pen: Pen, number: int, mark: str) -> None:
    green = PALETTE["green"]
    pen.box(-0.5, -0.5, 0.5, 0.5, fill=mix(green, WHITE, 0.72))
    for at in (-0.25, 0.25):
        pen.line([(at - 0.1, -0.18), (at + 0.08, 0), (at - 0.1, 0.18)], mix(green, WHITE, 0.35), 0.07)


def _block(pen: Pen, number: int, mark: str) -> None:
    color = _BLOCKS[min(number, len(_BLOCKS)) - 1]
    dark = mix(color, INK, 0.55)
    pen.box(-0.42, -0.46, 0.46, 0.42, fill=(*INK, 40), corner=0.06)
    pen.box(-0.45, -0.43, 0.43, 0.45, fill=color, rim=dark, corner=0.06)
    pen.box(-0.34, -0.32, 0.32, 0.34, fill=mix(color, WHITE, 0.22), rim=(*dark, 150), corner=0.03)
    for x in (-0.39, 0.37):
        for y in (-0.37, 0.39):
            pen.disc(x, y, 0.025, dark)
    pen.text(-0.01, 0.0, mark, height=0.5, color=mix(color, INK, 0.85))


SPRITES: dict[str, Callable[[Pen, int, str], None]] = {
    "agent": _agent,
    "ashes": _ashes,
    "baton": _baton,
    "bell": _bell,
    "block": _block,
    "door": _door,
    "dragon": _dragon,
    "gate": _gate,
    "goal": _goal,
    "key": _key,
    "portal": _portal,
}
"""Functions that draw a sprite, by kind.

The arguments are the pen at the square, the number of the object (which selects its color), and its mark: the item
that an agent carries, the state of a door, or the weight of a block.
"""
