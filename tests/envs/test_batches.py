"""Batches of observations and actions are what those of single copies are, side by side."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from vecworlds import ANY_SPACES

from coterie.envs.adapters.batches import BatchActuator, BatchObserver
from coterie.envs.adapters.spaces import Actuator, Observer
from coterie.errors import UserError


@pytest.mark.parametrize("sees", [sees for sees, _ in ANY_SPACES.values()], ids=str)
def test_a_batch_is_seen_as_its_copies_are_one_by_one(sees: spaces.Space):
    batch = batch_space(sees, 4)
    batch.seed(3)
    seen, one, many = batch.sample(), Observer(sees), BatchObserver(sees)
    arrays = many(seen, 4)
    assert many.space == one.space
    assert list(arrays) == [sensor.name for sensor in one.sensors]
    for b, alone in enumerate(iterate(batch, seen)):
        for sensor in one.sensors:
            place = np.zeros(sensor.space.shape, sensor.space.dtype)
            sensor.write(place, alone)
            np.testing.assert_array_equal(arrays[sensor.name][b], place)
            assert arrays[sensor.name].dtype == place.dtype


@pytest.mark.parametrize("does", [does for _, does in ANY_SPACES.values()], ids=str)
def test_a_batch_is_given_the_actions_that_its_copies_are(does: spaces.Space):
    one, many = Actuator(does), BatchActuator(does)
    draws = np.random.default_rng(0)
    picks = draws.integers(0, [*one.spec.choices], (6, len(one.spec.choices)))
    numbers = draws.uniform(-1.5, 1.5, (6, one.spec.continuous)).astype(np.float32)
    batch = many(picks, numbers)
    assert batch_space(does, 6).contains(batch)
    for mine, alone in zip(iterate(batch_space(does, 6), batch), one(picks, numbers), strict=True):
        for left, right in zip(*([x] if not isinstance(x, tuple) else x for x in (mine, alone)), strict=True):
            np.testing.assert_array_equal(left, right)


def test_numbers_that_are_no_choices_and_other_shapes_are_one_line():
    with pytest.raises(UserError, match="a number that is no choice"):
        BatchObserver(spaces.Discrete(3))(np.array([0, 3]), 2)
    with pytest.raises(UserError, match=r"shape \(2,\), and its space says \(3,\)"):
        BatchObserver(spaces.Box(0, 1, (3,)))(np.zeros((2, 2)), 2)
    with pytest.raises(UserError, match="of 3 copies, and its space says 2"):
        BatchObserver(spaces.Box(0, 1, (3,)))(np.zeros((3, 3)), 2)
