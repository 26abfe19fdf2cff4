"""Rendering of a traffic junction: roads with the direction of their lanes, and cars, drawn with Pillow at any size."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
from PIL import Image

from coterie.envs.worlds.drawing import INK, MIN_SIZE_WITH_TEXT, PALETTE, WHITE, Color, Pen, layout_header, mix
from coterie.envs.worlds.traffic.roads import Level, Square, routes

_GRASS: Color = (214, 226, 203)
_ASPHALT: Color = (150, 155, 163)
_JUNCTION: Color = (128, 133, 142)
_MARK: Color = (196, 200, 206)
_CRASH: Color = (214, 48, 39)
_SHIFT = 0.12
"""Offset of cars that share a square, in squares."""
_COLORS = tuple(PALETTE[name] for name in ("blue", "orange", "green", "pink", "sky", "yellow"))


def draw(
    title: str, level: Level, size: int, cars: Mapping[int, tuple[int, int]], score: Mapping[str, float], pixels: int
) -> np.ndarray:
    """Draws a grid as uint8 [pixels, pixels, 3], with row 0 at the top. Images under 120 pixels have no header.

    Args:
        title: The title.
        level: Layout of the roads.
        size: Side length of the grid in squares.
        cars: Route and place on it of each car, by its number.
        score: Numbers of the header by name.
        pixels: Side length of the image.
    """
    header = layout_header(title, score, pixels) if pixels >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    k = 4 if pixels <= 256 else 3 if pixels <= 640 else 2
    unit = min(pixels, pixels - top) / size * k
    across = (pixels * k - size * unit) / 2
    canvas = Image.new("RGB", (pixels * k, pixels * k), _GRASS)
    pen = Pen(canvas, unit)

    def at(square: Square, shift: float = 0.0) -> Pen:
        return pen.at(across + (square[1] + 0.5 + shift) * unit, top * k + (square[0] + 0.5 - shift) * unit)

    for square, headings in _lanes(level, size).items():
        crossing = len(headings) > 1
        at(square).box(-0.5, -0.5, 0.5, 0.5, fill=_JUNCTION if crossing else _ASPHALT)
        if not crossing:
            _arrow(at(square), headings[0])
    paths = _paths(level, size)
    squares = {number: paths[route][place] for number, (route, place) in cars.items()}
    on_square = {square: [n for n, other in squares.items() if other == square] for square in squares.values()}
    for square in (square for square, numbers in on_square.items() if len(numbers) > 1):
        at(square).disc(0, 0, 0.48, (*_CRASH, 110), rim=_CRASH, width=0.06)
    for number, (route, place) in cars.items():
        square = squares[number]
        numbers = on_square[square]
        shift = (2 * numbers.index(number) - len(numbers) + 1) * _SHIFT
        _car(at(square, shift), _heading(paths[route], place), _COLORS[number % len(_COLORS)], number)
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


@functools.cache
def _paths(level: Level, size: int) -> list[list[Square]]:
    return [path for arrival in routes(level, size) for path in arrival]


@functools.cache
def _lanes(level: Level, size: int) -> dict[Square, list[Square]]:
    """Returns the headings of the lanes on each road square; those of turns only on the squares where they turn."""
    found: dict[Square, list[Square]] = {}
    for path in _paths(level, size):
        for place, square in enumerate(path):
            heading = _heading(path, place)
            if heading not in found.setdefault(square, []):
                found[square].append(heading)
    return found


def _heading(path: list[Square], place: int) -> Square:
    """Returns the direction to the next square of a route, at its end that from the one before."""
    before, after = (path[place], path[place + 1]) if place + 1 < len(path) else (path[place - 1], path[place])
    return after[0] - before[0], after[1] - before[1]


def _toward(heading: Square, along: float, aside: float) -> tuple[float, float]:
    """Maps lengths along and to the right of a heading to x and y, which points upward."""
    down, right = heading
    return right * along - down * aside, -down * along - right * aside


def _arrow(pen: Pen, heading: Square) -> None:
    pen.line([_toward(heading, -0.12, 0.16), _toward(heading, 0.06, 0), _toward(heading, -0.12, -0.16)], _MARK, 0.05)


def _car(pen: Pen, heading: Square, color: Color, number: int) -> None:
    dark = mix(color, INK, 0.5)
    (x0, y0), (x1, y1) = _toward(heading, -0.36, -0.22), _toward(heading, 0.36, 0.22)
    pen.box(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1), fill=color, rim=dark, corner=0.12)
    glass = [(0.14, -0.16), (0.24, -0.13), (0.24, 0.13), (0.14, 0.16)]
    pen.polygon([_toward(heading, *corner) for corner in glass], mix(color, WHITE, 0.7))
    pen.text(*_toward(heading, -0.08, 0), str(number), height=0.3, color=WHITE)
