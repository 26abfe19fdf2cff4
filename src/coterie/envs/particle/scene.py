"""What a picture of a particle world shows, and the camera that brings it onto the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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

INK: Color = (36, 41, 49)
MUTED: Color = (112, 119, 130)
WHITE: Color = (255, 255, 255)
GRID: Color = (226, 229, 232)

_VIEW = 1.2  # half the width of the fixed view, in world units
CROSS = 1.45  # how far a goal's cross reaches, in radii


def mix(color: Color, other: Color, share: float) -> Color:
    """`color` with a share of `other` in 0..1."""
    r, g, b = (round(c + (o - c) * share) for c, o in zip(color, other, strict=True))
    return r, g, b


@dataclass(frozen=True)
class Disc:
    """One round thing of a world.

    x, y, radius: world units; color: red, green, blue in 0..255; label: the name that is written beside it; kind: how
    it is drawn, one of agent, landmark, goal (a target), obstacle, forest (see-through), food (a diamond), deposit (a
    double ring), others like landmarks; heading: a direction or velocity, drawn as a nose, None without.
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


@dataclass(frozen=True)
class View:
    """Where the world is on the picture: `scale` pixels a world unit, the origin at (cx, cy), from row `top` down."""

    size: int
    top: int
    half: float

    @classmethod
    def around(cls, discs: Sequence[Disc], size: int, top: int, dynamic: bool) -> View:
        half = _VIEW
        if dynamic:
            # A few percent more keep the outermost rim off the border.
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
class Spot:
    """A disc on the picture: its place and radius in pixels; `away`: the direction to it if it is out of view."""

    disc: Disc
    x: float
    y: float
    radius: float
    away: tuple[float, float] | None

    @property
    def box(self) -> Box:
        reach = self.radius * (CROSS if self.disc.kind == "goal" else 1)
        return self.x - reach, self.y - reach, self.x + reach, self.y + reach


def spots_of(discs: Sequence[Disc], view: View) -> list[Spot]:
    """Discs in pixels, in their order. Those out of view stand at the edge."""
    least = max(2.0, 0.009 * view.size)  # stays visible when the camera is far away
    margin = 0.045 * view.size
    spots = []
    for disc in discs:
        x, y = view.place(disc.x, disc.y)
        radius = max(disc.radius * view.scale, least)
        inside = -radius < x < view.size + radius and view.top - radius < y < view.size + radius
        if inside:
            spots.append(Spot(disc, x, y, radius, None))
            continue
        at_x = min(max(x, margin), view.size - margin)
        at_y = min(max(y, view.top + margin), view.size - margin)
        far = math.hypot(x - at_x, y - at_y) or 1.0
        spots.append(Spot(disc, at_x, at_y, 0.03 * view.size, ((x - at_x) / far, (y - at_y) / far)))
    return spots
