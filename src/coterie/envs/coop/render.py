"""Pictures of the cooperative worlds: a room of tiles and what stands on them, drawn with Pillow at any size.

Shapes are drawn several times too large and averaged down, which smooths their edges; the header is that of the
particle worlds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from coterie.envs.coop.shapes import FLOOR, SHAPES, WALL, Pen
from coterie.envs.particle.lettering import header_of
from coterie.envs.particle.scene import Scene as Titled

__all__ = ["Scene", "Sprite", "draw"]

_NAMED_FROM = 120  # pixels; smaller pictures bear no text
_MARGIN = 0.35  # of a square, the wall around the room
# Where agents that share a square stand in it, by how many they are.
_BESIDE = {
    1: ((0.0, 0.0),),
    2: ((-0.22, 0.0), (0.22, 0.0)),
    3: ((-0.22, -0.17), (0.22, -0.17), (0.0, 0.22)),
    4: ((-0.22, -0.22), (0.22, -0.22), (-0.22, 0.22), (0.22, 0.22)),
}


@dataclass(frozen=True)
class Sprite:
    """Something on a square.

    kind: a name in `shapes.SHAPES`; number: which one of its kind, for the colour; mark: what it bears, or how it is.
    """

    kind: str
    square: int
    number: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Scene:
    """All that a picture shows. size: width and height in squares, square (x, y) being y * width + x, y upwards;
    sprites: in the order in which they are drawn; score: numbers by name.
    """

    title: str
    size: tuple[int, int]
    sprites: tuple[Sprite, ...]
    score: dict[str, float] = field(default_factory=dict)


def draw(scene: Scene, size: int = 480) -> np.ndarray:
    """The picture of a scene: uint8 [size, size, 3]. Pictures under 120 pixels bear no header."""
    header = header_of(Titled(scene.title, (), score=scene.score), size) if size >= _NAMED_FROM else None
    top = header.height if header else 0
    k = 4 if size <= 256 else 3 if size <= 640 else 2
    canvas = Image.new("RGB", (size * k, size * k), WALL)
    width, height = scene.size
    side = min(size / (width + 2 * _MARGIN), (size - top) / (height + 2 * _MARGIN)) * k
    left, floor = (size * k - width * side) / 2, ((size + top) * k + height * side) / 2
    pen = Pen(canvas, side)
    for square in range(width * height):
        x, y = square % width, square // width
        pen.at(left + (x + 0.5) * side, floor - (y + 0.5) * side).box(-0.5, -0.5, 0.5, 0.5, FLOOR[(x + y) % 2])
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
        SHAPES[sprite.kind](pen, sprite.number, sprite.mark)
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)
