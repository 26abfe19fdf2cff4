"""Pictures of particle worlds: discs, names, goals, speech and the score, drawn with Pillow at any size.

Shapes are drawn several times too large and averaged down, which smooths their edges; text is drawn at its final size,
where the font smooths it better. What repeats from frame to frame (written words) is kept in caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
Box = tuple[float, float, float, float]

PALETTE: dict[str, Color] = {
    "blue": (0, 114, 178),
    "orange": (230, 159, 0),
    "green": (0, 158, 115),
    "red": (213, 94, 0),
    "sky": (86, 180, 233),
    "pink": (204, 121, 167),
    "yellow": (240, 212, 40),
    "grey": (122, 128, 138),
    "dark": (64, 70, 80),
}
"""Colours that the colour-blind tell apart. Source: Okabe and Ito 2008, yellow darkened to stand out on white."""

_PAPER: Color = (250, 250, 248)
_OUTSIDE: Color = (241, 242, 242)
_GRID: Color = (226, 229, 232)
_EDGE: Color = (158, 166, 176)
_INK: Color = (36, 41, 49)
_MUTED: Color = (112, 119, 130)
_WHITE: Color = (255, 255, 255)

_VIEW = 1.2  # half the width of the fixed view, in world units
_NAMED_FROM = 120  # pixels; smaller pictures bear no text
_ORDER = {"forest": 0, "obstacle": 1, "deposit": 2, "landmark": 3, "food": 4, "agent": 5, "goal": 6}


@dataclass(frozen=True)
class Disc:
    """One round thing of a world.

    x, y, radius: world units; color: red, green, blue in 0..255; label: the name that is written beside it; kind: how it
    is drawn, one of agent, landmark, goal, obstacle, forest, food, deposit (others are drawn like landmarks); heading: a
    direction or velocity, drawn as a tick, None without.
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
    """What an agent says: `speaker` is the label of its disc, or a name that is not in the picture."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Scene:
    """All that a picture shows. links: pairs of places in `discs` that a line joins; score: numbers by name."""

    title: str
    discs: tuple[Disc, ...]
    messages: tuple[Message, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    score: dict[str, float] = field(default_factory=dict)


def draw(scene: Scene, size: int = 480, dynamic: bool = True) -> np.ndarray:
    """The picture of a scene: uint8 [size, size, 3].

    dynamic: the camera zooms out until it holds everything; otherwise it shows [-1.2, 1.2]^2, and an arrow at the edge
    points to what is outside. Discs at places that are not finite are left out. Pictures under 120 pixels bear no text.
    """
    named = size >= _NAMED_FROM
    header = _header(scene, size) if named else None
    top = header.height if header else 0
    shown = [disc for disc in scene.discs if math.isfinite(disc.x) and math.isfinite(disc.y) and disc.radius >= 0]
    view = _View.around(shown, size, top, dynamic)
    spots = _spots(shown, view)
    words = _words(scene, spots, view) if named else _Words([], [])
    image = _shapes(scene, spots, words.bubbles, view)
    for text, x, y in words.texts:
        image.paste(text, (round(x), round(y)), text)
    if header:
        header.write(image)
    return np.array(image)


# ------------------------------------------------------------------------------------------------------------- camera


@dataclass(frozen=True)
class _View:
    """Where the world is on the picture: `scale` pixels a world unit, the origin at (cx, cy), from row `top` down."""

    size: int
    top: int
    half: float

    @classmethod
    def around(cls, discs: Sequence[Disc], size: int, top: int, dynamic: bool) -> _View:
        half = _VIEW
        if dynamic:
            # The bottom fifth of a percent keeps the outermost rim off the border.
            half = max([half, *(1.06 * (max(abs(disc.x), abs(disc.y)) + disc.radius) for disc in discs)])
        return cls(size, top, min(half, 1e9))

    @property
    def scale(self) -> float:
        return (self.size - self.top) / (2 * self.half)

    @property
    def cx(self) -> float:
        return self.size / 2

    @property
    def cy(self) -> float:
        return (self.size + self.top) / 2

    def place(self, x: float, y: float) -> tuple[float, float]:
        return self.cx + x * self.scale, self.cy - y * self.scale

    @property
    def oversampling(self) -> int:
        return 4 if self.size <= 256 else 3 if self.size <= 640 else 2


@dataclass(frozen=True)
class _Spot:
    """A disc on the picture: its place and radius in pixels; `away`: the direction to it if it is out of view."""

    disc: Disc
    x: float
    y: float
    radius: float
    away: tuple[float, float] | None

    @property
    def box(self) -> Box:
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius


def _spots(discs: Sequence[Disc], view: _View) -> list[_Spot]:
    """Discs in pixels, in their order. Those out of view stand at the edge."""
    least = max(2.0, 0.009 * view.size)  # stays visible when the camera is far away
    margin = 0.035 * view.size
    spots = []
    for disc in discs:
        x, y = view.place(disc.x, disc.y)
        radius = max(disc.radius * view.scale, least)
        inside = -radius < x < view.size + radius and view.top - radius < y < view.size + radius
        if inside:
            spots.append(_Spot(disc, x, y, radius, None))
            continue
        at_x = min(max(x, margin), view.size - margin)
        at_y = min(max(y, view.top + margin), view.size - margin)
        far = math.hypot(x - at_x, y - at_y) or 1.0
        spots.append(_Spot(disc, at_x, at_y, 0.022 * view.size, ((x - at_x) / far, (y - at_y) / far)))
    return spots


# ------------------------------------------------------------------------------------------------------------- shapes


class _Brush:
    """Draws in picture pixels on a canvas that is `k` times as large; colours may have an opacity as fourth number."""

    def __init__(self, view: _View):
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


def _shapes(scene: Scene, spots: list[_Spot], bubbles: list[_Bubble], view: _View) -> Image.Image:
    brush = _Brush(view)
    _ground(brush, view)
    thin = max(0.8, view.size / 480)
    # `links` counts in scene.discs, of which unplaceable ones have no spot.
    by_disc = {id(spot.disc): spot for spot in spots}
    for a, b in scene.links:
        ends = [by_disc.get(id(scene.discs[i])) for i in (a, b)]
        if ends[0] and ends[1]:
            brush.line([(ends[0].x, ends[0].y), (ends[1].x, ends[1].y)], (*_MUTED, 120), 1.6 * thin)
    drawn: list[_Spot] = []
    for spot in sorted(spots, key=lambda s: (s.away is not None, -s.radius, _ORDER.get(s.disc.kind, 3))):
        if spot.away is not None:
            _arrow(brush, spot, thin)
            continue
        # A disc that hides another of its size is drawn smaller, so that both are seen.
        hidden = sum(_covers(spot, other) for other in drawn)
        drawn.append(spot)
        _disc(brush, spot, spot.radius * 0.7**hidden, thin)
    for bubble in bubbles:
        bubble.draw(brush, thin)
    return brush.done()


def _covers(spot: _Spot, other: _Spot) -> bool:
    near = math.hypot(spot.x - other.x, spot.y - other.y) < 0.3 * other.radius
    return near and spot.radius > 0.7 * other.radius and spot.disc.kind != "goal"


def _ground(brush: _Brush, view: _View) -> None:
    """Grid lines at round distances, and the outline of [-1, 1]^2."""
    thin = max(0.8, view.size / 480)
    x0, y0 = view.place(-1, 1)
    x1, y1 = view.place(1, -1)
    brush.box((x0, y0, x1, y1), _PAPER)
    spacing = _round_up(view.half / 5)
    reach = view.half * view.size / (view.size - view.top)
    for i in range(-int(reach / spacing), int(reach / spacing) + 1):
        x, y = view.place(i * spacing, i * spacing)
        brush.line([(x, view.top), (x, view.size)], _GRID, thin)
        if y >= view.top:
            brush.line([(0, y), (view.size, y)], _GRID, thin)
    brush.box((x0, y0, x1, y1), None, _EDGE, 1.5 * thin, corner=2 * thin)


def _round_up(x: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is at least x."""
    power = 10.0 ** math.floor(math.log10(x))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= x * 0.999)


def _mix(color: Color, other: Color, share: float) -> Color:
    r, g, b = (round(c + (o - c) * share) for c, o in zip(color, other, strict=True))
    return r, g, b


def _disc(brush: _Brush, spot: _Spot, r: float, thin: float) -> None:
    x, y, color, kind = spot.x, spot.y, spot.disc.color, spot.disc.kind
    dark = _mix(color, _INK, 0.45)
    if kind == "goal":
        _target(brush, x, y, r, color, thin)
    elif kind == "forest":
        brush.disc(x, y, r, (*color, 70), (*dark, 150), 1.5 * thin)
    elif kind == "agent":
        brush.disc(x, y, r + 1.2 * thin, (*_WHITE, 235))
        brush.disc(x, y, r, (*color, 225), dark, max(1.1 * thin, 0.07 * r))
    elif kind == "obstacle":
        brush.disc(x, y, r, (*color, 255), dark, 2 * thin)
    else:
        brush.disc(x, y, r + 1.0 * thin, (*_WHITE, 235))
        brush.disc(x, y, r, _mix(color, _WHITE, 0.45), color, max(1.4 * thin, 0.16 * r))
    if spot.disc.heading is not None:
        _tick(brush, spot, r, thin)


def _target(brush: _Brush, x: float, y: float, r: float, color: Color, thin: float) -> None:
    """A ring with a cross through it."""
    width, reach = max(1.8 * thin, 0.14 * r), 1.45 * r
    for spread, tone in ((1.2 * thin, _WHITE), (0.0, color)):
        brush.disc(x, y, r + spread, None, (*tone, 255), width + 2 * spread)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            ends = [(x + dx * 0.45 * r, y + dy * 0.45 * r), (x + dx * reach, y + dy * reach)]
            brush.line(ends, (*tone, 255), width + 2 * spread)
        brush.disc(x, y, 0.16 * r + spread, (*tone, 255))


def _tick(brush: _Brush, spot: _Spot, r: float, thin: float) -> None:
    dx, dy = spot.disc.heading or (0.0, 0.0)
    speed = math.hypot(dx, dy)
    if not (math.isfinite(speed) and speed > 1e-6):
        return
    dx, dy = dx / speed, -dy / speed
    tip, base = r + max(5 * thin, 0.35 * r), r + 1.5 * thin
    wide = max(3 * thin, 0.28 * r)
    points = [
        (spot.x + dx * tip, spot.y + dy * tip),
        (spot.x + dx * base - dy * wide, spot.y + dy * base + dx * wide),
        (spot.x + dx * base + dy * wide, spot.y + dy * base - dx * wide),
    ]
    brush.polygon(points, _mix(spot.disc.color, _INK, 0.45), _WHITE, 0.6 * thin)


def _arrow(brush: _Brush, spot: _Spot, thin: float) -> None:
    dx, dy = spot.away or (1.0, 0.0)
    r, x, y = spot.radius, spot.x, spot.y
    points = [
        (x + dx * r, y + dy * r),
        (x - dx * 0.7 * r - dy * 0.8 * r, y - dy * 0.7 * r + dx * 0.8 * r),
        (x - dx * 0.3 * r, y - dy * 0.3 * r),
        (x - dx * 0.7 * r + dy * 0.8 * r, y - dy * 0.7 * r - dx * 0.8 * r),
    ]
    brush.polygon(points, spot.disc.color, _mix(spot.disc.color, _INK, 0.45), 1.2 * thin)


# -------------------------------------------------------------------------------------------------------------- words


@lru_cache(maxsize=64)
def _font(pixels: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(pixels)


@lru_cache(maxsize=4096)
def _text(text: str, pixels: int, color: Color, halo: Color | None = None) -> Image.Image:
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
class _Bubble:
    """A speech bubble: its box, and the tip of its tail (None without a speaker in the picture)."""

    box: Box
    tail: tuple[float, float] | None
    color: Color

    def draw(self, brush: _Brush, thin: float) -> None:
        x0, y0, x1, y1 = self.box
        rim = _mix(self.color, _INK, 0.25)
        corner = 0.3 * (y1 - y0)
        brush.box(self.box, _WHITE, rim, 1.3 * thin, corner)
        if self.tail is None:
            return
        tx, ty = self.tail
        root_y = y1 - 1.3 * thin if ty > y1 else y0 + 1.3 * thin
        root_x = min(max(tx, x0 + 1.6 * corner), x1 - 1.6 * corner)
        half = 0.6 * corner
        brush.polygon([(root_x - half, root_y), (root_x + half, root_y), (tx, ty)], _WHITE)
        for side in (-half, half):
            brush.line([(root_x + side, root_y), (tx, ty)], rim, 1.3 * thin)


@dataclass(frozen=True)
class _Words:
    """Where what is written stands: bubbles, and texts with the place of their upper left corner."""

    bubbles: list[_Bubble]
    texts: list[tuple[Image.Image, float, float]]


def _words(scene: Scene, spots: list[_Spot], view: _View) -> _Words:
    words, taken = _Words([], []), [spot.box for spot in spots]
    pixels = max(9, round(view.size / 38))
    _speech(scene, spots, view, words, taken, pixels)
    # Agents choose first; who is last may find no room.
    for spot in sorted(spots, key=lambda s: (s.disc.kind != "agent", s.radius)):
        if not spot.disc.label:
            continue
        text = _text(spot.disc.label, pixels, _INK, _WHITE)
        place, cost = _best(text.size, spot, taken, view, 0.1 * pixels)
        if cost < 0.6 * text.width * text.height:
            taken.append((place[0], place[1], place[0] + text.width, place[1] + text.height))
            words.texts.append((text, *place))
    return words


def _speech(scene: Scene, spots: list[_Spot], view: _View, words: _Words, taken: list[Box], pixels: int) -> None:
    speakers = {spot.disc.label: spot for spot in reversed(spots) if spot.disc.label}
    pad, foot = 0.45 * pixels, float(view.size)
    for message in scene.messages:
        spot = speakers.get(message.speaker)
        said = message.text if spot else f"{message.speaker}: {message.text}"
        text = _text(said, pixels, _INK)
        width, height = text.width + 2 * pad, text.height + 1.1 * pad
        if spot:
            (x, y), _ = _best((width, height), spot, taken, view, 0.9 * pixels, _ABOVE)
            up = y + height / 2 < spot.y
            tail = (spot.x, spot.y - 0.8 * spot.radius if up else spot.y + 0.8 * spot.radius)
            color = spot.disc.color
        else:
            foot -= height + pad
            x, y, tail, color = pad, foot, None, _MUTED
        taken.append((x, y, x + width, y + height))
        words.bubbles.append(_Bubble(taken[-1], tail, color))
        words.texts.append((text, x + pad, y + 0.55 * pad))


# Where a text may stand about a disc: sideways and downwards, in halves of both sizes; first ones are preferred.
_AROUND = ((0, 1), (0, -1), (1, 0), (-1, 0), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8), (0, 0))
_ABOVE = ((0, -1), (0.8, -1), (-0.8, -1), (0, 1), (0.8, 1), (-0.8, 1), (0, -1.8), (0, 1.8))


def _best(
    size: tuple[float, float], spot: _Spot, taken: list[Box], view: _View, gap: float, around: tuple = _AROUND
) -> tuple[tuple[float, float], float]:
    """The place about `spot` for a box of `size` that covers least of what is taken, and its cost in square pixels."""
    width, height = size
    reach_x, reach_y = spot.radius + gap + width / 2, spot.radius + gap + height / 2
    centres = [(spot.x + dx * reach_x, spot.y + dy * reach_y) for dx, dy in around]
    boxes = np.array([(x - width / 2, y - height / 2, x + width / 2, y + height / 2) for x, y in centres])
    others = np.array(taken)
    across = np.minimum(boxes[:, None, 2], others[:, 2]) - np.maximum(boxes[:, None, 0], others[:, 0])
    down = np.minimum(boxes[:, None, 3], others[:, 3]) - np.maximum(boxes[:, None, 1], others[:, 1])
    cost = (across.clip(0) * down.clip(0)).sum(1)
    over_x = (-boxes[:, 0]).clip(0) + (boxes[:, 2] - view.size).clip(0)
    over_y = (view.top - boxes[:, 1]).clip(0) + (boxes[:, 3] - view.size).clip(0)
    cost += 3 * (over_x * height + over_y * width) + 0.02 * width * height * np.arange(len(around))
    i = int(cost.argmin())
    return (float(boxes[i, 0]), float(boxes[i, 1])), float(cost[i])


# ------------------------------------------------------------------------------------------------------------- header


@dataclass(frozen=True)
class _Header:
    """The strip above the world: texts with their places, `height` pixels of them."""

    height: int
    width: int
    texts: list[tuple[Image.Image, float, float]]

    def write(self, image: Image.Image) -> None:
        image.paste(_WHITE, (0, 0, self.width, self.height))
        image.paste(_GRID, (0, self.height - max(1, self.width // 480), self.width, self.height))
        for text, x, y in self.texts:
            image.paste(text, (round(x), round(y)), text)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.2f}" if abs(value) < 1e5 else f"{value:.2g}"


def _header(scene: Scene, size: int) -> _Header:
    """The title on the left, the score in cells on the right; cells that do not fit go to further lines.

    Heights and cells depend on names alone, so that the frames of a video keep their layout while numbers change.
    """
    large, small = max(10, round(size / 30)), max(8, round(size / 44))
    pad = max(4, round(size / 60))
    line = round(1.15 * large + 1.25 * small)
    title = _text(scene.title, round(1.1 * large), _INK)
    widest = _text("-888.88", large, _INK).width
    names = [_text(name, small, _MUTED) for name in scene.score]
    cells = [max(name.width, widest) + pad for name in names]
    lines: list[list[int]] = [[]]
    room = size - 2 * pad - title.width - pad
    for i, cell in enumerate(cells):
        if cell > room and (lines[-1] or len(lines) == 1):
            lines.append([])
            room = size - 2 * pad
        lines[-1].append(i)
        room -= cell
    values = [_text(_number(value), large, _INK) for value in scene.score.values()]
    texts: list[tuple[Image.Image, float, float]] = [(title, pad, pad + (line - title.height) / 2)]
    for at, members in enumerate(lines):
        x, y = size - pad - sum(cells[i] for i in members), pad + at * (line + pad)
        for i in members:
            right = x + cells[i]
            texts.append((names[i], right - names[i].width, y))
            texts.append((values[i], right - values[i].width, y + 1.25 * small))
            x = right
    return _Header(len(lines) * (line + pad) + pad, size, texts)
