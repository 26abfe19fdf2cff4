"""Rendering of the warehouse: shelves, requests, goals and agents with their direction and load."""

from __future__ import annotations

import numpy as np
from PIL import Image

from coterie.envs.worlds.drawing import (
    FLOOR,
    INK,
    MIN_SIZE_WITH_TEXT,
    PALETTE,
    WALL,
    WHITE,
    Color,
    Pen,
    layout_header,
    mix,
)
from coterie.envs.worlds.warehouse.layout import STEPS, Floor, Tables
from coterie.envs.worlds.world import State

_MARGIN = 0.35  # wall around the floor, in cells
_HOME: Color = (222, 220, 214)
_SHELF: Color = (150, 140, 124)
_AGENTS = ("blue", "red", "pink", "green", "yellow", "gray")


def draw(title: str, floor: Floor, tables: Tables, state: State, size: int) -> np.ndarray:
    """Draws a single environment as uint8 [height, size, 3] with height at most `size`. Rows count from the top."""
    score = {name: float(state[name][0]) for name in ("deliveries",)}
    header = layout_header(title, score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    rows, columns = floor.size
    k = 3 if size <= 640 else 2
    side = min(size / (columns + 2 * _MARGIN), (size - top) / (rows + 2 * _MARGIN))
    height = top + round((rows + 2 * _MARGIN) * side)
    height = min(height + height % 2, size)
    left, above = (size - columns * side) / 2, top + _MARGIN * side
    canvas = Image.new("RGB", (size * k, height * k), WALL)
    pen = Pen(canvas, side * k)
    index = {int(cell): i for i, cell in enumerate(tables.cells)}

    def at(cell: int, scale: float = 1.0) -> Pen:
        row, column = divmod(index[cell], columns)
        return pen.at((left + (column + 0.5) * side) * k, (above + (row + 0.5) * side) * k, side * k * scale)

    shelves, requested = state["shelves"][0].tolist(), state["requested"][0].tolist()
    for cell, i in index.items():
        y, x = divmod(i, columns)
        home = floor.rows[y][x] == "x"
        at(cell).box(-0.5, -0.5, 0.5, 0.5, fill=_HOME if home else FLOOR[(x + y) % 2])
    for cell in tables.goals.tolist():
        _goal(at(cell))
    for cell in index:
        if shelves[cell]:
            _shelf(at(cell), requested[shelves[cell]])
    for i, cell in enumerate(state["cell"][0].tolist()):
        _agent(at(cell), i, int(state["direction"][0, i]), int(state["carrying"][0, i]) > 0)
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


def _goal(pen: Pen) -> None:
    green = PALETTE["green"]
    pen.box(-0.5, -0.5, 0.5, 0.5, fill=mix(green, WHITE, 0.55), rim=mix(green, INK, 0.3))


def _shelf(pen: Pen, requested: bool) -> None:
    color = PALETTE["orange"] if requested else _SHELF
    dark = mix(color, INK, 0.5)
    pen.box(-0.43, -0.43, 0.43, 0.43, fill=color, rim=dark, corner=0.05)
    for y in (-0.14, 0.14):
        pen.line([(-0.36, y), (0.36, y)], dark, 0.05)


def _agent(pen: Pen, number: int, direction: int, loaded: bool) -> None:
    """A disc with an arrow; the rim of the shelf stays visible around an agent with a load."""
    color = PALETTE[_AGENTS[number % len(_AGENTS)]]
    pen.disc(0, 0, 0.33, color, rim=WHITE if loaded else mix(color, INK, 0.5))
    dx, dy = STEPS[direction][0], -STEPS[direction][1]
    tip, side = (0.27 * dx, 0.27 * dy), (0.17 * dy, 0.17 * dx)
    back = (-0.1 * dx, -0.1 * dy)
    pen.polygon([tip, (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1])], WHITE, WHITE)
