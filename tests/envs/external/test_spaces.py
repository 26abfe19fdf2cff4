"""Conversion of native observations to arrays and of actions to native ones, with literal values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import to_bounds
from coterie.envs.external.batched_spaces import BatchObserver
from coterie.envs.external.spaces import Actuator, Observer
from gymnasium_worlds import NESTED, hybrid, uneven


def written(space: spaces.Space, value: Any) -> Any:
    """Arrays of an observation, written over older values."""
    places = {}
    for sensor in Observer(space).sensors:
        places[sensor.name] = np.full(sensor.space.shape, 99, sensor.space.dtype)
        sensor.write(places[sensor.name], value)
    listed = {name: place.tolist() for name, place in places.items()}
    return listed.get("", listed)


DISCRETE: list[tuple[spaces.Space, list[Any]]] = [
    (spaces.Discrete(3), [3, -1, 1.5, float("nan"), "1", None, [0, 1], np.array([0, 1]), 1 + 0j, 10**30]),
    (spaces.Discrete(3, start=-1), [2, -2]),
    (spaces.MultiDiscrete([3, 2]), [[3, 0], [0, 2], [-1, 0], [0, -1], [0.5, 0], [float("nan"), 0], [0], [0, 0, 0]]),
    (spaces.MultiDiscrete([3, 2]), [["0", "1"], 0, None, np.array([[0, 0], [0, 0]])]),
    (spaces.MultiDiscrete([3, 2], start=[1, 5]), [[0, 5], [4, 5], [1, 7]]),
    (spaces.MultiBinary(2), [[0, 2], [-1, 0], [0.5, 0], [float("nan"), 0], [1], ["1", "0"]]),
    (spaces.MultiBinary([1, 2]), [[[0, 7]]]),
    (spaces.Box(0, 255, (1, 1, 1), np.uint8), [[[[0.5]]], [[[256]]], [[[-1]]], [[["7"]]], [[[float("nan")]]]]),
    (spaces.Box(-1, 1, (2,)), [["0", "1"], [None, 0], [1j, 0], np.array([b"a", b"b"])]),
]
"""Spaces, and values that are not in them."""


@pytest.mark.parametrize("wrap", ["alone", "dict", "tuple", "nested"])
@pytest.mark.parametrize(("space", "values"), DISCRETE, ids=[str(space)[:40] for space, _ in DISCRETE])
def test_a_value_that_is_not_in_its_space_is_refused_in_one_line_that_names_it(
    space: spaces.Space, values: list[Any], wrap: str
):
    other = spaces.Box(-1, 1, (1,))
    wraps: dict[str, tuple[Any, Any, str]] = {
        "alone": (space, lambda value: value, ""),
        "dict": (spaces.Dict({"eye": space, "x": other}), lambda value: {"eye": value, "x": [0.5]}, "'eye'"),
        "tuple": (spaces.Tuple([other, space]), lambda value: ([0.5], value), ""),
        "nested": (spaces.Dict({"a": spaces.Dict({"b": space})}), lambda value: {"a": {"b": value}}, "'a.b'"),
    }
    outer, wrapped, sensor = wraps[wrap]
    for value in values:
        with pytest.raises(UserError, match="the environment returned an observation") as error:
            written(outer, wrapped(value))
        assert sensor in str(error.value)
        assert "\n" not in str(error.value)
        batch = spaces.Dict({"eye": space}) if wrap == "dict" else space
        rows = np.array([value], dtype=None if np.ndim(value) == 0 else object if _ragged(value) else None)
        with pytest.raises(UserError, match="the environment returned an observation"):
            BatchObserver(batch)({"eye": rows} if wrap == "dict" else rows, 1)


def _ragged(value: Any) -> bool:
    return any(isinstance(part, str | bytes | None.__class__) for part in np.ravel(np.array(value, object)))


@pytest.mark.parametrize(
    ("space", "value", "codes"),
    [
        (spaces.Discrete(3), np.array([2]), [0, 0, 1]),
        (spaces.Discrete(3), 2.0, [0, 0, 1]),
        (spaces.Discrete(2), True, [0, 1]),
        (spaces.MultiDiscrete([2, 2]), [1.0, 0.0], [0, 1, 1, 0]),
        (spaces.MultiBinary(2), [True, False], [1, 0]),
    ],
)
def test_whole_numbers_of_other_types_are_read(space: spaces.Space, value: Any, codes: list[int]):
    assert written(space, value) == codes


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_of_every_type_are_encoded(dtype: Any):
    """Unsigned ones were no indices, and sums of small types overflow."""
    spaces_of: list[tuple[spaces.Space, Any]] = [
        (spaces.MultiDiscrete([100, 100], dtype, start=[20, 20]), np.array([119, 20], dtype)),
        (spaces.Discrete(100, start=20), dtype(119)),
    ]
    for space, value in spaces_of:
        expected = np.zeros(200 if isinstance(space, spaces.MultiDiscrete) else 100)
        expected[[99, 100] if isinstance(space, spaces.MultiDiscrete) else [99]] = 1
        assert written(space, value) == expected.tolist()
        batch = BatchObserver(space)(np.stack([value, value]), 2)[""]
        assert batch.tolist() == [expected.tolist()] * 2
        with pytest.raises(UserError, match=r"the value 19( at index 0)?, but its space declares integers 20 to 119"):
            written(space, value - np.array([100, 1] if value.ndim else 100, dtype))


def test_values_of_a_batch_out_of_range_and_of_wrong_shapes_raise_one_line_errors():
    with pytest.raises(UserError, match="the value 3 at index 0, but its space declares integers 0 to 2 there"):
        BatchObserver(spaces.Discrete(3))(np.array([0, 3]), 2)
    with pytest.raises(UserError, match=r"shape \(2,\), but its space declares \(3,\)"):
        BatchObserver(spaces.Box(0, 1, (3,)))(np.zeros((2, 2)), 2)
    with pytest.raises(UserError, match="with 3 environments, but its space declares 2"):
        BatchObserver(spaces.Box(0, 1, (3,)))(np.zeros((3, 3)), 2)


def test_a_missing_part_is_named():
    space = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "c": spaces.Discrete(2)})
    for value in ({"a": {"x": 0}, "c": 0}, {"a": 3, "c": 0}, {"c": 0}, 5):
        with pytest.raises(UserError, match=r"but its space declares the parts \['[abc]'"):
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


def test_sensors_of_any_names_stay_distinct():
    """A key with a dot next to the nested part that it looks like, an empty key, and numbers."""
    one = spaces.Box(-9, 9, (1,))
    space = spaces.Dict({"a.b": one, "a": spaces.Dict({"b": one, "": one}), "": one, "c.d": one, "1": one})
    value = {"a.b": [1], "a": {"b": [2], "": [3]}, "": [4], "c.d": [5], "1": [6]}
    names = {"'a.b'": [1], "a.b": [2], "a.": [3], "''": [4], "c.d": [5], "1": [6]}
    assert written(space, value) == names
    batch = {
        key: np.array([part]) if key != "a" else {k: np.array([p]) for k, p in part.items()}
        for key, part in value.items()
    }
    assert {name: x.tolist() for name, x in BatchObserver(space)(batch, 1).items()} == {
        n: [x] for n, x in names.items()
    }
    assert Observer(space).space.spaces.keys() == names.keys()
    assert Observer(spaces.Dict({"": one})).space == spaces.Dict({"''": one})
    with pytest.raises(TypeError, match="has no parts"):
        Observer(spaces.Dict({}))


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


def test_images_without_pixels_are_refused():
    with pytest.raises(TypeError, match="has images without pixels"):
        Observer(spaces.Box(0, 255, (0, 4, 3), np.uint8))
