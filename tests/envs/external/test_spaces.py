"""Conversion of native observations to arrays and of actions to native ones, with literal values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import to_bounds
from coterie.envs.external.spaces import Actuator, Observer
from gymworlds import NESTED, hybrid, uneven


def written(space: spaces.Space, value: Any) -> Any:
    """Arrays of an observation, written over older values."""
    places = {}
    for sensor in Observer(space).sensors:
        places[sensor.name] = np.full(sensor.space.shape, 99, sensor.space.dtype)
        sensor.write(places[sensor.name], value)
    listed = {name: place.tolist() for name, place in places.items()}
    return listed.get("", listed)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Box(-1, 1, (2,)), np.zeros(3), r"shape \(3,\), but its space declares \(2,\)"),
        (spaces.Box(-9, 9, (3,)), np.array([1.0]), r"shape \(1,\), but its space declares \(3,\)"),
        (spaces.Box(-9, 9, (3,)), 1.0, r"shape \(\), but its space declares \(3,\)"),
        (spaces.Box(0, 255, (2, 2, 1), np.uint8), np.zeros((2, 2), np.uint8), r"shape \(2, 2\)"),
        (spaces.Box(-9, 9, (2, 2)), np.array([1.0]), "1 numbers, but its space declares 4"),
        (spaces.Discrete(4, start=2), 1, "the number 1, but its space declares 2 to 5"),
        (spaces.Discrete(4), 4, "the number 4, but its space declares 0 to 3"),
    ],
)
def test_observations_outside_of_their_space_raise_errors_and_are_not_broadcast(
    space: spaces.Space, value: Any, message: str
):
    with pytest.raises(UserError, match=message):
        written(space, value)


def test_observations_of_all_spaces_are_encoded_as_documented():
    assert written(spaces.Discrete(4, start=2), np.int64(3)) == [0, 1, 0, 0]
    assert written(spaces.MultiDiscrete([2, 3]), np.array([1, 2])) == [0, 1, 0, 0, 1]
    assert written(spaces.MultiDiscrete([2, 3], start=[1, 5]), np.array([1, 6])) == [1, 0, 0, 1, 0]
    assert written(spaces.MultiBinary([2, 2]), np.array([[0, 1], [1, 1]], np.int8)) == [0, 1, 1, 1]
    assert written(spaces.Box(-9, 9, (2, 2)), np.array([[1, 2], [3, 4]])) == [1, 2, 3, 4]
    assert written(spaces.Box(-9, 9, ()), 5.0) == [5]
    assert written(spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]), (1, np.array([0.5, -0.5]))) == [
        0,
        1,
        0.5,
        -0.5,
    ]
    assert written(spaces.Box(0, 255, (1, 2), np.uint8), np.array([[7, 8]], np.uint8)) == [[[7], [8]]]


def test_parts_of_a_dict_are_sensors_named_by_their_path():
    assert written(NESTED, {"eye": np.full((6, 5, 3), 9, np.uint8), "arm": {"angle": [0.5, -0.5], "grip": 2}}) == {
        "arm.angle": [0.5, -0.5],
        "arm.grip": [0, 0, 1],
        "eye": np.full((6, 5, 3), 9).tolist(),
    }
    mixed = spaces.Tuple([spaces.Box(0, 255, (1, 1, 1), np.uint8), spaces.Discrete(2)])
    assert written(mixed, (np.array([[[3]]], np.uint8), 0)) == {"0": [[[3]]], "1": [1, 0]}


def test_continuous_actions_are_mapped_to_the_bounds_and_clipped():
    rows = Actuator(uneven())(None, np.float32([[-1.0, -1], [1, 1], [0, 0.5], [-7, 7]]))
    assert [row.tolist() for row in rows] == [[0, -3], [1, 5], [0.5, 3], [0, 5]]
    assert rows[0].dtype == np.float64
    action = spaces.Box(np.float32([-2.1, 0.3]), np.float32([1.7, 0.9]))
    numbers = 3 * torch.rand(500, 2, generator=torch.Generator().manual_seed(0)) - 1.5
    mapped = to_bounds(numbers, Actuator(action).spec).numpy().clip(action.low, action.high)
    np.testing.assert_array_equal(Actuator(action)(None, numbers.numpy()), mapped)


def test_discrete_actions_start_at_the_start_of_their_space():
    assert Actuator(spaces.Discrete(3, start=5))(np.array([[0], [2]]), None) == [5, 7]
    picks = Actuator(spaces.MultiDiscrete([2, 4], start=[0, 10]))(np.array([[1, 3]]), None)
    assert [pick.tolist() for pick in picks] == [[1, 13]]
    (one,) = Actuator(hybrid())(np.array([[2, 0, 1]]), np.float32([[-1.0, 0]]))
    assert (one[0], one[1].tolist(), one[2].tolist()) == (3, [0, 5], [0, 1])


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Tuple([spaces.Text(3)])])
def test_spaces_without_a_fixed_shape_are_refused(space: spaces.Space):
    with pytest.raises(TypeError, match="has no fixed shape"):
        Observer(space)
