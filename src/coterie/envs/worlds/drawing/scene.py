"""Scenes of discs in world coordinates, and the camera that maps them to pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from coterie.envs.worlds.drawing.colors import Color
from coterie.envs.worlds.drawing.text import Box

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
