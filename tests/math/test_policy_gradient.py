"""Clipped losses against literal numbers; `test_returns.py` tests GAE together with the other returns."""

import pytest
import torch

from coterie.math.policy_gradient import clipped_surrogate, clipped_value_error


def test_clipped_surrogate_takes_the_lower_objective():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    torch.testing.assert_close(clipped_surrogate(ratio, advantage, 0.2), torch.tensor([-1.2, 1.5, -0.5, 0.8, -2.0]))


def test_a_clipped_ratio_has_zero_gradient():
    ratio = torch.tensor([1.5, 1.1], requires_grad=True)
    clipped_surrogate(ratio, torch.ones(2), 0.2).sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.tolist() == [0.0, -1.0]


def test_clipped_value_error_takes_the_larger_error():
    value, old, target = torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0])
    assert clipped_value_error(value, old, target, clip_eps=0.2, huber_delta=None).item() == pytest.approx(0.5 * 0.8**2)
    assert clipped_value_error(value, old, target, clip_eps=None, huber_delta=None).item() == 0.0


def test_huber_loss_is_linear_above_its_delta():
    zero = torch.zeros(1)
    assert clipped_value_error(
        torch.tensor([20.0]), zero, zero, clip_eps=None, huber_delta=10.0
    ).item() == pytest.approx(10 * (20 - 5))
    assert clipped_value_error(
        torch.tensor([4.0]), zero, zero, clip_eps=None, huber_delta=10.0
    ).item() == pytest.approx(8.0)
