"""Draws from uniform noise, with literal numbers."""

import math

import pytest
import torch

from coterie.math import draws

NOISE = torch.tensor([0.0, 0.25, 0.5, 0.999])


def test_uniform_noise_is_stretched_to_the_range():
    assert torch.allclose(draws.uniform(NOISE, -1, 3), torch.tensor([-1.0, 0.0, 1.0, 2.996]))


def test_log_uniform_halves_the_logarithm():
    assert torch.allclose(draws.log_uniform(NOISE[:3], 0.01, 100), torch.tensor([0.01, 0.1, 1.0]))


def test_integers_include_both_ends_and_nothing_else():
    noise = (torch.arange(1200) + 0.5) / 1200
    found, counts = draws.integers(noise, 2, 4).unique(return_counts=True)
    assert found.tolist() == [2, 3, 4]
    assert counts.tolist() == [400, 400, 400]
    assert draws.integers(torch.tensor([0.0, 1 - 2**-24]), -1, 6).tolist() == [-1, 6]


def test_a_normal_has_its_quantiles_and_is_clipped_to_its_ends():
    noise = torch.tensor([0.5, 0.841344746, 0.158655254, 0.0, 1 - 2**-24])
    drawn = draws.clipped_normal(noise, 2.0, 0.5, -10, 3.0)
    assert torch.allclose(drawn, torch.tensor([2.0, 2.5, 1.5, 2.0 - 0.5 * 5.2938, 3.0]), atol=1e-3)
    assert bool(draws.clipped_normal(torch.tensor([0.0]), 0, 1, -math.inf, math.inf).isfinite().all())


def test_a_choice_is_as_likely_as_its_weight():
    noise = torch.linspace(0, 1, 1001)[:-1]
    picks = draws.choice(noise, torch.tensor([1.0, 0.0, 3.0]))
    assert picks.bincount(minlength=3).tolist() == [250, 0, 750]
    assert draws.choice(NOISE.view(2, 2), torch.tensor([1.0, 1.0])).tolist() == [[0, 0], [1, 1]]


def test_the_mean_of_a_clipped_normal_is_that_of_its_draws():
    noise = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for low, high in ((-0.5, 2.0), (-math.inf, 0.3), (0.9, math.inf)):
        drawn = draws.clipped_normal(noise, 0.5, 1.0, low, high).mean().item()
        assert draws.clipped_normal_mean(0.5, 1.0, low, high) == pytest.approx(drawn, abs=1e-4)
    assert draws.clipped_normal_mean(0.5, 1.0, -math.inf, math.inf) == 0.5
    assert draws.clipped_normal_mean(0.5, 0.0, 0.6, 2.0) == 0.6
