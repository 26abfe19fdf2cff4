"""Rendering of battles: the field, the wall, health and shields, and attacks and healing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from coterie.envs.worlds.drawing import INK, MIN_SIZE_WITH_TEXT, PALETTE, WHITE, Color, Pen, layout_header, mix
from coterie.envs.worlds.skirmish.combat import SIZE
from coterie.envs.worlds.skirmish.units import UNITS

__all__ = ["Fighter", "Scene", "draw"]

_GROUND: Color = (243, 241, 233)
_LINES: Color = (231, 228, 217)
_STONE: Color = (104, 108, 118)
_SIDES: tuple[Color, Color] = (PALETTE["blue"], PALETTE["red"])
_LETTERED = 9  # minimum disc radius in pixels for a letter
_ROOM = 3.0  # margin of the field around the fighters
_LEAST = 7.0  # half the side of the smallest visible area


@dataclass(frozen=True)
class Fighter:
    """A unit.

    Attributes:
        side: 0 for allies, 1 for enemies.
        health: Fraction of full health.
        shield: Fraction of the full shield, None without a shield.
        target: Index in `Scene.fighters` of the unit attacked or healed in the last step.
    """

    kind: str
    side: int
    x: float
    y: float
    radius: float
    health: float
    shield: float | None = None
    target: int | None = None


@dataclass(frozen=True)
class Scene:
    """Contents of an image; wall: position and half-width of its gap."""

    title: str
    fighters: tuple[Fighter, ...]
    wall: tuple[float, float] | None = None
    score: dict[str, float] = field(default_factory=dict)


def draw(scene: Scene, size: int = 480) -> np.ndarray:
    """Draws a battle as uint8 [size, size, 3] with the camera on the living units. Images under 120 pixels have no
    header.
    """
    header = layout_header(scene.title, scene.score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    k = 4 if size <= 256 else 3 if size <= 640 else 2
    canvas = Image.new("RGB", (size * k, size * k), _GROUND)
    alive = [fighter for fighter in scene.fighters if fighter.health > 0]
    middle, half = _camera(alive)
    scale = min(size, size - top) * k / (2 * half)
    cx, cy = size * k / 2, (size + top) * k / 2
    pen = Pen(canvas, scale)

    def at(x: float, y: float) -> Pen:
        return pen.at(cx + (x - middle[0]) * scale, cy - (y - middle[1]) * scale)

    _field(at(0, 0), scene.wall)
    for fighter in scene.fighters:
        if fighter.target is not None and fighter.health > 0:
            _attack(at(0, 0), fighter, scene.fighters[fighter.target])
    for fighter in sorted(alive, key=lambda f: UNITS[f.kind].air):
        _fighter(at(fighter.x, fighter.y), fighter, lettered=fighter.radius * scale / k >= _LETTERED)
    for fighter in alive:
        _bars(at(fighter.x, fighter.y + fighter.radius), fighter)
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


def _camera(alive: list[Fighter]) -> tuple[tuple[float, float], float]:
    """Center of the visible area and half its side."""
    xs, ys = [f.x for f in alive] or [SIZE / 2], [f.y for f in alive] or [SIZE / 2]
    half = max(_LEAST, max(max(xs) - min(xs), max(ys) - min(ys)) / 2 + _ROOM)
    return ((max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2), half


def _field(pen: Pen, wall: tuple[float, float] | None) -> None:
    for i in range(0, int(SIZE) + 1, 2):
        pen.line([(i, 0), (i, SIZE)], _LINES, 0.05)
        pen.line([(0, i), (SIZE, i)], _LINES, 0.05)
    pen.line([(0, 0), (SIZE, 0), (SIZE, SIZE), (0, SIZE), (0, 0)], _STONE, 0.2)
    if wall is not None:
        x, gap = wall
        for low, high in ((0.0, SIZE / 2 - gap), (SIZE / 2 + gap, SIZE)):
            pen.box(x - 0.2, low, x + 0.2, high, fill=_STONE, rim=mix(_STONE, INK, 0.5), corner=0.15)


def _attack(pen: Pen, fighter: Fighter, target: Fighter) -> None:
    if target.health <= 0:
        return
    heals = UNITS[fighter.kind].heals > 0
    color = PALETTE["green"] if heals else mix(_SIDES[fighter.side], PALETTE["yellow"], 0.5)
    pen.line([(fighter.x, fighter.y), (target.x, target.y)], color, 0.16 if heals else 0.11)
    away = math.hypot(target.x - fighter.x, target.y - fighter.y) or 1.0
    share = 1 - target.radius / away
    pen.disc(fighter.x + (target.x - fighter.x) * share, fighter.y + (target.y - fighter.y) * share, 0.2, color)


def _fighter(pen: Pen, fighter: Fighter, lettered: bool) -> None:
    unit, r = UNITS[fighter.kind], fighter.radius
    color = _SIDES[fighter.side]
    dark = mix(color, INK, 0.55)
    pen.disc(0.06, -0.1 if not unit.air else -0.3, r, (*INK, 45))
    if unit.range < 1:  # blades for melee units
        for turn in range(8):
            a = math.tau * (turn + 0.5) / 8
            tip = (1.22 * r * math.cos(a), 1.22 * r * math.sin(a))
            base = [(0.9 * r * math.cos(a + d), 0.9 * r * math.sin(a + d)) for d in (-0.22, 0.22)]
            pen.polygon([tip, *base], dark)
    pen.disc(0, 0, r, mix(color, WHITE, 0.35) if unit.heals else color, rim=dark, width=0.07)
    if unit.shield and fighter.shield:
        pen.disc(0, 0, r + 0.1, None, rim=(*PALETTE["sky"], round(60 + 170 * fighter.shield)), width=0.08)
    if lettered:
        pen.text(0, 0, "+" if unit.heals else fighter.kind[0].upper(), height=1.1 * r, color=WHITE)
    elif unit.heals:
        pen.line([(-r / 2, 0), (r / 2, 0)], WHITE, 0.3 * r)
        pen.line([(0, -r / 2), (0, r / 2)], WHITE, 0.3 * r)


def _bars(pen: Pen, fighter: Fighter) -> None:
    """Health bar, with the shield above it."""
    wide = max(0.45, fighter.radius)
    shares = [(fighter.health, PALETTE["green"] if fighter.health > 0.4 else PALETTE["orange"])]
    shares += [] if fighter.shield is None else [(fighter.shield, PALETTE["sky"])]
    for i, (share, color) in enumerate(shares):
        low = 0.16 + 0.2 * i
        pen.box(-wide - 0.03, low - 0.03, wide + 0.03, low + 0.15, fill=INK)
        if share > 0:
            pen.box(-wide, low, -wide + 2 * wide * share, low + 0.12, fill=color)
