"""Placement of names and speech bubbles around the discs of a scene."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from coterie.envs.worlds.drawing.colors import INK, MUTED, WHITE, Color, mix
from coterie.envs.worlds.drawing.scene import Camera, PlacedDisc, Scene
from coterie.envs.worlds.drawing.text import Box, PlacedText, render_text

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
