"""Pictures of particle worlds: sizes, places, colours, and what is said of things out of view."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.envs.particle.render import PALETTE, Disc, Message, Scene, draw

BLUE, RED, GREEN = PALETTE["blue"], PALETTE["red"], PALETTE["green"]


def pixels_like(picture: np.ndarray, color: tuple[int, int, int], within: int = 40) -> np.ndarray:
    """Rows and columns of the pixels near `color`: [count, 2]."""
    return np.argwhere((np.abs(picture.astype(int) - color) <= within).all(-1))


def crowd(count: int) -> Scene:
    places = np.random.default_rng(0).uniform(-1, 1, (count, 2))
    colors = list(PALETTE.values())
    discs = tuple(
        Disc(float(x), float(y), 0.05, colors[i % len(colors)], f"agent_{i}") for i, (x, y) in enumerate(places)
    )
    return Scene("crowd", discs, (Message("agent_0", "left"),), ((0, 1),), {"step": 12, "return": -34.31})


@pytest.mark.parametrize("size", [64, 119, 120, 240, 333, 480, 1000, 2000])
def test_a_picture_is_a_square_of_bytes_at_any_size(size: int):
    picture = draw(crowd(8), size)
    assert picture.shape == (size, size, 3)
    assert picture.dtype == np.uint8
    assert picture.flags["C_CONTIGUOUS"]
    assert picture.flags["WRITEABLE"]


def test_the_same_scene_gives_the_same_picture():
    assert (draw(crowd(20)) == draw(crowd(20))).all()


def test_a_disc_stands_where_the_world_says():
    picture = draw(Scene("", (Disc(0.5, 0.5, 0.1, BLUE),)), 100)
    centre = pixels_like(picture, BLUE).mean(0)
    # 100 pixels show [-1.2, 1.2]: column 50 + 0.5 * 100 / 2.4, rows count downwards.
    assert centre == pytest.approx([50 - 20.8, 50 + 20.8], abs=1)


def test_a_disc_covers_the_area_of_its_radius():
    picture = draw(Scene("", (Disc(0, 0, 0.6, BLUE, kind="obstacle"),)), 100)
    area = len(pixels_like(picture, BLUE, 60))
    assert area == pytest.approx(np.pi * 25**2, rel=0.08)


def test_edges_are_smoothed():
    picture = draw(Scene("", (Disc(0, 0, 0.6, (0, 0, 0), kind="obstacle"),)), 100)
    assert len(np.unique(picture[50, :, 0])) > 4


def test_the_camera_zooms_out_until_it_holds_everything():
    far = Scene("", (Disc(0, 0, 0.1, BLUE), Disc(5, -4, 0.1, RED)))
    picture = draw(far, 100, dynamic=True)
    reds = pixels_like(picture, RED)
    assert len(reds) > 0
    assert reds.max() < 100 - 1
    near = pixels_like(draw(far, 100, dynamic=False), BLUE)
    assert len(pixels_like(picture, BLUE)) < len(near)


def test_the_camera_does_not_move_while_everything_is_near():
    one, other = (draw(Scene("", (Disc(x, 0, 0.1, BLUE),)), 100) for x in (0.0, 0.9))
    assert (one[5:20] == other[5:20]).all()


def test_the_fixed_view_points_at_what_is_outside():
    picture = draw(Scene("", (Disc(9, 0, 0.05, RED),)), 200, dynamic=False)
    reds = pixels_like(picture, RED)
    assert len(reds) > 10
    assert reds[:, 1].min() > 180


def test_one_of_two_discs_at_the_same_place_does_not_hide_the_other():
    picture = draw(Scene("", (Disc(0, 0, 0.2, BLUE), Disc(0, 0, 0.2, RED))), 200)
    assert len(pixels_like(picture, BLUE)) > 50
    assert len(pixels_like(picture, RED)) > 50


def test_a_large_disc_does_not_hide_a_small_one():
    picture = draw(Scene("", (Disc(0, 0, 0.05, RED, kind="obstacle"), Disc(0, 0, 0.2, BLUE))), 200)
    assert len(pixels_like(picture, RED)) > 10


def test_every_kind_is_drawn_differently():
    kinds = ("agent", "landmark", "goal", "obstacle", "forest", "food", "deposit")
    pictures = [draw(Scene("", (Disc(0, 0, 0.2, GREEN, kind=kind),)), 100) for kind in kinds]
    for i, one in enumerate(pictures):
        for other in pictures[:i]:
            assert (one != other).any()


def test_an_unknown_kind_is_drawn_like_a_landmark():
    one, other = (draw(Scene("", (Disc(0, 0, 0.2, GREEN, kind=kind),)), 100) for kind in ("landmark", "tower"))
    assert (one == other).all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("label", {"discs": (Disc(0, 0, 0.05, BLUE, "walker"),)}),
        ("heading", {"discs": (Disc(0, 0, 0.05, BLUE, heading=(0.0, 1.0)),)}),
        ("message of a speaker in the picture", {"messages": (Message("x", "left"),)}),
        ("message of a speaker elsewhere", {"messages": (Message("coach", "left"),)}),
        ("score", {"score": {"step": 3.0}}),
        ("title", {"title": "simple"}),
        ("link", {"discs": (Disc(0, 0, 0.05, BLUE), Disc(0.5, 0, 0.05, BLUE)), "links": ((0, 1),)}),
    ],
)
def test_what_a_scene_says_is_seen(name: str, change: dict):
    base = {"title": "", "discs": (Disc(0, 0, 0.05, BLUE, "x"),)}
    before = base | ({"discs": change["discs"]} if name == "link" else {})
    assert (draw(Scene(**before)) != draw(Scene(**base | change))).any(), name


def test_a_still_disc_has_no_nose():
    still, none = (draw(Scene("", (Disc(0, 0, 0.1, BLUE, heading=h),)), 100) for h in ((0.0, 0.0), None))
    assert (still == none).all()


def test_the_layout_stays_while_the_score_changes():
    few, many = (draw(Scene("x", (), score={"step": step, "return": r})) for step, r in ((1, 0.0), (25, -231.55)))
    rows = np.argwhere((few != many).any((1, 2)))
    assert 0 < rows.max() < 48


def test_places_that_are_not_finite_are_left_out():
    odd = Disc(float("nan"), 0, 0.1, RED)
    scene = Scene("", (odd, Disc(float("inf"), 0, 0.1, RED), Disc(0, 0, 0.1, BLUE)), links=((0, 2),))
    picture = draw(scene, 100)
    assert len(pixels_like(picture, RED)) == 0
    assert len(pixels_like(picture, BLUE)) > 10


def test_extreme_places_and_numbers_are_drawn():
    scene = Scene("t" * 200, (Disc(1e30, -1e-30, 1e-9, RED, "far" * 50),), score={"a": float("nan"), "b": 1e300})
    for dynamic in (True, False):
        assert draw(scene, 240, dynamic).shape == (240, 240, 3)
    assert draw(Scene("", ()), 64).shape == (64, 64, 3)


def test_many_scores_on_a_small_picture_leave_room_for_the_world():
    scene = Scene("collect_treasure", (Disc(0, 0, 0.1, BLUE),), score={f"agent_{i}": -1.5 for i in range(6)})
    assert len(pixels_like(draw(scene, 240), BLUE)) > 10


def test_the_palette_is_told_apart_by_lightness_or_hue():
    colors = list(PALETTE.values())
    for i, one in enumerate(colors):
        for other in colors[:i]:
            assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 60
