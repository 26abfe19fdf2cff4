"""Writing on a picture: names beside discs, speech bubbles, the header with the score; where there is room for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from coterie.envs.particle.scene import GRID, INK, MUTED, WHITE, Box, Color, Scene, Spot, View, mix


@lru_cache(maxsize=64)
def _font(pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(pixels)


@lru_cache(maxsize=4096)
def written(text: str, pixels: int, color: Color, halo: Color | None = None) -> Image.Image:
    """Written words on a transparent ground, with a halo that keeps them legible on anything."""
    font, stroke = _font(pixels), 0 if halo is None else max(1, round(pixels / 9))
    x0, _, x1, _ = font.getbbox(text, stroke_width=stroke)
    # Height and baseline are the font's, not the word's: names stand level whatever their letters.
    height = round(1.15 * pixels) + 2 * stroke
    image = Image.new("RGBA", (max(1, math.ceil(x1 - x0)), height), (*(halo or color), 0))
    at = (-x0, stroke - round(0.12 * pixels) if isinstance(font, ImageFont.FreeTypeFont) else 0)
    ImageDraw.Draw(image).text(at, text, color, font, stroke_width=stroke, stroke_fill=halo)
    return image


@dataclass(frozen=True)
class Bubble:
    """A speech bubble: its box, and the tip of its tail (None without a speaker in the picture)."""

    box: Box
    tail: tuple[float, float] | None
    color: Color


@dataclass(frozen=True)
class Words:
    """Where what is written stands: bubbles, and texts with the place of their upper left corner."""

    bubbles: list[Bubble]
    texts: list[tuple[Image.Image, float, float]]


def words_of(scene: Scene, spots: list[Spot], view: View) -> Words:
    words, taken = Words([], []), [(*spot.box, 1.0) for spot in spots]
    pixels = max(9, round(view.size / 38))
    _speech(scene, spots, view, words, taken, pixels)
    # Agents choose first; who is last may find no room.
    for i, spot in sorted(enumerate(spots), key=lambda s: (s[1].disc.kind != "agent", s[1].radius)):
        if not spot.disc.label:
            continue
        text = written(spot.disc.label, pixels, INK, WHITE)
        fits = spot.away is None and spot.disc.kind != "goal" and math.hypot(*text.size) < 2 * spot.radius
        around = ((0, 0), *_AROUND) if fits else _AROUND
        others = taken[:i] + taken[i + 1 :] if fits else taken
        (x, y), cost = _best(text.size, spot, others, view, 0.1 * pixels, around)
        if cost > 0.5 * text.width * text.height:
            continue
        taken.append((x, y, x + text.width, y + text.height, _WRITTEN))
        within = fits and math.hypot(x + text.width / 2 - spot.x, y + text.height / 2 - spot.y) < 1
        if within and spot.disc.kind in ("agent", "obstacle") and sum(spot.disc.color) < 480:
            text = written(spot.disc.label, pixels, WHITE, mix(spot.disc.color, INK, 0.45))
        words.texts.append((text, x, y))
    return words


def _speech(scene: Scene, spots: list[Spot], view: View, words: Words, taken: list[_Taken], pixels: int) -> None:
    speakers = {spot.disc.label: spot for spot in reversed(spots) if spot.disc.label}
    pad, foot = 0.45 * pixels, float(view.size)
    for message in scene.messages:
        spot = speakers.get(message.speaker)
        said = message.text if spot else f"{message.speaker}: {message.text}"
        text = written(said, pixels, INK)
        width, height = text.width + 2 * pad, text.height + 1.1 * pad
        if spot:
            (x, y), _ = _best((width, height), spot, taken, view, 0.9 * pixels, _ABOVE)
            up = y + height / 2 < spot.y
            tail = (spot.x, spot.y - 0.8 * spot.radius if up else spot.y + 0.8 * spot.radius)
            color = spot.disc.color
        else:
            foot -= height + pad
            x, y, tail, color = pad, foot, None, MUTED
        box = (x, y, x + width, y + height)
        taken.append((*box, _WRITTEN))
        words.bubbles.append(Bubble(box, tail, color))
        words.texts.append((text, x + pad, y + 0.55 * pad))


_Taken = tuple[float, float, float, float, float]
"""A box that something stands in, and how bad it is to write over it."""
_WRITTEN = 4.0
# Where a text may stand about a disc: sideways and downwards, in halves of both sizes; first ones are preferred.
_AROUND = ((0, 1), (0, -1), (1, 0), (-1, 0), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8))
_ABOVE = ((0, -1), (0.8, -1), (-0.8, -1), (0, 1), (0.8, 1), (-0.8, 1), (0, -1.8), (0, 1.8))


def _best(
    size: tuple[float, float], spot: Spot, taken: list[_Taken], view: View, gap: float, around: tuple
) -> tuple[tuple[float, float], float]:
    """The place about `spot` for a box of `size` that covers least of what is taken, and its cost in square pixels."""
    width, height = size
    reach_x, reach_y = spot.radius + gap + width / 2, spot.radius + gap + height / 2
    centres = [(spot.x + dx * reach_x, spot.y + dy * reach_y) for dx, dy in around]
    boxes = np.array([(x - width / 2, y - height / 2, x + width / 2, y + height / 2) for x, y in centres])
    boxes[:, 0::2] -= (boxes[:, 2:3] - view.size).clip(0) + boxes[:, 0:1].clip(None, 0)  # stay in the picture
    boxes[:, 1::2] -= (boxes[:, 3:4] - view.size).clip(0) + (boxes[:, 1:2] - view.top).clip(None, 0)
    others = np.array(taken).reshape(-1, 5)
    across = np.minimum(boxes[:, None, 2], others[:, 2]) - np.maximum(boxes[:, None, 0], others[:, 0])
    down = np.minimum(boxes[:, None, 3], others[:, 3]) - np.maximum(boxes[:, None, 1], others[:, 1])
    cost = (across.clip(0) * down.clip(0)) @ others[:, 4]
    cost += 0.02 * width * height * np.arange(len(around))
    i = int(cost.argmin())
    return (float(boxes[i, 0]), float(boxes[i, 1])), float(cost[i])


@dataclass(frozen=True)
class Header:
    """The strip above the world: texts with their places, `height` pixels of them."""

    height: int
    width: int
    texts: list[tuple[Image.Image, float, float]]

    def write(self, image: Image.Image) -> None:
        image.paste(WHITE, (0, 0, self.width, self.height))
        image.paste(GRID, (0, self.height - max(1, self.width // 480), self.width, self.height))
        for text, x, y in self.texts:
            image.paste(text, (round(x), round(y)), text)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.2f}" if abs(value) < 1e5 else f"{value:.2g}"


def header_of(scene: Scene, size: int) -> Header:
    """The title on the left, the score in cells on the right; cells that do not fit go to further lines.

    Heights and cells depend on names alone, so that the frames of a video keep their layout while numbers change.
    """
    large, small = max(10, round(size / 30)), max(8, round(size / 44))
    pad = max(4, round(size / 60))
    line = round(1.15 * large + 1.25 * small)
    title = written(scene.title, round(1.1 * large), INK)
    widest = written("-888.88", large, INK).width
    names = [written(name, small, MUTED) for name in scene.score]
    cells = [max(name.width, widest) + pad for name in names]
    lines: list[list[int]] = [[]]
    room = size - 2 * pad - title.width - pad
    for i, cell in enumerate(cells):
        if cell > room and (lines[-1] or len(lines) == 1):
            lines.append([])
            room = size - 2 * pad
        lines[-1].append(i)
        room -= cell
    values = [written(_number(value), large, INK) for value in scene.score.values()]
    texts: list[tuple[Image.Image, float, float]] = [(title, pad, pad + (line - title.height) / 2)]
    for at, members in enumerate(lines):
        x, y = size - pad - sum(cells[i] for i in members), pad + at * (line + pad)
        for i in members:
            right = x + cells[i]
            texts.append((names[i], right - names[i].width, y))
            texts.append((values[i], right - values[i].width, y + 1.25 * small))
            x = right
    return Header(len(lines) * (line + pad) + pad, size, texts)
