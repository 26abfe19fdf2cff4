"""Rendered text, and the header with the title and the score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from coterie.envs.worlds.drawing.colors import GRID, INK, MUTED, WHITE, Color

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""

MIN_SIZE_WITH_TEXT = 120
"""Smaller pictures, in pixels, have no text."""

PlacedText = tuple[Image.Image, float, float]
"""A rendered text with the x and y of its upper left corner."""


@lru_cache(maxsize=64)
def font(pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns the default font at a height in pixels."""
    return ImageFont.load_default(pixels)


@lru_cache(maxsize=4096)
def render_text(text: str, pixels: int, color: Color, halo: Color | None = None) -> Image.Image:
    """Renders text on a transparent background.

    Args:
        text: the text, one line.
        pixels: height of the font.
        color: color of the letters.
        halo: color of an outline that keeps the text legible on any background, None for no outline.
    """
    typeface, stroke = font(pixels), 0 if halo is None else max(1, round(pixels / 9))
    x0, _, x1, _ = typeface.getbbox(text, stroke_width=stroke)
    # Height and baseline depend on the font only, so that all texts align.
    height = round(1.15 * pixels) + 2 * stroke
    image = Image.new("RGBA", (max(1, math.ceil(x1 - x0)), height), (*(halo or color), 0))
    origin = (-x0, stroke - round(0.12 * pixels) if isinstance(typeface, ImageFont.FreeTypeFont) else 0)
    ImageDraw.Draw(image).text(origin, text, color, typeface, stroke_width=stroke, stroke_fill=halo)
    return image


@dataclass(frozen=True)
class Header:
    """The strip above the picture, `height` x `width` pixels."""

    height: int
    width: int
    texts: list[PlacedText]

    def write(self, image: Image.Image) -> None:
        """Draws the header onto the top of `image`."""
        image.paste(WHITE, (0, 0, self.width, self.height))
        image.paste(GRID, (0, self.height - max(1, self.width // 480), self.width, self.height))
        for text, x, y in self.texts:
            image.paste(text, (round(x), round(y)), text)


def layout_header(title: str, score: Mapping[str, float], size: int) -> Header:
    """Lays out the title on the left and the score, one cell per number, on the right.

    Cells that do not fit wrap onto further lines. The layout depends on the names only, so that it stays the same
    across the frames of a video.

    Args:
        title: the title.
        score: numbers by name.
        size: width of the picture in pixels.
    """
    large, small = max(10, round(size / 30)), max(8, round(size / 44))
    pad = max(4, round(size / 60))
    line_height = round(1.15 * large + 1.25 * small)
    title_image = render_text(title, round(1.1 * large), INK)
    widest = render_text("-888.88", large, INK).width
    names = [render_text(name, small, MUTED) for name in score]
    widths = [max(name.width, widest) + pad for name in names]
    lines = _wrap(widths, size - 2 * pad - title_image.width - pad, size - 2 * pad)
    values = [render_text(_format_number(value), large, INK) for value in score.values()]
    texts: list[PlacedText] = [(title_image, pad, pad + (line_height - title_image.height) / 2)]
    for number, line in enumerate(lines):
        x, y = size - pad - sum(widths[i] for i in line), pad + number * (line_height + pad)
        for i in line:
            right = x + widths[i]
            texts.append((names[i], right - names[i].width, y))
            texts.append((values[i], right - values[i].width, y + 1.25 * small))
            x = right
    return Header(len(lines) * (line_height + pad) + pad, size, texts)


def _wrap(widths: list[int], first_line: float, other_lines: float) -> list[list[int]]:
    """Assigns cells to lines by index; the first line shares its space with the title."""
    lines: list[list[int]] = [[]]
    free = first_line
    for i, width in enumerate(widths):
        if width > free and (lines[-1] or len(lines) == 1):
            lines.append([])
            free = other_lines
        lines[-1].append(i)
        free -= width
    return lines


def _format_number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.2f}" if abs(value) < 1e5 else f"{value:.2g}"
