"""Batched assignment of agents to places, compared with SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.envs.worlds.particle.formations import assign


@pytest.mark.parametrize("n", [1, 2, 4, 6, 9])
def test_assignment_has_minimum_cost(n: int) -> None:
    from scipy.optimize import linear_sum_assignment

    cost = torch.rand(n, n, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    expected = np.stack([linear_sum_assignment(cost[..., env].numpy())[1] for env in range(20)], axis=1)
    assert np.array_equal(assign(cost).numpy(), expected)
