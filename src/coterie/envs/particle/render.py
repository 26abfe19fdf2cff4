"""Pictures of particle worlds: discs, names, goals, speech and the score, drawn with Pillow at any size.

Shapes are drawn several times too large and averaged down, which smooths their edges; text is drawn at its final size,
where the font smooths it better. What repeats from frame to frame (written words) is kept in caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from coterie.envs.particle.lettering import Bubble, Words, header_of, words_of
from coterie.envs.particle.scene import (
    CROSS,
    GRID,
    INK,
    MUTED,
    PALETTE,
    WHITE,
    Box,
    Color,
    Disc,
    Message,
    Scene,
    Spot,
    View,
    mix,
    spots_of,
)

__all__ = ["PALETTE", "Disc", "Message", "Scene", "draw"]

_PAPER: Color = (250, 250, 248)
_OUTSIDE: Color = (241, 242, 242)
_EDGE: Color = (158, 166, 176)
_NAMED_FROM = 120  # pixels; smaller pictures bear no text
_ORDER = {"forest": 0, "obstacle": 1, "deposit": 2, "landmark": 3, "food": 4, "agent": 5, "goal": 6}


def draw(scene: Scene, size: int = 480, dynamic: bool = True) -> np.ndarray:
    """The picture of a scene: uint8 [size, size, 3].

    dynamic: the camera zooms out until it holds everything; otherwise it shows [-1.2, 1.2]^2, and an arrow at the edge
    points to what is outside. Discs at places that are not finite are left out. Pictures under 120 pixels bear no text.
    """
    named = size >= _NAMED_FROM
    header = header_of(scene, size) if named else None
    top = header.height if header else 0
    shown = [disc for disc in scene.discs if math.isfinite(disc.x) and math.isfinite(disc.y) and disc.radius >= 0]
    view = View.around(shown, size, top, dynamic)
    spots = spots_of(shown, view)
    words = words_of(scene, spots, view) if named else Words([], [])
    image = _shapes(scene, spots, words.bubbles, view)
    for text, x, y in words.texts:
        image.paste(text, (round(x), round(y)), text)
    if header:
        header.write(image)
    return np.array(image)


class _Brush:
    """Draws in picture pixels on a canvas that is `k` times as large; colours may have an opacity as fourth number."""

    def __init__(self, view: View):
        self.k = view.oversampling
        self.image = Image.new("RGB", (view.size * self.k, view.size * self.k), _OUTSIDE)
        self._draw = ImageDraw.Draw(self.image, "RGBA")

    def disc(self, x: float, y: float, r: float, fill: tuple | None = None, rim: tuple | None = None, width: float = 0):
        k = self.k
        box = ((x - r) * k, (y - r) * k, (x + r) * k, (y + r) * k)
        self._draw.ellipse(box, fill=fill, outline=rim, width=max(1, round(width * k)) if rim else 0)

    def line(self, points: Sequence[tuple[float, float]], color: tuple, width: float):
        scaled = [(x * self.k, y * self.k) for x, y in points]
        self._draw.line(scaled, fill=color, width=max(1, round(width * self.k)), joint="curve")

    def polygon(self, points: Sequence[tuple[float, float]], fill: tuple, rim: tuple | None = None, width: float = 1):
        scaled = [(x * self.k, y * self.k) for x, y in points]
        self._draw.polygon(scaled, fill=fill, outline=rim, width=max(1, round(width * self.k)))

    def box(self, box: Box, fill: tuple | None, rim: tuple | None = None, width: float = 0, corner: float = 0):
        x0, y0, x1, y1 = (v * self.k for v in box)
        width = max(1, round(width * self.k)) if rim else 0
        self._draw.rounded_rectangle((x0, y0, x1, y1), corner * self.k, fill=fill, outline=rim, width=width)

    def done(self) -> Image.Image:
        return self.image.reduce(self.k)


def _shapes(scene: Scene, spots: list[Spot], bubbles: list[Bubble], view: View) -> Image.Image:
    brush = _Brush(view)
    _ground(brush, view)
    thin = max(0.8, view.size / 480)
    # `links` counts in scene.discs, of which unplaceable ones have no spot.
    by_disc = {id(spot.disc): spot for spot in spots}
    for a, b in scene.links:
        ends = [by_disc.get(id(scene.discs[i])) for i in (a, b)]
        if ends[0] and ends[1]:
            brush.line([(ends[0].x, ends[0].y), (ends[1].x, ends[1].y)], (*MUTED, 120), 1.6 * thin)
    drawn: list[Spot] = []
    for spot in sorted(spots, key=lambda s: (s.away is not None, -s.radius, _ORDER.get(s.disc.kind, 3))):
        if spot.away is not None:
            _arrow(brush, spot, thin)
            continue
        # A disc that hides another of its size is drawn smaller, so that both are seen.
        hidden = sum(_covers(spot, other) for other in drawn)
        drawn.append(spot)
        _disc(brush, spot, spot.radius * 0.7**hidden, thin)
    for bubble in bubbles:
        _speech(brush, bubble, thin)
    return brush.done()


def _covers(spot: Spot, other: Spot) -> bool:
    near = math.hypot(spot.x - other.x, spot.y - other.y) < 0.3 * other.radius
    return near and spot.radius > 0.7 * other.radius and spot.disc.kind != "goal"


def _ground(brush: _Brush, view: View) -> None:
    """Grid lines at round distances, and the outline of [-1, 1]^2."""
    thin = max(0.8, view.size / 480)
    x0, y0 = view.place(-1, 1)
    x1, y1 = view.place(1, -1)
    brush.box((x0, y0, x1, y1), _PAPER)
    spacing = _round_up(view.half / 5)
    reach = view.half * view.size / (view.size - view.top)
    for i in range(-int(reach / spacing), int(reach / spacing) + 1):
        x, y = view.place(i * spacing, i * spacing)
        brush.line([(x, view.top), (x, view.size)], GRID, thin)
        if y >= view.top:
            brush.line([(0, y), (view.size, y)], GRID, thin)
    brush.box((x0, y0, x1, y1), None, _EDGE, 1.5 * thin, corner=2 * thin)


def _round_up(x: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is at least x."""
    power = 10.0 ** math.floor(math.log10(x))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= x * 0.999)


def _disc(brush: _Brush, spot: Spot, r: float, thin: float) -> None:
    x, y, color, kind = spot.x, spot.y, spot.disc.color, spot.disc.kind
    dark = mix(color, INK, 0.45)
    if kind not in ("goal", "forest", "obstacle", "food"):
        brush.disc(x, y, r + 1.2 * thin, (*WHITE, 235))
    if spot.disc.heading is not None:
        _nose(brush, spot, r, dark, thin)
    if kind == "goal":
        _target(brush, x, y, r, color, thin)
    elif kind == "forest":
        brush.disc(x, y, r, (*color, 70), (*dark, 150), 1.5 * thin)
    elif kind == "agent":
        brush.disc(x, y, r, (*color, 225), dark, max(1.1 * thin, 0.07 * r))
    elif kind == "obstacle":
        brush.disc(x, y, r, (*color, 255), dark, 2 * thin)
    elif kind == "food":
        for reach, fill in ((1.15 * r + 1.6 * thin, WHITE), (1.15 * r, dark), (1.15 * r - 1.4 * thin, color)):
            brush.polygon([(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)], fill)
    else:
        brush.disc(x, y, r, mix(color, WHITE, 0.5), color, max(1.4 * thin, 0.16 * r))
        if kind == "deposit":
            brush.disc(x, y, 0.55 * r, color)


def _target(brush: _Brush, x: float, y: float, r: float, color: Color, thin: float) -> None:
    """A ring with a cross through it."""
    width, reach = max(1.8 * thin, 0.14 * r), CROSS * r
    for spread, tone in ((1.2 * thin, WHITE), (0.0, color)):
        brush.disc(x, y, r + spread, None, (*tone, 255), width + 2 * spread)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            ends = [(x + dx * 0.45 * r, y + dy * 0.45 * r), (x + dx * reach, y + dy * reach)]
            brush.line(ends, (*tone, 255), width + 2 * spread)
        brush.disc(x, y, 0.16 * r + spread, (*tone, 255))


def _nose(brush: _Brush, spot: Spot, r: float, color: Color, thin: float) -> None:
    """A point that looks out from under the disc towards its heading."""
    dx, dy = spot.disc.heading or (0.0, 0.0)
    speed = math.hypot(dx, dy)
    if not (math.isfinite(speed) and speed > 1e-6):
        return
    dx, dy = dx / speed, -dy / speed
    for spread, fill in ((1.2 * thin, WHITE), (0.0, color)):
        tip, base, wide = r + max(5 * thin, 0.55 * r) + 1.5 * spread, 0.85 * r, 0.45 * r + spread
        points = [
            (spot.x + dx * tip, spot.y + dy * tip),
            (spot.x + dx * base - dy * wide, spot.y + dy * base + dx * wide),
            (spot.x + dx * base + dy * wide, spot.y + dy * base - dx * wide),
        ]
        brush.polygon(points, fill)


def _arrow(brush: _Brush, spot: Spot, thin: float) -> None:
    dx, dy = spot.away or (1.0, 0.0)
    r, x, y = spot.radius, spot.x, spot.y
    points = [
        (x + dx * r, y + dy * r),
        (x - dx * 0.7 * r - dy * 0.8 * r, y - dy * 0.7 * r + dx * 0.8 * r),
        (x - dx * 0.3 * r, y - dy * 0.3 * r),
        (x - dx * 0.7 * r + dy * 0.8 * r, y - dy * 0.7 * r - dx * 0.8 * r),
    ]
    brush.polygon(points, spot.disc.color, mix(spot.disc.color, INK, 0.45), 1.2 * thin)


def _speech(brush: _Brush, bubble: Bubble, thin: float) -> None:
    x0, y0, x1, y1 = bubble.box
    rim = mix(bubble.color, INK, 0.25)
    corner = 0.3 * (y1 - y0)
    brush.box(bubble.box, WHITE, rim, 1.3 * thin, corner)
    if bubble.tail is None:
        return
    tx, ty = bubble.tail
    root_y = y1 - 1.3 * thin if ty > y1 else y0 + 1.3 * thin
    root_x = min(max(tx, x0 + 1.6 * corner), x1 - 1.6 * corner)
    half = 0.6 * corner
    brush.polygon([(root_x - half, root_y), (root_x + half, root_y), (tx, ty)], WHITE)
    for side in (-half, half):
        brush.line([(root_x + side, root_y), (tx, ty)], rim, 1.3 * thin)
