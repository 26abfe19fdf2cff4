"""Losses and masked reductions against literal numbers."""

import pytest
import torch

from coterie.math.losses import (
    clipped_surrogate,
    clipped_value_error,
    masked_mean,
    masked_moments,
    masked_sum,
    standardise,
)


def test_the_surrogate_is_pessimistic_on_both_sides():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    torch.testing.assert_close(clipped_surrogate(ratio, advantage, 0.2), torch.tensor([-1.2, 1.5, -0.5, 0.8, -2.0]))


def test_a_clipped_ratio_has_no_gradient():
    ratio = torch.tensor([1.5, 1.1], requires_grad=True)
    clipped_surrogate(ratio, torch.ones(2), 0.2).sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.tolist() == [0.0, -1.0]


def test_the_value_loss_takes_the_larger_error():
    value, old, target = torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0])
    assert clipped_value_error(value, old, target, 0.2, None).item() == pytest.approx(0.5 * 0.8**2)
    assert clipped_value_error(value, old, target, None, None).item() == 0.0


def test_the_huber_loss_is_linear_beyond_its_delta():
    zero = torch.zeros(1)
    assert clipped_value_error(torch.tensor([20.0]), zero, zero, None, 10.0).item() == pytest.approx(10 * (20 - 5))
    assert clipped_value_error(torch.tensor([4.0]), zero, zero, None, 10.0).item() == pytest.approx(8.0)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e6])
def test_masked_places_change_no_mean_and_no_gradient(poison):
    x = torch.tensor([1.0, 2.0, poison, 4.0], requires_grad=True)
    weight = torch.tensor([True, True, False, True])
    mean = masked_mean(x, weight)
    mean.backward()
    assert mean.item() == pytest.approx(7 / 3)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([1 / 3, 1 / 3, 0.0, 1 / 3]))


def test_a_mean_over_nobody_is_zero():
    assert masked_mean(torch.tensor([float("nan")]), torch.tensor([False])).item() == 0.0


def test_a_masked_sum_comes_with_its_count():
    total, count = masked_sum(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True]))
    assert (float(total), int(count)) == (4.0, 2)


def test_standardised_live_entries_have_mean_zero_and_variance_one():
    x = torch.tensor([1.0, 3.0, 1e9, 5.0])
    weight = torch.tensor([True, True, False, True])
    mean, variance = masked_moments(standardise(x, weight), weight)
    assert mean.item() == pytest.approx(0, abs=1e-6)
    assert variance.item() == pytest.approx(1, abs=1e-5)
