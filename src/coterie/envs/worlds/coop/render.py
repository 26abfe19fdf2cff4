"""Rendering of the cooperative worlds: a tiled room with sprites, drawn with Pillow at any size.

Shapes are drawn with supersampling for smooth edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from coterie.envs.worlds.drawing.shapes import FLOOR, SPRITES, WALL, Pen
from coterie.envs.worlds.drawing.text import MIN_SIZE_WITH_TEXT, layout_header

__all__ = ["Scene", "Sprite", "draw"]

_MARGIN = 0.35  # wall around the room, in squares
# Offsets of agents that share a square, by their number.
_BESIDE = {
    1: ((0.0, 0.0),),
    2: ((-0.22, 0.0), (0.22, 0.0)),
    3: ((-0.22, -0.17), (0.22, -0.17), (0.0, 0.22)),
    4: ((-0.22, -0.22), (0.22, -0.22), (-0.22, 0.22), (0.22, 0.22)),
}


@dataclass(frozen=True)
class Sprite:
    """A drawing on a square.

    Attributes:
        kind: Name in `shapes.SPRITES`.
        number: Index among sprites of its kind, which selects the color.
        mark: Item carried, or state.
    """

    kind: str
    square: int
    number: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Scene:
    """Contents of an image.

    Attributes:
        size: Width and height in squares; square (x, y) has the index y * width + x, with y pointing up.
        sprites: Sprites in drawing order.
        score: Numbers of the header by name.
    """

    title: str
    size: tuple[int, int]
    sprites: tuple[Sprite, ...]
    score: dict[str, float] = field(default_factory=dict)


def draw(scene: Scene, size: int = 480) -> np.ndarray:
    """Draws a scene as uint8 [size, size, 3]. Images under 120 pixels have no header."""
    header = layout_header(scene.title, scene.score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    k = 4 if size <= 256 else 3 if size <= 640 else 2
    canvas = Image.new("RGB", (size * k, size * k), WALL)
    width, height = scene.size
    side = min(size / (width + 2 * _MARGIN), (size - top) / (height + 2 * _MARGIN)) * k
    left, floor = (size * k - width * side) / 2, ((size + top) * k + height * side) / 2
    pen = Pen(canvas, side)
    for square in range(width * height):
        x, y = square % width, square // width
        pen.at(left + (x + 0.5) * side, floor - (y + 0.5) * side).box(-0.5, -0.5, 0.5, 0.5, fill=FLOOR[(x + y) % 2])
    crowd: dict[int, int] = {}
    for sprite in scene.sprites:
        crowd[sprite.square] = crowd.get(sprite.square, 0) + (sprite.kind == "agent")
    placed: dict[int, int] = {}
    for sprite in scene.sprites:
        x, y = sprite.square % width + 0.5, sprite.square // width + 0.5
        small = 1.0
        if sprite.kind == "agent":
            many = crowd[sprite.square]
            places, i = _BESIDE[min(many, 4)], placed.get(sprite.square, 0)
            placed[sprite.square] = i + 1
            dx, dy = places[i % len(places)]
            x, y, small = x + dx, y + dy, 1.0 if many == 1 else 0.62
        pen.at(left + x * side, floor - y * side, side * small)
        SPRITES[sprite.kind](pen, sprite.number, sprite.mark)
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)
