"""Rendering of the foraging field: agents and food with their levels, drawn with Pillow at any size."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from coterie.envs.worlds.drawing import (
    FLOOR,
    INK,
    MIN_SIZE_WITH_TEXT,
    PALETTE,
    SPRITES,
    WALL,
    WHITE,
    Color,
    Pen,
    layout_header,
    mix,
)

_MARGIN = 0.35  # wall around the field, in squares
_APPLE: Color = (205, 62, 52)
_SHARED = (0.7, 0.24)
"""Scale and horizontal offset of two agents on one square."""


def draw(title: str, state: dict[str, Any], side: int, size: int) -> np.ndarray:
    """Draws a field as uint8 [size, size, 3], with row 0 at the top. Images under 120 pixels have no header.

    Args:
        state: Entries of the state of one environment as lists.
        side: Side length of the field in squares.
    """
    total, left = state["spawned"], sum(state["food_level"])
    score = {"collected": 1 - left / max(total, 1)}
    header = layout_header(title, score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    k = 4 if size <= 256 else 3 if size <= 640 else 2
    unit = min(size, size - top) / (side + 2 * _MARGIN) * k
    across = (size * k - side * unit) / 2
    canvas = Image.new("RGB", (size * k, size * k), WALL)
    pen = Pen(canvas, unit)

    def at(row: int, column: int, shift: float = 0.0, scale: float = 1.0) -> Pen:
        return pen.at(across + (column + 0.5 + shift) * unit, top * k + (row + _MARGIN + 0.5) * unit, unit * scale)

    for row in range(side):
        for column in range(side):
            at(row, column).box(-0.5, -0.5, 0.5, 0.5, fill=FLOOR[(row + column) % 2])
    for (row, column), level in zip(state["food"], state["food_level"], strict=True):
        if level:
            _apple(at(row, column), level)
    squares = [tuple(place) for place in state["players"]]
    for number, (square, level) in enumerate(zip(squares, state["levels"], strict=True)):
        crowd, earlier = squares.count(square), squares[:number].count(square)
        scale, shift = _SHARED if crowd > 1 else (1.0, 0.0)
        spot = at(*square, shift=shift * (2 * earlier - crowd + 1), scale=scale)
        SPRITES["agent"](spot, number, "")
        _badge(spot, level)
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


def _apple(pen: Pen, level: int) -> None:
    dark = mix(_APPLE, INK, 0.5)
    pen.disc(0.02, -0.08, 0.34, (*INK, 40))
    pen.line([(0.0, 0.2), (0.06, 0.42)], mix(PALETTE["gray"], INK, 0.5), 0.07)
    pen.polygon([(0.06, 0.3), (0.2, 0.42), (0.34, 0.38), (0.2, 0.28)], PALETTE["green"])
    pen.disc(0, -0.05, 0.33, _APPLE, rim=dark)
    pen.text(0, -0.06, str(level), height=0.42, color=WHITE)


def _badge(pen: Pen, level: int) -> None:
    """The level of an agent, below its eyes."""
    pen.disc(0, -0.17, 0.17, WHITE, rim=INK, width=0.03)
    pen.text(0, -0.18, str(level), height=0.27, color=INK)
