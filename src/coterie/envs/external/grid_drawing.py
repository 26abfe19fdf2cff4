"""Rendering of level-based foraging and of the robotic warehouse from the state; the packages' own renderers need a
screen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from coterie.envs.worlds.drawing.colors import GRID, INK, PALETTE, WHITE, Color, mix
from coterie.envs.worlds.drawing.text import render_text

_CELL = 40  # pixels per square before scaling
_FLOOR: Color = (250, 250, 248)


def draw_foraging(env: Any) -> np.ndarray:
    """Draws agents (circles) and food (green squares) with their levels as uint8 [H, W, 3]."""
    image, brush = _floor(*env.field.shape)
    for row, column in np.argwhere(env.field > 0):
        _square(brush, row, column, mix(PALETTE["green"], WHITE, 0.3), margin=0.18)
        _write(image, str(int(env.field[row, column])), row, column)
    for player in env.players:
        row, column = player.position
        _circle(brush, row, column, mix(PALETTE["blue"], WHITE, 0.2))
        _write(image, str(int(player.level)), row, column)
    return np.asarray(image)


def draw_warehouse(env: Any) -> np.ndarray:
    """Draws shelves (squares, requested ones orange), goals (dark) and agents (circles with a dot in the direction they
    face, and a rim if they carry a shelf) as uint8 [H, W, 3].
    """
    image, brush = _floor(*env.grid_size)
    for column, row in env.goals:
        _square(brush, row, column, mix(PALETTE["gray"], INK, 0.5), margin=0.04)
    wanted = {shelf.id for shelf in env.request_queue}
    for shelf in env.shelfs:
        shade = PALETTE["orange"] if shelf.id in wanted else mix(PALETTE["gray"], WHITE, 0.5)
        _square(brush, shelf.y, shelf.x, shade, margin=0.14)
    for agent in env.agents:
        _circle(brush, agent.y, agent.x, PALETTE["blue"], rim=PALETTE["red"] if agent.carrying_shelf else None)
        dx, dy = {"UP": (0, -1), "DOWN": (0, 1), "LEFT": (-1, 0), "RIGHT": (1, 0)}[agent.dir.name]
        x, y = (agent.x + 0.5 + 0.22 * dx) * _CELL, (agent.y + 0.5 + 0.22 * dy) * _CELL
        brush.ellipse((x - 3, y - 3, x + 3, y + 3), fill=WHITE)
    return np.asarray(image)


def _floor(rows: int, columns: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (columns * _CELL + 1, rows * _CELL + 1), _FLOOR)
    brush = ImageDraw.Draw(image)
    for k in range(rows + 1):
        brush.line((0, k * _CELL, columns * _CELL, k * _CELL), fill=GRID)
    for k in range(columns + 1):
        brush.line((k * _CELL, 0, k * _CELL, rows * _CELL), fill=GRID)
    return image, brush


def _square(brush: ImageDraw.ImageDraw, row: int, column: int, shade: Color, *, margin: float) -> None:
    """A square with a margin in cells."""
    low, high = margin * _CELL, (1 - margin) * _CELL
    x, y = column * _CELL, row * _CELL
    brush.rounded_rectangle((x + low, y + low, x + high, y + high), 0.1 * _CELL, fill=shade)


def _circle(brush: ImageDraw.ImageDraw, row: int, column: int, shade: Color, *, rim: Color | None = None) -> None:
    x, y, reach = (column + 0.5) * _CELL, (row + 0.5) * _CELL, 0.36 * _CELL
    brush.ellipse((x - reach, y - reach, x + reach, y + reach), fill=shade, outline=rim or shade, width=4)


def _write(image: Image.Image, label: str, row: int, column: int) -> None:
    text = render_text(label, _CELL // 2, INK)
    corner = (round((column + 0.5) * _CELL - text.width / 2), round((row + 0.5) * _CELL - text.height / 2))
    image.paste(text, corner, text)
