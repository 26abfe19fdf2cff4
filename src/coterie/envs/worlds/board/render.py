"""Rendering of line games: a board with holes and discs, or squares with crosses and noughts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from coterie.envs.worlds.drawing.colors import GRID, INK, PALETTE, PAPER, WHITE, Color, mix
from coterie.envs.worlds.drawing.text import MIN_SIZE_WITH_TEXT, layout_header

Look = Literal["holes", "marks"]

_BOARD: Color = PALETTE["blue"]
_STONES: tuple[Color, Color] = (PALETTE["red"], PALETTE["yellow"])
_MARKS: tuple[Color, Color] = (PALETTE["blue"], PALETTE["red"])
_SMOOTH = 3  # supersampling factor


def draw(
    title: str,
    look: Look,
    owner: Sequence[Sequence[float]],
    line: Sequence[Sequence[float]],
    last: tuple[int, int] | None,
    score: dict[str, float],
    size: int = 480,
) -> np.ndarray:
    """Draws a board as uint8 [size, size, 3]. Images under 120 pixels have no text.

    Args:
        owner: Stones by row from the bottom: 1 for the first player, -1 for the second, 0 for empty.
        line: 1 on the squares of the winning line.
        last: Row and column of the last move.
    """
    header = layout_header(title, score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    rows, columns, k = len(owner), len(owner[0]), _SMOOTH
    image = Image.new("RGB", (size * k, size * k), PAPER)
    brush = ImageDraw.Draw(image)
    pad = 0.03 * size
    cell = min((size - 2 * pad) / columns, (size - top - 2 * pad) / rows)
    left, upper = (size - cell * columns) / 2, top + (size - top - cell * rows) / 2
    frame = (left * k, upper * k, (left + cell * columns) * k, (upper + cell * rows) * k)
    brush.rounded_rectangle(frame, 0.15 * cell * k, fill=_BOARD if look == "holes" else WHITE, outline=GRID, width=k)
    for r in range(rows):
        for c in range(columns):
            x, y = (left + cell * (c + 0.5)) * k, (upper + cell * (rows - r - 0.5)) * k
            place = (x, y, 0.4 * cell * k)
            side = None if owner[r][c] == 0 else int(owner[r][c] < 0)
            (_hole if look == "holes" else _mark)(brush, place, side, line[r][c] > 0, last == (r, c))
    image = image.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


def _hole(
    brush: ImageDraw.ImageDraw, place: tuple[float, float, float], side: int | None, won: bool, last: bool
) -> None:
    x, y, r = place
    fill = mix(_BOARD, WHITE, 0.85) if side is None else _STONES[side]
    rim = WHITE if won else mix(fill, INK, 0.35) if side is not None else mix(_BOARD, INK, 0.25)
    brush.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=rim, width=round(r * (0.22 if won else 0.1)))
    if last and side is not None:
        d = 0.25 * r
        brush.ellipse((x - d, y - d, x + d, y + d), fill=mix(fill, INK, 0.5))


def _mark(
    brush: ImageDraw.ImageDraw, place: tuple[float, float, float], side: int | None, won: bool, last: bool
) -> None:
    x, y, r = place
    edge, width = 1.25 * r, max(1, round(0.2 * r))
    fill = mix(PALETTE["green"], WHITE, 0.6) if won else mix(PALETTE["orange"], WHITE, 0.75) if last else None
    brush.rectangle((x - edge, y - edge, x + edge, y + edge), fill=fill, outline=GRID, width=max(1, width // 3))
    if side is None:
        return
    r = 0.75 * r
    if side == 0:
        brush.line((x - r, y - r, x + r, y + r), fill=_MARKS[0], width=width)
        brush.line((x - r, y + r, x + r, y - r), fill=_MARKS[0], width=width)
    else:
        brush.ellipse((x - r, y - r, x + r, y + r), outline=_MARKS[1], width=width)
