"""GAIL's losses and rewards against literal numbers."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.functional.adversarial_imitation import (
    bounded_reward,
    discriminator_loss,
    gradient_penalty,
    negative_reward,
    positive_reward,
)


def test_discriminator_losses_are_cross_entropies():
    demonstrated, policy = discriminator_loss(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2.0]))
    assert demonstrated.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-2))])
    assert policy.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(2))])


def test_rewards_as_functions_of_the_discriminator_output():
    logit = torch.tensor([-1.0, 0.0, 3.0])
    d = torch.sigmoid(logit)
    assert positive_reward(logit).tolist() == pytest.approx((-(1 - d).log()).tolist(), abs=1e-6)
    assert negative_reward(logit).tolist() == pytest.approx(d.log().tolist(), abs=1e-6)
    assert bounded_reward(logit).tolist() == pytest.approx((2 * d - 1).tolist(), abs=1e-6)
    assert positive_reward(torch.tensor(200.0)).item() == 200.0, "does not overflow"


def test_gradients_of_norm_one_are_not_penalized():
    gradient = torch.tensor([[0.6, 0.8], [3.0, 0.0], [0.0, 0.0]], requires_grad=True)
    penalty = gradient_penalty(gradient)
    penalty.sum().backward()
    assert penalty.tolist() == pytest.approx([0.0, 4.0, 1.0], abs=1e-5)
    assert gradient.grad is not None
    assert gradient.grad.isfinite().all(), "also for a zero gradient"


def test_gradients_are_penalized_per_sample():
    gradient = torch.tensor([[[0.6, 0.8], [3.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 1.0], [4.0, 3.0]]])
    assert gradient_penalty(gradient).tolist() == [
        pytest.approx([0.0, 4.0, 1.0], abs=1e-5),
        pytest.approx([1.0, 0.0, 16.0], abs=1e-5),
    ]
