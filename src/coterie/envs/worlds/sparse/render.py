"""Rendering of the sparse worlds: rooms, doors, plates, goal and agents, drawn with Pillow at any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from coterie.envs.worlds.drawing.colors import Color
from coterie.envs.worlds.drawing.shapes import FLOOR, SPRITES, WALL, Pen
from coterie.envs.worlds.drawing.text import MIN_SIZE_WITH_TEXT, layout_header
from coterie.envs.worlds.sparse.chain import Chain

_MARGIN = 0.35  # wall around the rooms, in squares
_DOOR: Color = (176, 132, 84)
_PLATE: Color = (236, 186, 32)
_CLEAR: Color = (214, 222, 208)
_GOAL: Color = (206, 194, 232)


def draw(
    title: str,
    rooms: Chain,
    agents: Sequence[int],
    plates: Sequence[int],
    goals: Sequence[int],
    opened: Sequence[bool],
    score: dict[str, float],
    size: int,
) -> np.ndarray:
    """Draws the agents in their rooms as uint8 [height, size, 3] with height at most `size`.

    Args:
        plates: Squares of the plates.
        goals: Squares of the goal.
        opened: State of every door.
    """
    header = layout_header(title, score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    k = 3 if size <= 640 else 2
    side = min(size / (rooms.width + 2 * _MARGIN), (size - top) / (rooms.height + 2 * _MARGIN))
    height = top + round((rooms.height + 2 * _MARGIN) * side)
    height = min(height + height % 2, size)
    beside = (size - rooms.width * side) / 2
    canvas = Image.new("RGB", (size * k, height * k), WALL)
    pen, large, floor = Pen(canvas, side * k), side * k, (height - _MARGIN * side) * k

    def at(square: int) -> Pen:
        x, y = square % rooms.width, square // rooms.width
        return pen.at((beside + (x + 0.5) * side) * k, floor - (y + 0.5) * large)

    for square in rooms.floor.nonzero().squeeze(-1).tolist():
        at(square).box(-0.5, -0.5, 0.5, 0.5, fill=FLOOR[(square % rooms.width + square // rooms.width) % 2])
    for square, is_open in zip(rooms.doors.tolist(), opened, strict=True):
        at(square).box(-0.5, -0.5, 0.5, 0.5, fill=_CLEAR if is_open else _DOOR)
    for square in plates:
        at(square).box(-0.36, -0.36, 0.36, 0.36, fill=_PLATE)
    for square in goals:
        if len(goals) == 1:
            SPRITES["portal"](at(square), 0, "")
        else:
            at(square).box(-0.5, -0.5, 0.5, 0.5, fill=_GOAL)
    for number, square in enumerate(agents):
        SPRITES["agent"](at(square), number, "")
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)
