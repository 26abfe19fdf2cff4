"""Top view of a VMAS world; VMAS's own renderer needs a screen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

_FINE = 3  # supersampling factor


def top_view(env: Any, env_index: int, size: int) -> np.ndarray:
    """Renders one VMAS environment as uint8 [H, W, 3] with the longer side of `size` pixels.

    Draws spheres, boxes and lines in their colors, landmarks below agents. The view is as wide as the scenario's and
    wider if agents are farther out. Additional drawings of scenarios (paths, sensor ranges) are omitted.
    """
    width, height = (float(side) for side in env.scenario.viewer_size)
    entities = [*env.world.landmarks, *env.world.agents]
    center = [float(x) for x in env.scenario.render_origin]
    zoom = float(env.scenario.viewer_zoom)
    reach = zoom * _farthest_distance(env.world.agents, env_index, center, zoom)
    across, up = (reach * max(1.0, width / height), reach * max(1.0, height / width))
    scale = size * _FINE / (2 * max(across, up))
    shape = [max(1, round(2 * side * scale / _FINE)) for side in (across, up)]
    image = Image.new("RGB", (shape[0] * _FINE, shape[1] * _FINE), "white")
    draw = ImageDraw.Draw(image)

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return (x - center[0] + across) * scale, (center[1] + up - y) * scale

    for entity in entities:
        if bool(entity.is_rendering[env_index]):
            _draw(draw, entity, env_index, to_pixels=to_pixels, scale=scale)
    return np.asarray(image.resize((shape[0], shape[1]), Image.Resampling.BOX)).copy()


def _farthest_distance(agents: list[Any], env_index: int, center: list[float], zoom: float) -> float:
    """Zoom factor that makes all agents visible."""
    farthest = 1.0
    for agent in agents:
        x, y = agent.state.pos[env_index].tolist()
        out = max(abs(x - center[0]), abs(y - center[1])) + 2 * agent.shape.circumscribed_radius()
        farthest = max(farthest, out / zoom)
    return farthest


def _draw(draw: ImageDraw.ImageDraw, entity: Any, env_index: int, *, to_pixels: Any, scale: float) -> None:
    x, y = entity.state.pos[env_index].tolist()
    color = tuple(round(255 * min(max(float(part), 0.0), 1.0)) for part in entity.color[:3])
    shape = entity.shape
    if hasattr(shape, "radius"):
        (u, v), r = to_pixels(x, y), shape.radius * scale
        draw.ellipse((u - r, v - r, u + r, v + r), fill=color)
        return
    turn = float(entity.state.rot[env_index])
    along, aside = (math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))
    half = shape.length / 2
    # Line width is in pixels.
    thick = shape.width / 2 if type(shape).__name__ == "Box" else shape.width / 2 * _FINE / scale
    corners = [
        to_pixels(x + a * half * along[0] + b * thick * aside[0], y + a * half * along[1] + b * thick * aside[1])
        for a, b in ((1, 1), (1, -1), (-1, -1), (-1, 1))
    ]
    draw.polygon(corners, fill=color)
