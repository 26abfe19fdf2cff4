"""Numbers from outside: what is accepted, and one line for everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.export.portable.checked_numbers import axes_of, checked_numbers
from coterie.export.portable.policy_files import PolicyError


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        (1.0, 2),
        np.array([1, 2], np.int8),
        np.array([1, 2], np.uint64),
        np.array([1, 2], np.float64),
        np.array([1, 2], np.float16),
        [np.float32(1), np.int64(2)],
        torch.tensor([1.0, 2.0]),
        [torch.tensor(1.0), 2],
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_numbers_of_all_types_are_accepted(value: Any, dtype: str):
    found = checked_numbers(value, (2,), "obs", dtype=dtype)
    assert found.dtype == np.float32
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize(
    "value", [[True, False], (1, False), np.array([True, False]), [np.True_, 0.0], torch.tensor([True, False])]
)
def test_booleans_are_accepted_only_where_the_space_has_them(value: Any):
    assert checked_numbers(value, (2,), "obs", booleans=True).tolist() == [1, 0]
    with pytest.raises(
        PolicyError, match=r"^obs of 'a' holds (True|False) at index \[[01]\]\. Pass numbers of shape \[2\]"
    ):
        checked_numbers(value, (2,), "obs of 'a'")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1.5", "is '1.5'. Pass numbers of shape [2]."),
        (None, "is None. Pass numbers"),
        (True, "is True. Pass numbers"),
        ({"x": 1}, "is {'x': 1}. Pass numbers"),
        (["1.5", 2], "holds '1.5' at index [0]. Pass numbers"),
        ([1, "2"], "holds '2' at index [1]"),
        ([1, None], "holds None at index [1]"),
        ([1, {}], "holds {} at index [1]"),
        ([1, b"2"], "holds b'2' at index [1]"),
        ([1, 2j], "holds 2j at index [1]"),
        (np.array(["1", "2"]), "holds '1' at index [0]"),
        (np.array([1, None], object), "holds None at index [1]"),
        (np.array([1, 2], object), "is an array of objects"),
        ([[1], [1, 2]], "has lists of several lengths"),
        ([1, [2]], "has lists of several lengths"),
        ([[1, 2]], "has shape [1, 2], expected [2]"),
        ([1, 2, 3], "has shape [3], expected [2]"),
        ([], "has shape [0], expected [2]"),
        (1.5, "has shape [], expected [2]"),
        ([1, float("nan")], "holds nan at index [1], expected finite numbers"),
        ([float("-inf"), 1], "holds -inf at index [0], expected finite numbers"),
        (np.array([1e300, 1]), "holds 1e+300 at index [0], expected finite numbers of float32"),
        ([10**400, 1], "at index [0], which has more than 64 bits"),
        ([1.5, -(10**5000)], "at index [1], which has more than 64 bits"),
        ([2**64, 1], "at index [0], which has more than 64 bits"),
        (["x\ny" * 100, 1], "at index [0]"),
    ],
)
def test_everything_else_is_named_in_one_short_line(value: Any, message: str):
    for booleans in (False, True):
        if booleans and value is True:
            continue
        with pytest.raises(PolicyError) as error:
            checked_numbers(value, (2,), "obs of 'a'", booleans=booleans)
        assert str(error.value).startswith("obs of 'a' ")
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("wrong", [256, -1, 0.5, float("nan"), float("inf")])
def test_images_hold_integers_up_to_255(wrong: float):
    with pytest.raises(PolicyError, match=f"holds {wrong} at index .*expected integers from 0 to 255"):
        checked_numbers([1, wrong], (2,), "obs", dtype="uint8")


@pytest.mark.parametrize(
    ("value", "axes"),
    [(1, 0), ("ab", 0), (None, 0), ({}, 0), ([], 1), ([[1], [1, 2]], 2), (np.zeros((2, 3)), 2), ([np.zeros(3)], 2)],
)
def test_axes_are_counted_without_conversion(value: Any, axes: int):
    assert axes_of(value) == axes
