"""The palette that all pictures share."""

from __future__ import annotations

Color = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

PALETTE: dict[str, Color] = {
    "blue": (0, 114, 178),
    "orange": (230, 159, 0),
    "green": (0, 158, 115),
    "red": (213, 94, 0),
    "sky": (86, 180, 233),
    "pink": (204, 121, 167),
    "yellow": (240, 212, 40),
    "gray": (122, 128, 138),
    "dark": (64, 70, 80),
}
"""Colors that remain distinct under color blindness. Source: Okabe and Ito 2008, with yellow darkened for contrast on
white.
"""

INK: Color = (36, 41, 49)
MUTED: Color = (112, 119, 130)
WHITE: Color = (255, 255, 255)
GRID: Color = (226, 229, 232)
PAPER: Color = (250, 250, 248)


def mix(color: Color, other: Color, share: float) -> Color:
    """Blends `share` (0 to 1) of `other` into `color`."""
    r, g, b = (round(c + (o - c) * share) for c, o in zip(color, other, strict=True))
    return r, g, b
