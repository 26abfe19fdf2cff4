"""Masked statistics against literal numbers."""

import pytest
import torch

from coterie.math.statistics import explained_variance, masked_mean, masked_moments, masked_sum, standardize


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
