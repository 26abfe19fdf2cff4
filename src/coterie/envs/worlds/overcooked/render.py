"""Rendering of a kitchen: counters, dispensers, pots, the serving window, and the cooks with what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from coterie.envs.worlds.drawing import FLOOR as FLOOR_COLORS
from coterie.envs.worlds.drawing import INK, MIN_SIZE_WITH_TEXT, PALETTE, WALL, WHITE, Color, Pen, layout_header, mix
from coterie.envs.worlds.overcooked.kitchen import (
    DISH,
    DISHES,
    FLOOR,
    MAX_ONIONS,
    ONION,
    ONIONS,
    POT,
    SOUP,
    STEPS,
    WINDOW,
    Kitchen,
)

_MARGIN = 0.35  # wall around the kitchen, in cells
_COUNTER: Color = (205, 170, 125)
_ONION: Color = (226, 174, 62)
_SOUP: Color = (232, 130, 44)
_METAL: Color = (86, 92, 104)
_COOKS = ("blue", "pink")


def draw(title: str, kitchen: Kitchen, state: dict[str, Any], cook_time: int, size: int) -> np.ndarray:
    """Draws a kitchen as uint8 [height, size, 3] with height at most `size`. Small images have no header.

    Args:
        state: Entries of the state of one environment as lists.
        cook_time: Number of steps until a soup is ready.
    """
    score = {"deliveries": float(state["counts"][0])}
    header = layout_header(title, score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    side = min(size / (kitchen.width + 2 * _MARGIN), (size - top) / (kitchen.height + 2 * _MARGIN))
    height = top + round((kitchen.height + 2 * _MARGIN) * side)
    height = min(height + height % 2, size)
    k = 3 if size <= 640 else 2
    left, above = (size - kitchen.width * side) / 2, top + _MARGIN * side
    canvas = Image.new("RGB", (size * k, height * k), WALL)
    pen = Pen(canvas, side * k)

    def at(cell: int) -> Pen:
        row, column = divmod(cell, kitchen.width)
        return pen.at((left + (column + 0.5) * side) * k, (above + (row + 0.5) * side) * k)

    for cell, kind in enumerate(kitchen.kinds):
        _cell(at(cell), kind, sum(divmod(cell, kitchen.width)))
        if kind != POT:
            _item(at(cell), state["item"][cell])
    for cell, tick in zip(kitchen.pots, state["tick"], strict=True):
        _pot(at(cell), max(state["item"][cell] - SOUP, 0), tick, cook_time)
    for number, (cell, direction) in enumerate(zip(state["cell"], state["direction"], strict=True)):
        _cook(at(cell), number, direction, state["held"][number])
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


def _cell(pen: Pen, kind: int, place: int) -> None:
    """A cell without items."""
    if kind == FLOOR:
        pen.box(-0.5, -0.5, 0.5, 0.5, fill=FLOOR_COLORS[place % 2])
        return
    pen.box(-0.5, -0.5, 0.5, 0.5, fill=_COUNTER, rim=mix(_COUNTER, INK, 0.3))
    if kind == ONIONS:
        pen.box(-0.4, -0.4, 0.4, 0.4, fill=mix(_COUNTER, INK, 0.35), corner=0.08)
        for x, y in ((-0.17, -0.13), (0.17, -0.13), (0, 0.14)):
            _onion(pen, x, y, 0.18)
    elif kind == DISHES:
        for y in (-0.12, -0.02, 0.08):
            pen.disc(0, y, 0.3, WHITE, rim=mix(_METAL, WHITE, 0.3))
        pen.disc(0, 0.08, 0.18, None, rim=mix(_METAL, WHITE, 0.6))
    elif kind == WINDOW:
        green = PALETTE["green"]
        pen.box(-0.42, -0.42, 0.42, 0.42, fill=mix(green, WHITE, 0.45), rim=mix(green, INK, 0.3), corner=0.08)
        pen.polygon([(0, 0.3), (0.26, 0), (0.1, 0), (0.1, -0.28), (-0.1, -0.28), (-0.1, 0), (-0.26, 0)], WHITE)


def _onion(pen: Pen, x: float, y: float, r: float) -> None:
    pen.line([(x, y), (x, y + 1.45 * r)], mix(PALETTE["green"], INK, 0.1), 0.35 * r)
    pen.disc(x, y, r, _ONION, rim=mix(_ONION, INK, 0.45))


def _item(pen: Pen, item: int, x: float = 0, y: float = 0, scale: float = 1.0) -> None:
    """An onion, a dish, or a soup with its number of onions."""
    if item == ONION:
        _onion(pen, x, y - 0.04 * scale, 0.22 * scale)
    elif item >= DISH:
        pen.disc(x, y, 0.32 * scale, WHITE, rim=mix(_METAL, WHITE, 0.2))
        pen.disc(x, y, 0.21 * scale, _SOUP if item > SOUP else None, rim=mix(_METAL, WHITE, 0.5))
        if SOUP < item < SOUP + MAX_ONIONS:
            pen.text(x, y, str(item - SOUP), height=0.3 * scale, color=INK)


def _pot(pen: Pen, onions: int, tick: int, cook_time: int) -> None:
    """A pot with its onions; a bar shows how far a soup is cooked, and a bright rim that it is ready."""
    ready = tick >= cook_time
    pen.box(-0.46, -0.46, 0.46, 0.46, fill=mix(_METAL, INK, 0.5), corner=0.06)
    pen.disc(0, 0.04, 0.38, _METAL, rim=PALETTE["yellow"] if ready else mix(_METAL, WHITE, 0.4), width=0.07)
    if tick >= 0:
        pen.disc(0, 0.04, 0.28, _SOUP)
    for x, y in ((-0.13, -0.03), (0.13, -0.03), (0, 0.17))[:onions]:
        pen.disc(x, y, 0.1, _ONION, rim=mix(_ONION, INK, 0.45))
    if tick >= 0 and not ready:
        pen.box(-0.4, -0.44, 0.4, -0.34, fill=INK)
        pen.box(-0.4, -0.44, -0.4 + 0.8 * tick / cook_time, -0.34, fill=PALETTE["yellow"])


def _cook(pen: Pen, number: int, direction: int, held: int) -> None:
    """A disc with a hat, which points to the cell ahead, and the held item before it."""
    color = PALETTE[_COOKS[number]]
    dx, dy = STEPS[direction][0], -STEPS[direction][1]
    pen.disc(0.02, -0.04, 0.36, (*INK, 40))
    across = [(0.34 * (a * dx + b * dy), 0.34 * (a * dy - b * dx)) for a, b in ((0.6, 0.8), (1.35, 0), (0.6, -0.8))]
    pen.polygon(across, color, mix(color, INK, 0.5))
    pen.disc(0, 0, 0.34, color, rim=mix(color, INK, 0.5))
    pen.disc(-0.05 * dx, -0.05 * dy, 0.2, WHITE, rim=mix(WHITE, INK, 0.25))
    _item(pen, held, 0.22 * dx, 0.22 * dy, 0.62)
