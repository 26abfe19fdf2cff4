"""Native observations as arrays, and actions as native ones, with literal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymworlds import NESTED, hybrid, uneven

from coterie.envs.adapters.spaces import Actuator, Observer
from coterie.errors import UserError
from coterie.types import to_bounds


def seen(space: spaces.Space, value: Any) -> Any:
    """What is written of an observation over another one's remains."""
    places = {}
    for sensor in Observer(space).sensors:
        places[sensor.name] = np.full(sensor.space.shape, 99, sensor.space.dtype)
        sensor.write(places[sensor.name], value)
    listed = {name: place.tolist() for name, place in places.items()}
    return listed.get("", listed)


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Box(-1, 1, (2,)), np.zeros(3), r"shape \(3,\), and its space says \(2,\)"),
        (spaces.Box(-9, 9, (3,)), np.array([1.0]), r"shape \(1,\), and its space says \(3,\)"),
        (spaces.Box(-9, 9, (3,)), 1.0, r"shape \(\), and"),
        (spaces.Box(0, 255, (2, 2, 1), np.uint8), np.zeros((2, 2), np.uint8), r"shape \(2, 2\)"),
        (spaces.Box(-9, 9, (2, 2)), np.array([1.0]), "1 numbers, and its space says 4"),
        (spaces.Discrete(4, start=2), 1, "the number 1, and its space says 2 to 5"),
        (spaces.Discrete(4), 4, "the number 4, and its space says 0 to 3"),
    ],
)
def test_what_does_not_fit_its_space_is_one_line_and_never_spread(space: spaces.Space, value: Any, words: str):
    with pytest.raises(UserError, match=words):
        seen(space, value)


def test_observations_of_every_space_have_their_literal_form():
    assert seen(spaces.Discrete(4, start=2), np.int64(3)) == [0, 1, 0, 0]
    assert seen(spaces.MultiDiscrete([2, 3]), np.array([1, 2])) == [0, 1, 0, 0, 1]
    assert seen(spaces.MultiDiscrete([2, 3], start=[1, 5]), np.array([1, 6])) == [1, 0, 0, 1, 0]
    assert seen(spaces.MultiBinary([2, 2]), np.array([[0, 1], [1, 1]], np.int8)) == [0, 1, 1, 1]
    assert seen(spaces.Box(-9, 9, (2, 2)), np.array([[1, 2], [3, 4]])) == [1, 2, 3, 4]
    assert seen(spaces.Box(-9, 9, ()), 5.0) == [5]
    assert seen(spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]), (1, np.array([0.5, -0.5]))) == [
        0,
        1,
        0.5,
        -0.5,
    ]
    assert seen(spaces.Box(0, 255, (1, 2), np.uint8), np.array([[7, 8]], np.uint8)) == [[[7], [8]]]


def test_parts_of_a_dict_are_sensors_and_bear_their_path():
    assert seen(NESTED, {"eye": np.full((6, 5, 3), 9, np.uint8), "arm": {"angle": [0.5, -0.5], "grip": 2}}) == {
        "arm.angle": [0.5, -0.5],
        "arm.grip": [0, 0, 1],
        "eye": np.full((6, 5, 3), 9).tolist(),
    }
    mixed = spaces.Tuple([spaces.Box(0, 255, (1, 1, 1), np.uint8), spaces.Discrete(2)])
    assert seen(mixed, (np.array([[[3]]], np.uint8), 0)) == {"0": [[[3]]], "1": [1, 0]}


def test_numbers_of_actions_are_mapped_to_the_bounds_and_clipped():
    rows = Actuator(uneven())(None, np.float32([[-1.0, -1], [1, 1], [0, 0.5], [-7, 7]]))
    assert [row.tolist() for row in rows] == [[0, -3], [1, 5], [0.5, 3], [0, 5]]
    assert rows[0].dtype == np.float64
    does = spaces.Box(np.float32([-2.1, 0.3]), np.float32([1.7, 0.9]))
    numbers = 3 * torch.rand(500, 2, generator=torch.Generator().manual_seed(0)) - 1.5
    mapped = to_bounds(numbers, Actuator(does).spec).numpy().clip(does.low, does.high)
    np.testing.assert_array_equal(Actuator(does)(None, numbers.numpy()), mapped)


def test_choices_begin_where_their_space_does():
    assert Actuator(spaces.Discrete(3, start=5))(np.array([[0], [2]]), None) == [5, 7]
    picks = Actuator(spaces.MultiDiscrete([2, 4], start=[0, 10]))(np.array([[1, 3]]), None)
    assert [pick.tolist() for pick in picks] == [[1, 13]]
    (one,) = Actuator(hybrid())(np.array([[2, 0, 1]]), np.float32([[-1.0, 0]]))
    assert (one[0], one[1].tolist(), one[2].tolist()) == (3, [0, 5], [0, 1])


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Tuple([spaces.Text(3)])])
def test_spaces_without_a_fixed_shape_are_refused(space: spaces.Space):
    with pytest.raises(TypeError, match="has no fixed shape"):
        Observer(space)
