"""Pictures of simple worlds: a board of cells with words in them, names beside and above it, and lines below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

from coterie.envs.particle.lettering import header_of, written
from coterie.envs.particle.scene import GRID, INK, MUTED, PALETTE, WHITE, Box, Color, Scene, mix

__all__ = ["Board", "Cell", "Line", "draw_board"]

_PAPER: Color = (250, 250, 248)
_NAMED_FROM = 120  # pixels; smaller pictures bear no text
_SMOOTH = 3  # shapes are drawn so many times too large and averaged down


@dataclass(frozen=True)
class Cell:
    """A field of a board.

    text: what stands in it; good: it is the best there is (green); chosen: it was chosen last (a thick orange rim);
    barred: it cannot be chosen (dark); gap: there is room before it.
    """

    text: str = ""
    good: bool = False
    chosen: bool = False
    barred: bool = False
    gap: bool = False


@dataclass(frozen=True)
class Line:
    """A row of cells, and the name on its left."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Board:
    """All that a picture shows.

    columns: names above the columns, or none; below: lines under the board; score: numbers by name; inset: what an
    agent sees, uint8 [H, W] or [H, W, C], drawn above the board with hard edges.
    """

    title: str
    lines: tuple[Line, ...]
    columns: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    score: dict[str, float] = field(default_factory=dict)
    inset: np.ndarray | None = None


def draw_board(board: Board, size: int = 480) -> np.ndarray:
    """The picture of a board: uint8 [size, size, 3]. Pictures under 120 pixels bear no text."""
    named = size >= _NAMED_FROM
    header = header_of(Scene(board.title, (), score=board.score), size) if named else None
    words = max(9, round(size / 30))
    pad = max(2, size // 40)
    top = (header.height if header else 0) + pad
    bottom = size - pad - (round(1.4 * words) * len(board.below) if named else 0)
    image = Image.new("RGB", (size, size), _PAPER)
    if board.inset is not None:
        middle = top + round(0.6 * (bottom - top))
        _paste_inset(image, board.inset, (pad, top, size - pad, middle - pad))
        top = middle
    _cells(image, board, (pad, top, size - pad, bottom), words if named else 0)
    if header:
        for i, line in enumerate(board.below):
            text = written(line, words, MUTED)
            image.paste(text, (max(pad, (size - text.width) // 2), bottom + round(1.4 * words * i)), text)
        header.write(image)
    return np.array(image)


def _cells(image: Image.Image, board: Board, area: Box, words: int) -> None:
    """Draws names and cells into the area; words: pixels of the letters, 0 for none."""
    left, top, right, bottom = area
    if words:
        names = [written(line.name, words, INK) for line in board.lines]
        left += max(name.width for name in names) + words // 2
        top += round(1.5 * words) if board.columns else 0
    columns = max(len(line.cells) for line in board.lines)
    gaps = max(sum(cell.gap for cell in line.cells) for line in board.lines)
    width = (right - left) / (columns + 0.4 * gaps)
    height = min((bottom - top) / len(board.lines), 0.75 * width)
    top += ((bottom - top) - height * len(board.lines)) / 2
    boxes = _boxes(board.lines, left, top, width, height)
    _shapes(image, [cell for line in board.lines for cell in line.cells], boxes)
    if not words:
        return
    at = 0
    for i, line in enumerate(board.lines):
        name = written(line.name, words, INK)
        image.paste(name, (round(area[0]), round(top + height * (i + 0.5) - name.height / 2)), name)
        for j, cell in enumerate(line.cells):
            x0, y0, x1, y1 = boxes[at]
            at += 1
            middle = (x0 + x1) / 2
            _fit(image, cell.text, (middle, (y0 + y1) / 2), 0.85 * (x1 - x0), 0.6 * (y1 - y0), INK)
            if i == 0 and j < len(board.columns):
                _fit(image, board.columns[j], (middle, y0 - 0.8 * words), 1.0 * (x1 - x0), 1.3 * words, INK)


def _boxes(lines: Sequence[Line], left: float, top: float, width: float, height: float) -> list[Box]:
    """The boxes of all cells, line by line, a little apart."""
    boxes, inner = [], 0.04 * min(width, height)
    for i, line in enumerate(lines):
        x, y = left, top + i * height
        for cell in line.cells:
            x += 0.4 * width * cell.gap
            boxes.append((x + inner, y + inner, x + width - inner, y + height - inner))
            x += width
    return boxes


def _shapes(image: Image.Image, cells: Sequence[Cell], boxes: Sequence[Box]) -> None:
    k = _SMOOTH
    large = Image.new("RGB", (image.width * k, image.height * k), _PAPER)
    brush = ImageDraw.Draw(large)
    for cell, (x0, y0, x1, y1) in zip(cells, boxes, strict=True):
        fill = mix(PALETTE["green"], WHITE, 0.6) if cell.good else WHITE
        fill = mix(PALETTE["grey"], WHITE, 0.3) if cell.barred else fill
        rim = PALETTE["orange"] if cell.chosen else GRID
        thick = max(2, 0.09 * (y1 - y0)) if cell.chosen else max(1, image.width / 320)
        corner = 0.12 * min(x1 - x0, y1 - y0)
        place = (x0 * k, y0 * k, max(x1, x0 + 1) * k, max(y1, y0 + 1) * k)
        brush.rounded_rectangle(place, corner * k, fill=fill, outline=rim, width=round(thick * k))
    smooth = large.reduce(k)
    top = max(0, round(min(box[1] for box in boxes)) - 2)  # what stands above is left as it is
    image.paste(smooth.crop((0, top, image.width, image.height)), (0, top))


def _fit(image: Image.Image, said: str, middle: tuple[float, float], width: float, height: float, ink: Color) -> None:
    """Writes as large as the room lets, at most."""
    pixels = max(6, round(height))
    text = written(said, pixels, ink)
    if text.width > width:
        text = written(said, max(6, int(pixels * width / text.width)), ink)
    image.paste(text, (round(middle[0] - text.width / 2), round(middle[1] - text.height / 2)), text)


def _paste_inset(image: Image.Image, inset: np.ndarray, area: Box) -> None:
    seen = inset if inset.ndim == 3 else inset[..., None]
    seen = np.repeat(seen, 3, -1) if seen.shape[-1] == 1 else seen[..., :3]
    room = min(area[2] - area[0], area[3] - area[1])
    times = room / max(seen.shape[:2])
    form = (max(1, round(seen.shape[1] * times)), max(1, round(seen.shape[0] * times)))
    shown = Image.fromarray(seen).resize(form, Image.Resampling.NEAREST)
    image.paste(shown, (round((area[0] + area[2] - form[0]) / 2), round(area[1])))
