"""The drawing kit of the built-in environments and of adapters without a renderer of their own.

It has the palette that all pictures share, rendered text, the header with the title and the score, and a pen in world
units with the sprites of the grid worlds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

PALETTE: dict[str, Color] = {
    "blue": (0, 114, 178),
    "orange": (230, 159, 0),
    "green": (0, 158, 115),
    "red": (213, 94, 0),
    "sky": (86, 180, 233),
    "pink": (204, 121, 167),
    "yellow": (240, 212, 40),
    "gray": (122, 128, 138),
    "dark": (64, 70, 80),
}
"""Colors that remain distinct under color blindness. Source: Okabe and Ito 2008, with yellow darkened for contrast on
white.
"""

INK: Color = (36, 41, 49)
MUTED: Color = (112, 119, 130)
WHITE: Color = (255, 255, 255)
GRID: Color = (226, 229, 232)
PAPER: Color = (250, 250, 248)


def mix(color: Color, other: Color, share: float) -> Color:
    """Blends `share` (0 to 1) of `other` into `color`."""
    r, g, b = (round(c + (o - c) * share) for c, o in zip(color, other, strict=True))
    return r, g, b


Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""

MIN_SIZE_WITH_TEXT = 120
"""Smaller pictures, in pixels, have no text."""

PlacedText = tuple[Image.Image, float, float]
"""A rendered text with the x and y of its upper left corner."""


@lru_cache(maxsize=64)
def font(pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns the default font at a height in pixels."""
    return ImageFont.load_default(pixels)


@lru_cache(maxsize=4096)
def render_text(text: str, pixels: int, color: Color, halo: Color | None = None) -> Image.Image:
    """Renders text on a transparent background.

    Args:
        text: the text, one line.
        pixels: height of the font.
        color: color of the letters.
        halo: color of an outline that keeps the text legible on any background, None for no outline.
    """
    typeface, stroke = font(pixels), 0 if halo is None else max(1, round(pixels / 9))
    x0, _, x1, _ = typeface.getbbox(text, stroke_width=stroke)
    # Height and baseline depend on the font only, so that all texts align.
    height = round(1.15 * pixels) + 2 * stroke
    image = Image.new("RGBA", (max(1, math.ceil(x1 - x0)), height), (*(halo or color), 0))
    origin = (-x0, stroke - round(0.12 * pixels) if isinstance(typeface, ImageFont.FreeTypeFont) else 0)
    ImageDraw.Draw(image).text(origin, text, color, typeface, stroke_width=stroke, stroke_fill=halo)
    return image


@dataclass(frozen=True)
class Header:
    """The strip above the picture, `height` x `width` pixels."""

    height: int
    width: int
    texts: list[PlacedText]

    def write(self, image: Image.Image) -> None:
        """Draws the header onto the top of `image`."""
        image.paste(WHITE, (0, 0, self.width, self.height))
        image.paste(GRID, (0, self.height - max(1, self.width // 480), self.width, self.height))
        for text, x, y in self.texts:
            image.paste(text, (round(x), round(y)), text)


def layout_header(title: str, score: Mapping[str, float], size: int) -> Header:
    """Lays out the title on the left and the score, one cell per number, on the right.

    Cells that do not fit wrap onto further lines. The layout depends on the names only, so that it stays the same
    across the frames of a video.

    Args:
        title: the title.
        score: numbers by name.
        size: width of the picture in pixels.
    """
    large, small = max(10, round(size / 30)), max(8, round(size / 44))
    pad = max(4, round(size / 60))
    line_height = round(1.15 * large + 1.25 * small)
    title_image = render_text(title, round(1.1 * large), INK)
    widest = render_text("-888.88", large, INK).width
    names = [render_text(name, small, MUTED) for name in score]
    widths = [max(name.width, widest) + pad for name in names]
    lines = _wrap(widths, size - 2 * pad - title_image.width - pad, size - 2 * pad)
    values = [render_text(_format_number(value), large, INK) for value in score.values()]
    texts: list[PlacedText] = [(title_image, pad, pad + (line_height - title_image.height) / 2)]
    for number, line in enumerate(lines):
        x, y = size - pad - sum(widths[i] for i in line), pad + number * (line_height + pad)
        for i in line:
            right = x + widths[i]
            texts.append((names[i], right - names[i].width, y))
            texts.append((values[i], right - values[i].width, y + 1.25 * small))
            x = right
    return Header(len(lines) * (line_height + pad) + pad, size, texts)


def _wrap(widths: list[int], first_line: float, other_lines: float) -> list[list[int]]:
    """Assigns cells to lines by index; the first line shares its space with the title."""
    lines: list[list[int]] = [[]]
    free = first_line
    for i, width in enumerate(widths):
        if width > free and (lines[-1] or len(lines) == 1):
            lines.append([])
            free = other_lines
        lines[-1].append(i)
        free -= width
    return lines


def _format_number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.2f}" if abs(value) < 1e5 else f"{value:.2g}"


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
