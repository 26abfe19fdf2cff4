"""Renderer of the particle worlds: discs, names, goals, speech bubbles and the score, at any size.

Shapes are drawn several times too large and averaged down, which smooths their edges. Text is drawn at its final size,
where font hinting works better. Rendered text repeats from frame to frame and is cached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from coterie.envs.worlds.drawing.colors import GRID, INK, MUTED, PAPER, WHITE, Color, mix
from coterie.envs.worlds.drawing.labels import Labels, SpeechBubble, place_labels
from coterie.envs.worlds.drawing.scene import CROSSHAIR, Camera, PlacedDisc, Scene, place_discs
from coterie.envs.worlds.drawing.text import MIN_SIZE_WITH_TEXT, Box, layout_header

_OUTSIDE: Color = (241, 242, 242)
_EDGE: Color = (158, 166, 176)
_LAYERS = {"forest": 0, "obstacle": 1, "deposit": 2, "landmark": 3, "food": 4, "agent": 5, "goal": 6}


def draw_scene(scene: Scene, size: int = 480, *, zoom_to_fit: bool = True) -> np.ndarray:
    """Draws a scene.

    Discs at non-finite positions are left out. Pictures under 120 pixels have no text.

    Args:
        scene: content.
        size: width and height in pixels.
        zoom_to_fit: zooms out until everything is visible. Otherwise the view is fixed to [-1.2, 1.2]^2, and arrows at
            the edge point to discs outside of it.

    Returns:
        uint8 [size, size, 3].
    """
    with_text = size >= MIN_SIZE_WITH_TEXT
    header = layout_header(scene.title, scene.score, size) if with_text else None
    top = header.height if header else 0
    finite = [disc for disc in scene.discs if math.isfinite(disc.x) and math.isfinite(disc.y) and disc.radius >= 0]
    camera = Camera.showing(finite, size, top, zoom_to_fit=zoom_to_fit)
    discs = place_discs(finite, camera)
    labels = place_labels(scene, discs, camera) if with_text else Labels()
    image = _draw_shapes(scene, discs, labels.bubbles, camera)
    for text, x, y in labels.texts:
        image.paste(text, (round(x), round(y)), text)
    if header:
        header.write(image)
    return np.array(image)


class _Brush:
    """Draws in pixels of the final picture on an oversampled canvas. Colors may have an opacity as fourth number."""

    def __init__(self, camera: Camera):
        self.k = camera.oversampling
        self.thin = camera.thin_line
        self.image = Image.new("RGB", (camera.size * self.k, camera.size * self.k), _OUTSIDE)
        self._draw = ImageDraw.Draw(self.image, "RGBA")

    def disc(
        self, x: float, y: float, r: float, fill: tuple | None = None, *, rim: tuple | None = None, width: float = 0
    ) -> None:
        k = self.k
        box = ((x - r) * k, (y - r) * k, (x + r) * k, (y + r) * k)
        self._draw.ellipse(box, fill=fill, outline=rim, width=max(1, round(width * k)) if rim else 0)

    def line(self, points: Sequence[tuple[float, float]], color: tuple, width: float) -> None:
        scaled = [(x * self.k, y * self.k) for x, y in points]
        self._draw.line(scaled, fill=color, width=max(1, round(width * self.k)), joint="curve")

    def polygon(
        self, points: Sequence[tuple[float, float]], fill: tuple, *, rim: tuple | None = None, width: float = 1
    ) -> None:
        scaled = [(x * self.k, y * self.k) for x, y in points]
        self._draw.polygon(scaled, fill=fill, outline=rim, width=max(1, round(width * self.k)))

    def box(
        self, box: Box, fill: tuple | None, *, rim: tuple | None = None, width: float = 0, corner: float = 0
    ) -> None:
        x0, y0, x1, y1 = (v * self.k for v in box)
        width = max(1, round(width * self.k)) if rim else 0
        self._draw.rounded_rectangle((x0, y0, x1, y1), corner * self.k, fill=fill, outline=rim, width=width)

    def result(self) -> Image.Image:
        """Returns the picture at its final size."""
        return self.image.reduce(self.k)


def _draw_shapes(scene: Scene, discs: list[PlacedDisc], bubbles: list[SpeechBubble], camera: Camera) -> Image.Image:
    brush = _Brush(camera)
    _draw_ground(brush, camera)
    # `links` are indices into scene.discs, of which non-finite ones are not placed.
    by_disc = {id(placed.disc): placed for placed in discs}
    for a, b in scene.links:
        ends = [by_disc.get(id(scene.discs[i])) for i in (a, b)]
        if ends[0] and ends[1]:
            brush.line([(ends[0].x, ends[0].y), (ends[1].x, ends[1].y)], (*MUTED, 120), 1.6 * brush.thin)
    drawn: list[PlacedDisc] = []
    for disc in sorted(discs, key=lambda d: (d.arrow is not None, -d.radius, _LAYERS.get(d.disc.kind, 3))):
        if disc.arrow is not None:
            _draw_arrow(brush, disc, disc.arrow)
            continue
        # A disc that would hide others of its size is drawn smaller, so that all remain visible.
        hidden = sum(_covers(disc, other) for other in drawn)
        drawn.append(disc)
        _draw_disc(brush, disc, disc.radius * 0.7**hidden)
    for bubble in bubbles:
        _draw_bubble(brush, bubble)
    return brush.result()


def _covers(disc: PlacedDisc, other: PlacedDisc) -> bool:
    near = math.hypot(disc.x - other.x, disc.y - other.y) < 0.3 * other.radius
    return near and disc.radius > 0.7 * other.radius and disc.disc.kind != "goal"


def _draw_ground(brush: _Brush, camera: Camera) -> None:
    """Draws grid lines at round distances and the outline of [-1, 1]^2."""
    x0, y0 = camera.to_pixels(-1, 1)
    x1, y1 = camera.to_pixels(1, -1)
    brush.box((x0, y0, x1, y1), PAPER)
    spacing = _round_up(camera.half_width / 5)
    reach = camera.half_width * camera.size / (camera.size - camera.top)
    for i in range(-int(reach / spacing), int(reach / spacing) + 1):
        x, y = camera.to_pixels(i * spacing, i * spacing)
        brush.line([(x, camera.top), (x, camera.size)], GRID, brush.thin)
        if y >= camera.top:
            brush.line([(0, y), (camera.size, y)], GRID, brush.thin)
    brush.box((x0, y0, x1, y1), None, rim=_EDGE, width=1.5 * brush.thin, corner=2 * brush.thin)


def _round_up(x: float) -> float:
    """Rounds up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(x))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= x * 0.999)


def _draw_disc(brush: _Brush, placed: PlacedDisc, r: float) -> None:
    x, y, color, kind, thin = placed.x, placed.y, placed.disc.color, placed.disc.kind, brush.thin
    dark = mix(color, INK, 0.45)
    if kind not in ("goal", "forest", "obstacle", "food"):
        brush.disc(x, y, r + 1.2 * thin, (*WHITE, 235))
    if placed.disc.heading is not None:
        _draw_pointer(brush, placed, r, dark)
    if kind == "goal":
        _draw_crosshair(brush, placed, r)
    elif kind == "forest":
        brush.disc(x, y, r, (*color, 70), rim=(*dark, 150), width=1.5 * thin)
    elif kind == "agent":
        brush.disc(x, y, r, (*color, 225), rim=dark, width=max(1.1 * thin, 0.07 * r))
    elif kind == "obstacle":
        brush.disc(x, y, r, (*color, 255), rim=dark, width=2 * thin)
    elif kind == "food":
        for reach, fill in ((1.15 * r + 1.6 * thin, WHITE), (1.15 * r, dark), (1.15 * r - 1.4 * thin, color)):
            brush.polygon([(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)], fill)
    else:
        brush.disc(x, y, r, mix(color, WHITE, 0.5), rim=color, width=max(1.4 * thin, 0.16 * r))
        if kind == "deposit":
            brush.disc(x, y, 0.55 * r, color)


def _draw_crosshair(brush: _Brush, placed: PlacedDisc, r: float) -> None:
    """Draws a ring with a cross through it."""
    x, y = placed.x, placed.y
    width, reach = max(1.8 * brush.thin, 0.14 * r), CROSSHAIR * r
    for outline, color in ((1.2 * brush.thin, WHITE), (0.0, placed.disc.color)):
        brush.disc(x, y, r + outline, None, rim=(*color, 255), width=width + 2 * outline)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            ends = [(x + dx * 0.45 * r, y + dy * 0.45 * r), (x + dx * reach, y + dy * reach)]
            brush.line(ends, (*color, 255), width + 2 * outline)
        brush.disc(x, y, 0.16 * r + outline, (*color, 255))


def _draw_pointer(brush: _Brush, placed: PlacedDisc, r: float, color: Color) -> None:
    """Draws a triangle under the disc that points in the direction of its heading."""
    dx, dy = placed.disc.heading or (0.0, 0.0)
    speed = math.hypot(dx, dy)
    if not (math.isfinite(speed) and speed > 1e-6):
        return
    dx, dy = dx / speed, -dy / speed
    for outline, fill in ((1.2 * brush.thin, WHITE), (0.0, color)):
        tip, base, half = r + max(5 * brush.thin, 0.55 * r) + 1.5 * outline, 0.85 * r, 0.45 * r + outline
        points = [
            (placed.x + dx * tip, placed.y + dy * tip),
            (placed.x + dx * base - dy * half, placed.y + dy * base + dx * half),
            (placed.x + dx * base + dy * half, placed.y + dy * base - dx * half),
        ]
        brush.polygon(points, fill)


def _draw_arrow(brush: _Brush, placed: PlacedDisc, direction: tuple[float, float]) -> None:
    (dx, dy), r, x, y = direction, placed.radius, placed.x, placed.y
    points = [
        (x + dx * r, y + dy * r),
        (x - dx * 0.7 * r - dy * 0.8 * r, y - dy * 0.7 * r + dx * 0.8 * r),
        (x - dx * 0.3 * r, y - dy * 0.3 * r),
        (x - dx * 0.7 * r + dy * 0.8 * r, y - dy * 0.7 * r - dx * 0.8 * r),
    ]
    brush.polygon(points, placed.disc.color, rim=mix(placed.disc.color, INK, 0.45), width=1.2 * brush.thin)


def _draw_bubble(brush: _Brush, bubble: SpeechBubble) -> None:
    x0, y0, x1, y1 = bubble.box
    thin, rim = brush.thin, mix(bubble.color, INK, 0.25)
    corner = 0.3 * (y1 - y0)
    brush.box(bubble.box, WHITE, rim=rim, width=1.3 * thin, corner=corner)
    if bubble.tail is None:
        return
    tip_x, tip_y = bubble.tail
    root_y = y1 - 1.3 * thin if tip_y > y1 else y0 + 1.3 * thin
    root_x = min(max(tip_x, x0 + 1.6 * corner), x1 - 1.6 * corner)
    half = 0.6 * corner
    brush.polygon([(root_x - half, root_y), (root_x + half, root_y), (tip_x, tip_y)], WHITE)
    for side in (-half, half):
        brush.line([(root_x + side, root_y), (tip_x, tip_y)], rim, 1.3 * thin)
