"""Action spaces as choices and numbers, and the conversion of numbers."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from coterie.core.specs import ActionSpec, to_bounds

NESTED = spaces.Dict(
    {
        "turn": spaces.Box(-1, 1, (2, 2), np.float32),
        "fire": spaces.MultiBinary(2),
        "both": spaces.Tuple([spaces.Discrete(3, start=4), spaces.Box(0, 9, (), np.int64)]),
    }
)


def test_components_are_in_the_order_of_the_space():
    spec = ActionSpec.of(NESTED)
    assert list(NESTED.spaces) == ["both", "fire", "turn"]  # gymnasium sorts the keys
    assert (spec.choices, spec.continuous) == ((3, 2, 2), 5)
    assert spec.low == (0, -1, -1, -1, -1)
    assert spec.integer == (True, False, False, False, False)


@pytest.mark.parametrize(
    ("space", "choices", "continuous"),
    [
        (spaces.MultiBinary(3), (2, 2, 2), 0),
        (spaces.MultiBinary([2, 2]), (2, 2, 2, 2), 0),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), (2, 3, 4, 5), 0),
        (spaces.Box(-1, 1, (), np.float32), (), 1),
        (spaces.Box(-1, 1, (2, 3), np.float64), (), 6),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (0,))]), (2,), 0),
    ],
)
def test_arrays_of_any_shape_are_components(space, choices, continuous):
    spec = ActionSpec.of(space)
    assert (spec.choices, spec.continuous) == (choices, continuous)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-np.inf, np.inf, (1,)), "infinite bounds"),
        (spaces.Box(-3e38, 3e38, (1,)), r"bounds beyond 1e\+30"),
        (spaces.Box(-1e300, 1e300, (1,), np.float64), r"bounds beyond 1e\+30"),
        (spaces.Box(0, 1, (0,)), "has no component"),
        (spaces.Tuple([spaces.Box(0, 1, (0,))]), "has no component"),
        (spaces.Dict({}), "has no component"),
        (spaces.Text(3), "is none of Discrete"),
        (spaces.Dict({"x": spaces.Sequence(spaces.Discrete(2))}), "is none of Discrete"),
    ],
)
def test_other_action_spaces_are_refused_in_one_line(space, message):
    with pytest.raises(TypeError, match=message) as error:
        ActionSpec.of(space)
    assert "\n" not in str(error.value)


def test_each_integer_has_an_equal_share():
    spec = ActionSpec.of(spaces.Box(np.array([-2, 0]), np.array([2, 1]), dtype=np.int8))
    grid = torch.linspace(-1, 1, 2001)
    found = to_bounds(torch.stack([grid, grid], -1), spec)
    assert found[:, 0].unique(return_counts=True)[1].tolist() == pytest.approx([400] * 5, abs=2)
    assert found[:, 1].unique(return_counts=True)[1].tolist() == pytest.approx([1000] * 2, abs=2)
    assert [spec.to_number(x, 0) for x in (-2.0, -1.0, -0.61, -0.59, 0.0, 1.0, 2.0)] == [-2, -2, -2, -1, 0, 2, 2]


def test_a_number_is_mapped_back_to_the_center_of_its_share():
    spec = ActionSpec.of(spaces.Tuple([spaces.Box(-2, 2, (1,), np.int64), spaces.Box(-2, 2, (1,))]))
    assert [spec.from_number(x, 0) for x in (-2, 0, 2)] == pytest.approx([-0.8, 0, 0.8])
    assert [spec.from_number(x, 1) for x in (-2, 0.5, 2)] == pytest.approx([-1, 0.25, 1])
    for number in range(-2, 3):
        assert spec.to_number(spec.from_number(number, 0), 0) == number


def test_a_component_with_equal_bounds_is_constant():
    spec = ActionSpec.of(spaces.Box(3, 3, (1,)))
    assert (spec.to_number(0.4, 0), spec.from_number(3, 0)) == (3, 0)
