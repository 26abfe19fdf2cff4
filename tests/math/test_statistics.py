"""Masked statistics and moments against literal numbers."""

import pytest
import torch

from coterie.math.statistics import (
    explained_variance,
    initial_moments,
    masked_mean,
    masked_moments,
    masked_sum,
    mean_and_std,
    standardize,
    update_moments,
)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e6])
def test_invalid_entries_change_neither_mean_nor_gradient(poison):
    x = torch.tensor([1.0, 2.0, poison, 4.0], requires_grad=True)
    valid = torch.tensor([True, True, False, True])
    mean = masked_mean(x, valid)
    mean.backward()
    assert mean.item() == pytest.approx(7 / 3)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([1 / 3, 1 / 3, 0.0, 1 / 3]))


def test_mean_without_valid_entries_is_zero():
    assert masked_mean(torch.tensor([float("nan")]), torch.tensor([False])).item() == 0.0


def test_masked_sum_returns_the_count():
    total, count = masked_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
    assert (float(total), int(count)) == (4.0, 2)


def test_standardized_valid_entries_have_mean_zero_and_variance_one():
    x = torch.tensor([1.0, 3.0, 1e9, 5.0])
    valid = torch.tensor([True, True, False, True])
    mean, variance = masked_moments(standardize(x, valid), valid)
    assert mean.item() == pytest.approx(0, abs=1e-6)
    assert variance.item() == pytest.approx(1, abs=1e-5)


def test_moments_of_parts_equal_those_of_all_data():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 4 + 2
    moments = initial_moments(3)
    for part in x.split([1, 20, 29]):
        moments = update_moments(moments, part, None)
    mean, std = mean_and_std(moments)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(std, x.std(0, correction=0))


def test_invalid_samples_are_not_counted():
    x = torch.tensor([[1.0], [float("nan")], [3.0]])
    moments = update_moments(initial_moments(1), x, torch.tensor([True, False, True]))
    assert (moments["count"].item(), moments["mean"].item()) == (2.0, 2.0)


def test_without_data_mean_is_zero_and_std_is_one():
    mean, std = mean_and_std(initial_moments(2))
    assert (mean.tolist(), std.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_mean_of_one_number_is_that_number():
    assert masked_mean(torch.tensor([3.0]), None).item() == 3.0
    assert masked_mean(torch.zeros(0), None).item() == 0.0


def test_explained_variance_has_literal_values():
    """Targets 1, 3, 5 and 7 vary by 5, residuals 1, -1, 1 and -1 by 1."""
    target, residual = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    everywhere = torch.ones(2, 2, dtype=torch.bool)
    assert explained_variance(target, residual, everywhere).item() == pytest.approx(0.8)
    assert explained_variance(target, target + 9, everywhere).item() == pytest.approx(0.0)
    some = torch.tensor([[True, True], [True, False]])
    assert explained_variance(target, residual, some).item() == pytest.approx(1 - (8 / 9) / (8 / 3))
    constant = torch.ones(2, 2)
    assert explained_variance(constant, residual, everywhere).item() == pytest.approx(1 - 1e8)


def test_moments_of_a_batch_with_masked_entries_have_literal_values():
    """Samples (1, 10) and (3, 30), then (5, 50); the standard deviations are those of all three."""
    x = torch.tensor([[[1.0, 10.0], [9e9, 9e9], [3.0, 30.0]], [[9e9, 9e9]] * 3])
    valid = torch.tensor([[True, False, True], [False] * 3])
    moments = update_moments(initial_moments(2), x, valid)
    assert (moments["mean"].tolist(), moments["deviation"].tolist()) == ([2.0, 20.0], [2.0, 200.0])
    moments = update_moments(moments, torch.tensor([[5.0, 50.0]]), None)
    assert (moments["count"].item(), moments["mean"].tolist()) == (3.0, [3.0, 30.0])
    assert moments["deviation"].tolist() == [8.0, 800.0]
    mean, std = mean_and_std(moments)
    assert mean.tolist() == [3.0, 30.0]
    assert std.tolist() == pytest.approx([(8 / 3) ** 0.5, (800 / 3) ** 0.5])


def test_samples_that_are_all_masked_change_nothing():
    none = torch.zeros(3, dtype=torch.bool)
    empty = update_moments(initial_moments(1), torch.full((3, 1), float("nan")), none)
    assert [x.tolist() for x in empty.values()] == [x.tolist() for x in initial_moments(1).values()]


def test_variance_has_a_floor():
    moments = update_moments(initial_moments(1), torch.full((4, 1), 3.0), None)
    assert mean_and_std(moments)[1].item() == pytest.approx(0.01)
    assert mean_and_std(moments, min_variance=0.25)[1].item() == pytest.approx(0.5)
