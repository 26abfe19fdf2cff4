"""Inverse transform sampling against literal numbers."""

import math

import pytest
import torch

from coterie.functional import inverse_transform

NOISE = torch.tensor([0.0, 0.25, 0.5, 0.999])


def test_uniform_maps_noise_to_the_range():
    assert torch.allclose(inverse_transform.uniform(NOISE, -1, 3), torch.tensor([-1.0, 0.0, 1.0, 2.996]))


def test_log_uniform_interpolates_the_logarithm():
    assert torch.allclose(inverse_transform.log_uniform(NOISE[:3], 0.01, 100), torch.tensor([0.01, 0.1, 1.0]))


def test_integers_are_uniform_and_include_both_ends():
    noise = (torch.arange(1200) + 0.5) / 1200
    found, counts = inverse_transform.integers(noise, 2, 4).unique(return_counts=True)
    assert found.tolist() == [2, 3, 4]
    assert counts.tolist() == [400, 400, 400]
    assert inverse_transform.integers(torch.tensor([0.0, 1 - 2**-24]), -1, 6).tolist() == [-1, 6]


def test_clipped_normal_has_normal_quantiles_within_its_bounds():
    noise = torch.tensor([0.5, 0.841344746, 0.158655254, 0.0, 1 - 2**-24])
    drawn = inverse_transform.clipped_normal(noise, mean=2.0, std=0.5, low=-10, high=3.0)
    assert torch.allclose(drawn, torch.tensor([2.0, 2.5, 1.5, 2.0 - 0.5 * 5.2938, 3.0]), atol=1e-3)
    assert bool(
        inverse_transform.clipped_normal(torch.tensor([0.0]), mean=0, std=1, low=-math.inf, high=math.inf).isfinite()
    )


def test_choice_frequencies_are_proportional_to_weights():
    noise = torch.linspace(0, 1, 1001)[:-1]
    indices = inverse_transform.choice(noise, torch.tensor([1.0, 0.0, 3.0]))
    assert indices.bincount(minlength=3).tolist() == [250, 0, 750]
    assert inverse_transform.choice(NOISE.view(2, 2), torch.tensor([1.0, 1.0])).tolist() == [[0, 0], [1, 1]]


def test_clipped_normal_mean_matches_samples():
    noise = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    for low, high in ((-0.5, 2.0), (-math.inf, 0.3), (0.9, math.inf)):
        drawn = inverse_transform.clipped_normal(noise, mean=0.5, std=1.0, low=low, high=high).mean().item()
        assert inverse_transform.clipped_normal_mean(0.5, 1.0, low, high) == pytest.approx(drawn, abs=1e-4)
    assert inverse_transform.clipped_normal_mean(0.5, 1.0, -math.inf, math.inf) == 0.5
    assert inverse_transform.clipped_normal_mean(0.5, 0.0, 0.6, 2.0) == 0.6


def test_noise_close_to_one_is_clipped_in_double_precision_as_well():
    """ndtri(1 - 2^-24) = 5.2938; negative control: the quantile of the noise itself."""
    noise = torch.tensor([1 - 2.0**-40, 2.0**-40], dtype=torch.float64)
    drawn = inverse_transform.clipped_normal(noise, mean=0.0, std=1.0, low=-math.inf, high=math.inf)
    assert drawn.tolist() == pytest.approx([5.2938, -5.2938], abs=1e-3)
    assert torch.special.ndtri(noise)[0] > 7


def test_clipped_normal_mean_of_a_narrow_distribution():
    """a = -1, b = 2: 0.5 F(-1) + 2 (1 - F(2)) + (F(2) - F(-1)) + 0.5 (f(1) - f(2)) with F(1) = 0.841345."""
    below, above = 0.158655254, 0.022750132
    density = (math.exp(-0.5) - math.exp(-2)) / math.sqrt(2 * math.pi)
    expected = 0.5 * below + 2 * above + 1 * (1 - below - above) + 0.5 * density
    assert inverse_transform.clipped_normal_mean(1.0, 0.5, 0.5, 2.0) == pytest.approx(expected, abs=1e-7)
    assert inverse_transform.clipped_normal_mean(0.7, 0.0, 0.1, 0.6) == 0.6
    assert inverse_transform.clipped_normal_mean(0.3, 0.0, 0.1, 0.6) == 0.3
