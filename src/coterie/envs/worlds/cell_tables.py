"""Tables of labeled cells: payoff matrices, choices, and image observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

from coterie.envs.worlds.drawing import (
    GRID,
    INK,
    MIN_SIZE_WITH_TEXT,
    MUTED,
    PALETTE,
    PAPER,
    WHITE,
    Box,
    Color,
    layout_header,
    mix,
    render_text,
)

_OVERSAMPLING = 3


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: content.
        best: highlights the best cell (green).
        chosen: marks the cell chosen last (thick orange outline).
        masked: the cell cannot be chosen (dark).
        gap: leaves space to the left of the cell.
    """

    text: str = ""
    best: bool = False
    chosen: bool = False
    masked: bool = False
    gap: bool = False


@dataclass(frozen=True)
class Line:
    """A line of cells with its name, which is written to the left."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """The content of a picture.

    Attributes:
        title: title in the header.
        lines: lines of cells.
        columns: names above the columns, may be empty.
        captions: lines of text below the cells.
        score: numbers by name, shown in the header.
        image: an image observation, uint8 [H, W] or [H, W, C], drawn above the cells without smoothing.
    """

    title: str
    lines: tuple[Line, ...]
    columns: tuple[str, ...] = ()
    captions: tuple[str, ...] = ()
    score: dict[str, float] = field(default_factory=dict)
    image: np.ndarray | None = None


def draw_table(table: Table, size: int = 480) -> np.ndarray:
    """Draws a table. Pictures under 120 pixels have no text.

    Args:
        table: content.
        size: width and height in pixels.

    Returns:
        uint8 [size, size, 3].
    """
    with_text = size >= MIN_SIZE_WITH_TEXT
    header = layout_header(table.title, table.score, size) if with_text else None
    text_size = max(9, round(size / 30))
    pad = max(2, size // 40)
    top = (header.height if header else 0) + pad
    bottom = size - pad - (round(1.4 * text_size) * len(table.captions) if with_text else 0)
    picture = Image.new("RGB", (size, size), PAPER)
    if table.image is not None:
        middle = top + round(0.6 * (bottom - top))
        _paste_image(picture, table.image, (pad, top, size - pad, middle - pad))
        top = middle
    _draw_lines(picture, table, (pad, top, size - pad, bottom), text_size if with_text else 0)
    if header:
        for i, caption in enumerate(table.captions):
            text = render_text(caption, text_size, MUTED)
            picture.paste(text, (max(pad, (size - text.width) // 2), bottom + round(1.4 * text_size * i)), text)
        header.write(picture)
    return np.array(picture)


def _draw_lines(picture: Image.Image, table: Table, area: Box, text_size: int) -> None:
    """Draws names and cells into the area, without text if `text_size` is 0."""
    left, top, right, bottom = area
    if text_size:
        names = [render_text(line.name, text_size, INK) for line in table.lines]
        left += max(name.width for name in names) + text_size // 2
        top += round(1.5 * text_size) if table.columns else 0
    columns = max(len(line.cells) for line in table.lines)
    gaps = max(sum(cell.gap for cell in line.cells) for line in table.lines)
    width = (right - left) / (columns + 0.4 * gaps)
    height = min((bottom - top) / len(table.lines), 0.75 * width)
    top += ((bottom - top) - height * len(table.lines)) / 2
    boxes = _cell_boxes(table.lines, (left, top), (width, height))
    _draw_cells(picture, [cell for line in table.lines for cell in line.cells], boxes)
    if not text_size:
        return
    remaining = iter(boxes)
    for i, line in enumerate(table.lines):
        name = render_text(line.name, text_size, INK)
        picture.paste(name, (round(area[0]), round(top + height * (i + 0.5) - name.height / 2)), name)
        for j, cell in enumerate(line.cells):
            x0, y0, x1, y1 = next(remaining)
            middle = (x0 + x1) / 2
            _write_fitted(picture, cell.text, (middle, (y0 + y1) / 2), (0.85 * (x1 - x0), 0.6 * (y1 - y0)))
            if i == 0 and j < len(table.columns):
                room = (1.0 * (x1 - x0), 1.3 * text_size)
                _write_fitted(picture, table.columns[j], (middle, y0 - 0.8 * text_size), room)


def _cell_boxes(lines: Sequence[Line], corner: tuple[float, float], size: tuple[float, float]) -> list[Box]:
    """Returns the boxes of all cells, line by line, with a small margin."""
    (left, top), (width, height) = corner, size
    boxes, margin = [], 0.04 * min(width, height)
    for i, line in enumerate(lines):
        x, y = left, top + i * height
        for cell in line.cells:
            x += 0.4 * width * cell.gap
            boxes.append((x + margin, y + margin, x + width - margin, y + height - margin))
            x += width
    return boxes


def _draw_cells(picture: Image.Image, cells: Sequence[Cell], boxes: Sequence[Box]) -> None:
    k = _OVERSAMPLING
    large = Image.new("RGB", (picture.width * k, picture.height * k), PAPER)
    draw = ImageDraw.Draw(large)
    for cell, (x0, y0, x1, y1) in zip(cells, boxes, strict=True):
        fill: Color = mix(PALETTE["green"], WHITE, 0.6) if cell.best else WHITE
        fill = mix(PALETTE["gray"], WHITE, 0.3) if cell.masked else fill
        rim = PALETTE["orange"] if cell.chosen else GRID
        width = max(2, 0.09 * (y1 - y0)) if cell.chosen else max(1, picture.width / 320)
        corner = 0.12 * min(x1 - x0, y1 - y0)
        box = (x0 * k, y0 * k, max(x1, x0 + 1) * k, max(y1, y0 + 1) * k)
        draw.rounded_rectangle(box, corner * k, fill=fill, outline=rim, width=round(width * k))
    smooth = large.reduce(k)
    top = max(0, round(min(box[1] for box in boxes)) - 2)  # keeps what is drawn above
    picture.paste(smooth.crop((0, top, picture.width, picture.height)), (0, top))


def _write_fitted(
    picture: Image.Image, text: str, middle: tuple[float, float], room: tuple[float, float], color: Color = INK
) -> None:
    """Writes text centered at `middle`, shrunk to fit the width and height of `room`."""
    width, height = room
    pixels = max(6, round(height))
    image = render_text(text, pixels, color)
    if image.width > width:
        image = render_text(text, max(6, int(pixels * width / image.width)), color)
    picture.paste(image, (round(middle[0] - image.width / 2), round(middle[1] - image.height / 2)), image)


def _paste_image(picture: Image.Image, image: np.ndarray, area: Box) -> None:
    """Pastes an image observation, enlarged to fit the area, with hard edges."""
    channels = image if image.ndim == 3 else image[..., None]
    rgb = np.repeat(channels, 3, -1) if channels.shape[-1] == 1 else channels[..., :3]
    factor = min(area[2] - area[0], area[3] - area[1]) / max(rgb.shape[:2])
    size = (max(1, round(rgb.shape[1] * factor)), max(1, round(rgb.shape[0] * factor)))
    enlarged = Image.fromarray(rgb).resize(size, Image.Resampling.NEAREST)
    picture.paste(enlarged, (round((area[0] + area[2] - size[0]) / 2), round(area[1])))
