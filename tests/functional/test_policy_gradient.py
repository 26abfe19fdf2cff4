"""Clipped losses and value normalization against literal numbers; `test_returns.py` tests GAE with other returns."""

import pytest
import torch

from coterie.functional import policy_gradient
from coterie.functional.policy_gradient import (
    clipped_policy_loss,
    clipped_surrogate,
    clipped_value_error,
    clipped_value_loss,
    ema_mean_and_std,
    initial_ema_moments,
    update_value_moments,
)


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


def test_the_value_loss_is_the_mean_over_valid_entries_and_signals():
    """Errors e^2 / 2: (1 + 4) / 2 and (9 + 16) / 2 of the two valid entries with two signals each, halved."""
    target = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [99.0, 99.0]]])
    zero, valid = torch.zeros(1, 3, 2), torch.tensor([[True, True, False]])
    loss = clipped_value_loss(zero, zero, target, valid, clip_eps=None, huber_delta=None)
    assert loss.item() == pytest.approx((1 + 4 + 9 + 16) / 8)


def test_huber_loss_is_linear_above_its_delta():
    zero = torch.zeros(1)
    assert clipped_value_error(
        torch.tensor([20.0]), zero, zero, clip_eps=None, huber_delta=10.0
    ).item() == pytest.approx(10 * (20 - 5))
    assert clipped_value_error(
        torch.tensor([4.0]), zero, zero, clip_eps=None, huber_delta=10.0
    ).item() == pytest.approx(8.0)


def moments_of(x):
    return update_value_moments(initial_ema_moments(1), x.unsqueeze(-1), torch.ones(len(x), dtype=torch.bool), 0.99999)


def test_after_one_update_mean_and_std_are_those_of_the_batch():
    x = torch.tensor([1.0, 5.0, 9.0])
    mean, std = ema_mean_and_std(moments_of(x))
    assert mean.item() == pytest.approx(5.0)
    assert std.item() ** 2 == pytest.approx(x.var(correction=0).item(), rel=1e-4)


def test_variance_is_at_least_a_hundredth():
    x = torch.full((4,), 3.0)
    _, std = ema_mean_and_std(moments_of(x))
    assert std.item() == pytest.approx(0.1)


def test_without_data_the_moving_mean_is_zero_and_std_is_one():
    mean, std = ema_mean_and_std(initial_ema_moments(2))
    assert (mean.tolist(), std.tolist()) == ([0.0, 0.0], [1.0, 1.0])


@pytest.mark.parametrize("valid", [None, torch.tensor([True, True, True, False])])
def test_policy_loss_kl_and_clip_fraction_have_literal_values(valid):
    """Ratios 2, 0.5 and 1 with advantages 1, -1 and 2: losses -1.2, 0.8 and -2. The fourth ratio is 1, or invalid."""
    old = torch.full((4,), -1.0)
    log_prob = torch.tensor([2.0, 0.5, 1.0, 1.0]).log() - 1
    advantage = torch.tensor([1.0, -1.0, 2.0, 4.0])
    if valid is not None:
        log_prob[3] = float("inf")
    loss, kl, clipped = clipped_policy_loss(log_prob, old, advantage, valid, 0.2)
    count, last = (4, -4.0) if valid is None else (3, 0.0)
    assert loss.item() == pytest.approx((-1.2 + 0.8 - 2.0 + last) / count, abs=1e-6)
    assert kl.item() == pytest.approx(((2 - 1 - 0.693147) + (0.5 - 1 + 0.693147)) / count, abs=1e-5)
    assert clipped.item() == pytest.approx(2 / count)


@pytest.mark.parametrize("name", ["clipped_policy_loss", "clipped_value_loss"])
def test_a_kernel_computes_losses_if_kernels_are_on(name, monkeypatch):
    """If it does not support the shapes, it returns None."""
    calls, zero = [], torch.zeros(2, 1)
    answer = tuple(torch.tensor(x) for x in (7.0, 8.0, 9.0)) if name == "clipped_policy_loss" else torch.tensor(7.0)
    options = {"clip_eps": 0.2} | ({"huber_delta": None} if name == "clipped_value_loss" else {})

    def kernel(*given, **named):
        calls.append((given, named))
        return answer if len(calls) == 1 else None

    monkeypatch.setattr(policy_gradient.fused, name, kernel)
    for on, losses in ((False, [0.0]), (True, [7.0, 0.0])):
        for expected in losses:
            found = getattr(policy_gradient, name)(zero, zero, zero, None, **options, kernels=on)
            assert (found[0] if isinstance(found, tuple) else found).item() == expected
    assert len(calls) == 2
    assert all(x is zero for x in calls[0][0][:3])


def test_a_ratio_at_the_limit_is_not_counted_as_clipped():
    zero = torch.zeros(2)
    assert clipped_policy_loss(zero, zero, zero, None, clip_eps=0.0)[2].item() == 0


def test_moving_moments_have_literal_values():
    """Decay 0.75, means 4 and 8: weights 0.25 and 0.4375; each signal has its own, and masked entries do not count."""
    moments = initial_ema_moments(2)
    target = torch.tensor([[[3.0, 0.0], [5.0, 2.0], [9e9, 9e9]]])
    mask = torch.tensor([[True, True, False]])
    moments = update_value_moments(moments, target, mask, 0.75)
    assert moments["mean"].tolist() == [1.0, 0.25]
    assert moments["square"].tolist() == [0.25 * 17, 0.25 * 2]
    moments = update_value_moments(moments, target * 2, mask, 0.75)
    assert moments["weight"].item() == 0.4375
    assert moments["mean"].tolist() == [0.75 * 1 + 0.25 * 8, 0.75 * 0.25 + 0.25 * 2]
    mean, std = ema_mean_and_std(moments)
    square = 0.75 * 0.25 * 17 + 0.25 * 4 * 17
    assert mean[0].item() == pytest.approx(2.75 / 0.4375)
    assert std[0].item() == pytest.approx((square / 0.4375 - (2.75 / 0.4375) ** 2) ** 0.5)
