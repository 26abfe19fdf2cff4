"""Noise and draws with literal numbers."""

import math

import pytest
import torch
from scipy.stats import norm

from coterie.math.exploration import noisy, ornstein_uhlenbeck, pick, smoothing, straight_through, uniform


def test_ornstein_uhlenbeck_is_pulled_back_to_zero():
    state, found = torch.zeros(2), []
    for n in ([1.0, -2.0], [0.0, 1.0], [0.5, 0.0]):
        state = ornstein_uhlenbeck(state, torch.tensor(n), 0.25)
        found.append(state.tolist())
    assert found == [[1.0, -2.0], [0.75, -0.5], [1.0625, -0.375]]


def test_ornstein_uhlenbeck_settles_at_its_spread():
    noise = torch.randn(2000, 500, generator=torch.Generator().manual_seed(0))
    state = torch.zeros(500)
    seen = []
    for n in noise:
        state = ornstein_uhlenbeck(state, n, 0.15)
        seen.append(state)
    late = torch.stack(seen[100:])
    assert late.std().item() == pytest.approx(1 / math.sqrt(0.15 * 1.85), rel=0.02)
    together = (late[1:] * late[:-1]).mean() / late.square().mean()
    assert together.item() == pytest.approx(0.85, abs=0.02)  # white noise would have 0


def test_noise_on_numbers_is_clipped_to_their_range():
    found = noisy(torch.tensor([0.9, -0.9, 0.1]), torch.tensor([0.3, -0.3, 0.2]))
    torch.testing.assert_close(found, torch.tensor([1.0, -1.0, 0.3]))


def test_smoothing_noise_is_clipped():
    found = smoothing(torch.tensor([-9.0, -1.0, 0.0, 2.0, 9.0]), std=0.2, clip=0.5)
    torch.testing.assert_close(found, torch.tensor([-0.5, -0.2, 0.0, 0.4, 0.5]))


def test_normal_numbers_become_uniform_ones():
    normal = torch.tensor([-1.0, 0.0, 0.5, 2.0])
    torch.testing.assert_close(uniform(normal), torch.tensor(2 * norm.cdf(normal.numpy()) - 1, dtype=torch.float32))


def test_a_choice_is_the_largest_of_logit_plus_noise():
    logits, noise = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.0, -2.0, 1.5]])
    assert pick(logits, None, None).tolist() == [1]
    assert pick(logits, None, noise).tolist() == [2]
    assert pick(logits, torch.tensor([[True, True, False]]), noise).tolist() == [0]


def test_choices_are_drawn_as_often_as_softmax_says():
    logits = torch.tensor([0.0, 1.0, 2.0])
    noise = -torch.empty(40_000, 3).exponential_(generator=torch.Generator().manual_seed(0)).log()
    often = torch.bincount(pick(logits, None, noise), minlength=3) / 40_000
    torch.testing.assert_close(often, logits.softmax(-1), atol=0.01, rtol=0)


def test_straight_through_is_one_hot_with_the_gradient_of_the_relaxed_choice():
    """y = softmax([0.5, 1.0, -0.5] / 0.5); the gradient of w y is y (w - w y) / 0.5."""
    logits = torch.tensor([0.25, 0.5, 0.0], requires_grad=True)
    noise, weight = torch.tensor([0.25, 0.5, -0.5]), torch.tensor([3.0, -1.0, 2.0])
    hard = straight_through(logits, None, noise, 0.5)
    assert hard.tolist() == [0.0, 1.0, 0.0]
    (hard * weight).sum().backward()
    y = [math.exp(1.0), math.exp(2.0), math.exp(-1.0)]
    y = [part / sum(y) for part in y]
    mean = 3 * y[0] - y[1] + 2 * y[2]
    expected = [y[0] * (3 - mean) / 0.5, y[1] * (-1 - mean) / 0.5, y[2] * (2 - mean) / 0.5]
    torch.testing.assert_close(logits.grad, torch.tensor(expected))


def test_masked_choices_are_never_drawn_and_get_no_gradient():
    logits = torch.tensor([0.0, 50.0, 0.0], requires_grad=True)
    mask = torch.tensor([True, False, True])
    for noise in (torch.tensor([0.0, 9.0, 1.0]), torch.tensor([2.0, 90.0, 0.0])):
        hard = straight_through(logits, mask, noise, 0.1)
        assert hard[1] == 0
        assert hard.sum() == 1
        (grad,) = torch.autograd.grad((hard * torch.tensor([1.0, 2.0, 3.0])).sum(), logits)
        assert grad[1] == 0
        assert grad.isfinite().all()
        assert straight_through(logits, None, noise, 0.1)[1] == 1  # the control: without the mask
