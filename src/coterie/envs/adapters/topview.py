"""A picture of a VMAS world from above, drawn here: VMAS's own drawing needs a screen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

_FINE = 3  # drawn so many times larger, and brought down: edges are smooth then


def top_view(env: Any, copy: int, size: int) -> np.ndarray:
    """One copy of VMAS's environment as uint8 [H, W, 3], the longer side `size` pixels.

    Spheres, boxes and lines in their colours, landmarks beneath agents; as wide as the scenario says, and wider where
    somebody is farther out. What a scenario draws besides (paths, the reach of a sensor) is left out.
    """
    width, height = (float(side) for side in env.scenario.viewer_size)
    entities = [*env.world.landmarks, *env.world.agents]
    middle = [float(x) for x in env.scenario.render_origin]
    zoom = float(env.scenario.viewer_zoom)
    reach = zoom * _farthest(env.world.agents, copy, middle, zoom)
    across, up = (reach * max(1.0, width / height), reach * max(1.0, height / width))
    scale = size * _FINE / (2 * max(across, up))
    shape = [max(1, round(2 * side * scale / _FINE)) for side in (across, up)]
    picture = Image.new("RGB", (shape[0] * _FINE, shape[1] * _FINE), "white")
    draw = ImageDraw.Draw(picture)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return (x - middle[0] + across) * scale, (middle[1] + up - y) * scale

    for entity in entities:
        if bool(entity.is_rendering[copy]):
            _draw(draw, entity, copy, to_pixels, scale)
    return np.asarray(picture.resize((shape[0], shape[1]), Image.Resampling.BOX)).copy()


def _farthest(agents: list[Any], copy: int, middle: list[float], zoom: float) -> float:
    """How many times wider than it is by itself the view has to be to hold all agents."""
    farthest = 1.0
    for agent in agents:
        x, y = agent.state.pos[copy].tolist()
        out = max(abs(x - middle[0]), abs(y - middle[1])) + 2 * agent.shape.circumscribed_radius()
        farthest = max(farthest, out / zoom)
    return farthest


def _draw(draw: ImageDraw.ImageDraw, entity: Any, copy: int, to_pixels: Any, scale: float) -> None:
    x, y = entity.state.pos[copy].tolist()
    colour = tuple(round(255 * min(max(float(part), 0.0), 1.0)) for part in entity.color[:3])
    shape = entity.shape
    if hasattr(shape, "radius"):
        (u, v), r = to_pixels(x, y), shape.radius * scale
        draw.ellipse((u - r, v - r, u + r, v + r), fill=colour)
        return
    turn = float(entity.state.rot[copy])
    along, aside = (math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))
    half = shape.length / 2
    # A line's width is a number of pixels.
    thick = shape.width / 2 if type(shape).__name__ == "Box" else shape.width / 2 * _FINE / scale
    corners = [
        to_pixels(x + a * half * along[0] + b * thick * aside[0], y + a * half * along[1] + b * thick * aside[1])
        for a, b in ((1, 1), (1, -1), (-1, -1), (-1, 1))
    ]
    draw.polygon(corners, fill=colour)
