"""Renderer of the particle worlds: discs, names, goals, speech bubbles and the score, at any size.

A scene consists of discs in world coordinates, which a camera maps to pixels. Names and speech bubbles are placed
around the discs.

Shapes are drawn several times too large and averaged down, which smooths their edges. Text is drawn at its final size,
where font hinting works better. Rendered text repeats from frame to frame and is cached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

from coterie.envs.worlds.drawing import (
    GRID,
    INK,
    MIN_SIZE_WITH_TEXT,
    MUTED,
    PAPER,
    WHITE,
    Box,
    Color,
    PlacedText,
    layout_header,
    mix,
    render_text,
)

FIXED_VIEW = 1.2
"""Half the width of the fixed view in world units."""
CROSSHAIR = 1.45
"""Half the width of a goal's crosshair in radii."""


@dataclass(frozen=True)
class Disc:
    """A round object.

    Attributes:
        x, y, radius: world units.
        color: red, green and blue, 0 to 255.
        label: name to write next to it.
        kind: drawing style: agent, landmark, goal (crosshair), obstacle, forest (transparent), food (diamond) or
            deposit (double ring). Unknown kinds are drawn as landmarks.
        heading: direction or velocity, drawn as a pointer, or None.
    """

    x: float
    y: float
    radius: float
    color: Color
    label: str = ""
    kind: str = "agent"
    heading: tuple[float, float] | None = None


@dataclass(frozen=True)
class Message:
    """A message sent by an agent. `speaker` is the label of its disc, or a name that is not in the picture."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Scene:
    """The content of a picture.

    Attributes:
        title: title in the header.
        discs: objects.
        messages: speech bubbles.
        links: pairs of indices in `discs` to join by a line.
        score: numbers by name, shown in the header.
    """

    title: str
    discs: tuple[Disc, ...]
    messages: tuple[Message, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    score: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Camera:
    """Maps world coordinates to pixels.

    Attributes:
        size: width and height of the picture in pixels.
        top: height of the header in pixels; the world is drawn below it.
        half_width: half the visible width in world units. The origin is in the center.
    """

    size: int
    top: int
    half_width: float

    @classmethod
    def showing(cls, discs: Sequence[Disc], size: int, top: int, *, zoom_to_fit: bool) -> Camera:
        """Returns a camera with the fixed view, zoomed out to show all discs if `zoom_to_fit`."""
        half_width = FIXED_VIEW
        if zoom_to_fit:
            # A margin of a few percent keeps outlines away from the border.
            half_width = max([half_width, *(1.06 * (max(abs(disc.x), abs(disc.y)) + disc.radius) for disc in discs)])
        return cls(size, top, min(half_width, 1e9))

    @property
    def scale(self) -> float:
        """Pixels per world unit."""
        return (self.size - self.top) / (2 * self.half_width)

    @property
    def center(self) -> tuple[float, float]:
        """The origin of the world in pixels."""
        return self.size / 2, (self.size + self.top) / 2

    @property
    def thin_line(self) -> float:
        """Width of a thin line in pixels."""
        return max(0.8, self.size / 480)

    @property
    def oversampling(self) -> int:
        """Factor by which shapes are drawn larger and averaged down to smooth their edges."""
        return 4 if self.size <= 256 else 3 if self.size <= 640 else 2

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Maps a point from world coordinates to pixels."""
        cx, cy = self.center
        return cx + x * self.scale, cy - y * self.scale


@dataclass(frozen=True)
class PlacedDisc:
    """A disc with its position and radius in pixels. `arrow` is the direction to a disc out of view, else None."""

    disc: Disc
    x: float
    y: float
    radius: float
    arrow: tuple[float, float] | None

    @property
    def box(self) -> Box:
        """Bounding box in pixels."""
        reach = self.radius * (CROSSHAIR if self.disc.kind == "goal" else 1)
        return self.x - reach, self.y - reach, self.x + reach, self.y + reach


def place_discs(discs: Sequence[Disc], camera: Camera) -> list[PlacedDisc]:
    """Maps discs to pixels in order. Discs out of view are placed at the nearest edge, with an arrow."""
    min_radius = max(2.0, 0.009 * camera.size)  # keeps discs visible when the camera is zoomed out
    margin = 0.045 * camera.size
    placed = []
    for disc in discs:
        x, y = camera.to_pixels(disc.x, disc.y)
        radius = max(disc.radius * camera.scale, min_radius)
        if -radius < x < camera.size + radius and camera.top - radius < y < camera.size + radius:
            placed.append(PlacedDisc(disc, x, y, radius=radius, arrow=None))
            continue
        edge_x = min(max(x, margin), camera.size - margin)
        edge_y = min(max(y, camera.top + margin), camera.size - margin)
        distance = math.hypot(x - edge_x, y - edge_y) or 1.0
        arrow = ((x - edge_x) / distance, (y - edge_y) / distance)
        placed.append(PlacedDisc(disc, edge_x, edge_y, radius=0.03 * camera.size, arrow=arrow))
    return placed


_Occupied = tuple[float, float, float, float, float]
"""A box in use, and the cost per square pixel of covering it."""
_Offsets = tuple[tuple[float, float], ...]
"""Candidate positions of a text around a disc, preferred ones first: x and y in halves of both sizes, y downward."""

_TEXT_COST = 4.0
_AROUND: _Offsets = ((0, 1), (0, -1), (1, 0), (-1, 0), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8))
_ABOVE: _Offsets = ((0, -1), (0.8, -1), (-0.8, -1), (0, 1), (0.8, 1), (-0.8, 1), (0, -1.8), (0, 1.8))


@dataclass(frozen=True)
class SpeechBubble:
    """A speech bubble: its box and the tip of its tail, None if the speaker is not in the picture."""

    box: Box
    tail: tuple[float, float] | None
    color: Color


@dataclass(frozen=True)
class Labels:
    """Speech bubbles and texts, placed so that they cover as little as possible."""

    bubbles: list[SpeechBubble] = field(default_factory=list)
    texts: list[PlacedText] = field(default_factory=list)


def place_labels(scene: Scene, discs: list[PlacedDisc], camera: Camera) -> Labels:
    """Places messages and the labels of discs. A label without enough free space is left out."""
    labels, occupied = Labels(), [(*disc.box, 1.0) for disc in discs]
    pixels = max(9, round(camera.size / 38))
    _place_messages(scene, discs, camera, labels=labels, occupied=occupied)
    # Agents first: the last labels may find no space.
    for i, disc in sorted(enumerate(discs), key=lambda s: (s[1].disc.kind != "agent", s[1].radius)):
        if not disc.disc.label:
            continue
        text = render_text(disc.disc.label, pixels, INK, WHITE)
        fits = disc.arrow is None and disc.disc.kind != "goal" and math.hypot(*text.size) < 2 * disc.radius
        offsets = ((0, 0), *_AROUND) if fits else _AROUND
        others = occupied[:i] + occupied[i + 1 :] if fits else occupied
        search = _Search(disc, camera, gap=0.1 * pixels, offsets=offsets)
        (x, y), cost = search.best(text.size, others)
        if cost > 0.5 * text.width * text.height:
            continue
        occupied.append((x, y, x + text.width, y + text.height, _TEXT_COST))
        inside = fits and math.hypot(x + text.width / 2 - disc.x, y + text.height / 2 - disc.y) < 1
        if inside and disc.disc.kind in ("agent", "obstacle") and sum(disc.disc.color) < 480:
            text = render_text(disc.disc.label, pixels, WHITE, mix(disc.disc.color, INK, 0.45))
        labels.texts.append((text, x, y))
    return labels


def _place_messages(
    scene: Scene, discs: list[PlacedDisc], camera: Camera, *, labels: Labels, occupied: list[_Occupied]
) -> None:
    pixels = max(9, round(camera.size / 38))
    speakers = {disc.disc.label: disc for disc in reversed(discs) if disc.disc.label}
    pad, bottom = 0.45 * pixels, float(camera.size)
    for message in scene.messages:
        speaker = speakers.get(message.speaker)
        content = message.text if speaker else f"{message.speaker}: {message.text}"
        text = render_text(content, pixels, INK)
        width, height = text.width + 2 * pad, text.height + 1.1 * pad
        if speaker:
            search = _Search(speaker, camera, gap=0.9 * pixels, offsets=_ABOVE)
            (x, y), _ = search.best((width, height), occupied)
            above = y + height / 2 < speaker.y
            tail = (speaker.x, speaker.y - 0.8 * speaker.radius if above else speaker.y + 0.8 * speaker.radius)
            color = speaker.disc.color
        else:
            bottom -= height + pad
            x, y, tail, color = pad, bottom, None, MUTED
        box = (x, y, x + width, y + height)
        occupied.append((*box, _TEXT_COST))
        labels.bubbles.append(SpeechBubble(box, tail, color))
        labels.texts.append((text, x + pad, y + 0.55 * pad))


@dataclass(frozen=True)
class _Search:
    """Candidate positions around a disc, `gap` pixels away from it."""

    disc: PlacedDisc
    camera: Camera
    gap: float
    offsets: _Offsets

    def best(self, size: tuple[float, float], occupied: list[_Occupied]) -> tuple[tuple[float, float], float]:
        """Returns the upper left corner of the box that covers least, and its cost in square pixels."""
        disc, camera = self.disc, self.camera
        width, height = size
        reach_x, reach_y = disc.radius + self.gap + width / 2, disc.radius + self.gap + height / 2
        centers = [(disc.x + dx * reach_x, disc.y + dy * reach_y) for dx, dy in self.offsets]
        boxes = np.array([(x - width / 2, y - height / 2, x + width / 2, y + height / 2) for x, y in centers])
        # Move boxes into the picture.
        boxes[:, 0::2] -= (boxes[:, 2:3] - camera.size).clip(0) + boxes[:, 0:1].clip(None, 0)
        boxes[:, 1::2] -= (boxes[:, 3:4] - camera.size).clip(0) + (boxes[:, 1:2] - camera.top).clip(None, 0)
        others = np.array(occupied).reshape(-1, 5)
        overlap_x = np.minimum(boxes[:, None, 2], others[:, 2]) - np.maximum(boxes[:, None, 0], others[:, 0])
        overlap_y = np.minimum(boxes[:, None, 3], others[:, 3]) - np.maximum(boxes[:, None, 1], others[:, 1])
        cost = (overlap_x.clip(0) * overlap_y.clip(0)) @ others[:, 4]
        cost += 0.02 * width * height * np.arange(len(self.offsets))
        i = int(cost.argmin())
        return (float(boxes[i, 0]), float(boxes[i, 1])), float(cost[i])


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
