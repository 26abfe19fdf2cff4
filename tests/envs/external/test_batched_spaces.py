"""Batched conversion of observations and actions equals conversion per environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from coterie.core.errors import UserError
from coterie.envs.external.batched_spaces import BatchActuator, BatchObserver
from coterie.envs.external.spaces import Actuator, Observer
from vector_worlds import ANY_SPACES


@pytest.mark.parametrize("observation", [observation for observation, _ in ANY_SPACES.values()], ids=str)
def test_batched_observations_equal_those_of_single_environments(observation: spaces.Space):
    batch = batch_space(observation, 4)
    batch.seed(3)
    native, single, batched = batch.sample(), Observer(observation), BatchObserver(observation)
    arrays = batched(native, 4)
    assert batched.space == single.space
    assert list(arrays) == [sensor.name for sensor in single.sensors]
    for b, value in enumerate(iterate(batch, native)):
        for sensor in single.sensors:
            place = np.zeros(sensor.space.shape, sensor.space.dtype)
            sensor.write(place, value)
            np.testing.assert_array_equal(arrays[sensor.name][b], place)
            assert arrays[sensor.name].dtype == place.dtype


@pytest.mark.parametrize("action", [action for _, action in ANY_SPACES.values()], ids=str)
def test_batched_actions_equal_those_of_single_environments(action: spaces.Space):
    single, batched = Actuator(action), BatchActuator(action)
    draws = np.random.default_rng(0)
    picks = draws.integers(0, [*single.spec.choices], (6, len(single.spec.choices)))
    numbers = draws.uniform(-1.5, 1.5, (6, single.spec.continuous)).astype(np.float32)
    batch = batched(picks, numbers)
    assert batch_space(action, 6).contains(batch)
    for own, expected in zip(iterate(batch_space(action, 6), batch), single(picks, numbers), strict=True):
        for left, right in zip(*([x] if not isinstance(x, tuple) else x for x in (own, expected)), strict=True):
            np.testing.assert_array_equal(left, right)


def test_values_out_of_range_and_wrong_shapes_raise_one_line_errors():
    with pytest.raises(UserError, match="the value 3 at index 0, but its space declares integers 0 to 2 there"):
        BatchObserver(spaces.Discrete(3))(np.array([0, 3]), 2)
    with pytest.raises(UserError, match=r"shape \(2,\), but its space declares \(3,\)"):
        BatchObserver(spaces.Box(0, 1, (3,)))(np.zeros((2, 2)), 2)
    with pytest.raises(UserError, match="with 3 environments, but its space declares 2"):
        BatchObserver(spaces.Box(0, 1, (3,)))(np.zeros((3, 3)), 2)
