"""Pictures of the sparse worlds: rooms, doors, plates, the goal and agents, drawn with Pillow at any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from coterie.envs.coop.shapes import FLOOR, SHAPES, WALL, Pen
from coterie.envs.particle.lettering import header_of
from coterie.envs.particle.scene import Color, Scene
from coterie.envs.sparse.chain import Chain

_NAMED_FROM = 120  # pixels; smaller pictures bear no text
_MARGIN = 0.35  # of a square, the wall around the rooms
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
    """The picture of agents on squares: uint8 [height, size, 3], as high as the rooms want, but at most `size`.

    plates, goals: squares; opened: of every door.
    """
    header = header_of(Scene(title, (), score=score), size) if size >= _NAMED_FROM else None
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
        at(square).box(-0.5, -0.5, 0.5, 0.5, FLOOR[(square % rooms.width + square // rooms.width) % 2])
    for square, is_open in zip(rooms.doors.tolist(), opened, strict=True):
        at(square).box(-0.5, -0.5, 0.5, 0.5, _CLEAR if is_open else _DOOR)
    for square in plates:
        at(square).box(-0.36, -0.36, 0.36, 0.36, _PLATE)
    for square in goals:
        if len(goals) == 1:
            SHAPES["portal"](at(square), 0, "")
        else:
            at(square).box(-0.5, -0.5, 0.5, 0.5, _GOAL)
    for number, square in enumerate(agents):
        SHAPES["agent"](at(square), number, "")
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)
