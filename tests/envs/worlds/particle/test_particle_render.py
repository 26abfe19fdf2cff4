"""Pictures of particle worlds: sizes, positions, colors, labels, and objects out of view."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.core.types import Action
from coterie.envs.make import make
from coterie.envs.worlds.drawing import PALETTE
from coterie.envs.worlds.particle.render import Disc, Message, Scene, draw_scene

BLUE, RED, GREEN = PALETTE["blue"], PALETTE["red"], PALETTE["green"]


def pixels_like(picture: np.ndarray, color: tuple[int, int, int], within: int = 40) -> np.ndarray:
    """Returns rows and columns of the pixels close to `color`: [count, 2]."""
    return np.argwhere((np.abs(picture.astype(int) - color) <= within).all(-1))


def test_a_disc_is_drawn_at_its_world_position():
    picture = draw_scene(Scene("", (Disc(0.5, 0.5, 0.1, BLUE),)), 100)
    center = pixels_like(picture, BLUE).mean(0)
    # 100 pixels show [-1.2, 1.2]: column 50 + 0.5 * 100 / 2.4, rows count downward.
    assert center == pytest.approx([50 - 20.8, 50 + 20.8], abs=1)


def test_a_disc_has_the_area_of_its_radius():
    picture = draw_scene(Scene("", (Disc(0, 0, 0.6, BLUE, kind="obstacle"),)), 100)
    area = len(pixels_like(picture, BLUE, 60))
    assert area == pytest.approx(np.pi * 25**2, rel=0.08)


def test_the_camera_zooms_out_to_fit_all_discs():
    distant = Scene("", (Disc(0, 0, 0.1, BLUE), Disc(5, -4, 0.1, RED)))
    picture = draw_scene(distant, 100, zoom_to_fit=True)
    reds = pixels_like(picture, RED)
    assert len(reds) > 0
    assert reds.max() < 100 - 1
    fixed_view = pixels_like(draw_scene(distant, 100, zoom_to_fit=False), BLUE)
    assert len(pixels_like(picture, BLUE)) < len(fixed_view)


def test_the_camera_is_fixed_during_an_episode():
    """All agents of simple_tag walk out of view to the top right. The edge of the ground stays where it is."""
    env = make("particle/simple_tag", num_envs=1)
    env.reset(0)
    pictures = []
    for _ in range(20):
        pictures.append(env.render(size=200))
        actions = {role.name: Action(torch.full((1, role.n, 1), 1)) for role in env.spec.roles}
        env.step(actions)
    edges = {tuple(np.flatnonzero(np.diff(picture[195, :, 0].astype(int)))) for picture in pictures}
    assert len(edges) == 1


def test_the_fixed_view_shows_an_arrow_to_a_disc_outside():
    picture = draw_scene(Scene("", (Disc(9, 0, 0.05, RED),)), 200, zoom_to_fit=False)
    reds = pixels_like(picture, RED)
    assert len(reds) > 10
    assert reds[:, 1].min() > 180


def test_every_kind_is_drawn_differently():
    kinds = ("agent", "landmark", "goal", "obstacle", "forest", "food", "deposit")
    pictures = [draw_scene(Scene("", (Disc(0, 0, 0.2, GREEN, kind=kind),)), 100) for kind in kinds]
    for i, one in enumerate(pictures):
        for other in pictures[:i]:
            assert (one != other).any()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("label", {"discs": (Disc(0, 0, 0.05, BLUE, label="walker"),)}),
        ("heading", {"discs": (Disc(0, 0, 0.05, BLUE, heading=(0.0, 1.0)),)}),
        ("message of a visible speaker", {"messages": (Message("x", "left"),)}),
        ("message of a speaker out of the picture", {"messages": (Message("coach", "left"),)}),
        ("score", {"score": {"step": 3.0}}),
        ("title", {"title": "simple"}),
        ("link", {"discs": (Disc(0, 0, 0.05, BLUE), Disc(0.5, 0, 0.05, BLUE)), "links": ((0, 1),)}),
    ],
)
def test_every_element_of_a_scene_changes_the_picture(name: str, change: dict):
    base = {"title": "", "discs": (Disc(0, 0, 0.05, BLUE, label="x"),)}
    before = base | ({"discs": change["discs"]} if name == "link" else {})
    assert (draw_scene(Scene(**before)) != draw_scene(Scene(**base | change))).any(), name


def test_discs_at_non_finite_positions_are_left_out():
    invalid = Disc(float("nan"), 0, 0.1, RED)
    scene = Scene("", (invalid, Disc(float("inf"), 0, 0.1, RED), Disc(0, 0, 0.1, BLUE)), links=((0, 2),))
    picture = draw_scene(scene, 100)
    assert len(pixels_like(picture, RED)) == 0
    assert len(pixels_like(picture, BLUE)) > 10


def test_extreme_positions_and_numbers_can_be_drawn():
    scene = Scene("t" * 200, (Disc(1e30, -1e-30, 1e-9, RED, label="name" * 50),), score={"a": float("nan"), "b": 1e300})
    for zoom_to_fit in (True, False):
        assert draw_scene(scene, 240, zoom_to_fit=zoom_to_fit).shape == (240, 240, 3)
    assert draw_scene(Scene("", ()), 64).shape == (64, 64, 3)
