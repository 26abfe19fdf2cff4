"""Straight-through choices and target policy smoothing against literal numbers."""

import math

import torch

from coterie.nets.relaxed_actions import smoothing_noise, straight_through


def test_smoothing_noise_is_clipped():
    found = smoothing_noise(torch.tensor([-9.0, -1.0, 0.0, 2.0, 9.0]), std=0.2, clip=0.5)
    torch.testing.assert_close(found, torch.tensor([-0.5, -0.2, 0.0, 0.4, 0.5]))


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


def test_masked_choices_are_never_sampled_and_get_no_gradient():
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
