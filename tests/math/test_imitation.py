"""Imitation: literal numbers."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.math.imitation import (
    agrees,
    bounded_reward,
    deterministic_error,
    discriminator_loss,
    gradient_penalty,
    negative_reward,
    positive_reward,
    shortfall,
    squashed_log_prob,
)
from coterie.types import Action, ActionSpec


def test_the_shortfall_is_what_is_missing_to_the_margin():
    q = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.9, 0.0], [1.0, 1.0, 1.0]])
    done = torch.tensor([[0], [1], [2]])
    found = shortfall(q, done, None, (3,), 0.8)
    assert found.tolist() == pytest.approx([0.0, 0.0, 0.8])
    assert shortfall(q, torch.tensor([[1], [0], [2]]), None, (3,), 0.8).tolist() == pytest.approx([1.8, 1.7, 0.8])


def test_masked_choices_are_no_rivals():
    q, done = torch.tensor([[0.0, 5.0, 0.5]], requires_grad=True), torch.tensor([[0]])
    mask = torch.tensor([[True, False, True]])
    loss = shortfall(q, done, mask, (3,), 0.8)
    loss.sum().backward()
    assert loss.item() == pytest.approx(1.3)
    assert q.grad is not None
    assert q.grad.tolist() == [[-1.0, 0.0, 1.0]]
    assert shortfall(q, done, None, (3,), 0.8).item() == pytest.approx(5.8), "the negative control: unmasked it is one"


def test_components_fall_short_each_for_itself():
    q, done = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.3]]), torch.tensor([[0, 2]])
    assert shortfall(q, done, None, (2, 3), 0.8).item() == pytest.approx(0.0 + 0.5)


def test_the_density_of_a_squashed_number_is_the_gaussians_over_the_slope():
    mean, log_std = torch.tensor([[0.5]]), torch.tensor([[math.log(2.0)]])
    number = torch.tensor([[math.tanh(1.5)]])
    gaussian = -0.5 * 0.25 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    expected = gaussian - math.log(1 - math.tanh(1.5) ** 2)
    assert squashed_log_prob(mean, log_std, number).item() == pytest.approx(expected, abs=1e-5)
    drawn = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(0.5, 2.0), [torch.distributions.TanhTransform()]
    )
    assert drawn.log_prob(number).item() == pytest.approx(expected, abs=1e-5)


def test_numbers_at_the_bounds_have_a_finite_density():
    mean = torch.zeros(1, 2, requires_grad=True)
    loss = -squashed_log_prob(mean, torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])).sum()
    loss.backward()
    assert mean.grad is not None
    assert loss.isfinite()
    assert mean.grad.tolist()[0] == pytest.approx([-math.atanh(0.999), math.atanh(0.999)], abs=1e-3)


def test_a_deterministic_actors_error_is_cross_entropy_and_half_the_square():
    spec = ActionSpec(choices=(2,), continuous=1, low=(-1.0,), high=(1.0,))
    params = torch.tensor([[0.0, math.log(3.0), 0.0]])
    action = Action(torch.tensor([[1]]), torch.tensor([[0.6]]))
    assert deterministic_error(spec, params, None, action).item() == pytest.approx(-math.log(0.75) + 0.18, abs=1e-6)
    only = torch.tensor([[False, True]])
    assert deterministic_error(spec, params, only, action).item() == pytest.approx(0.18, abs=1e-6)


def test_actions_agree_in_all_choices_and_nearly_in_all_numbers():
    done = Action(torch.tensor([[0, 1]] * 3), torch.tensor([[0.5, 1.0]] * 3))
    likeliest = Action(torch.tensor([[0, 1], [0, 0], [0, 1]]), torch.tensor([[0.55, 1.7], [0.5, 1.0], [0.3, 1.0]]))
    assert agrees(likeliest, done).tolist() == [True, False, False]


def test_a_discriminator_is_paid_for_telling_apart():
    demonstrated, played = discriminator_loss(torch.tensor([0.0, 2.0]), torch.tensor([0.0, 2.0]))
    assert demonstrated.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(-2))])
    assert played.tolist() == pytest.approx([math.log(2), math.log(1 + math.exp(2))])


def test_rewards_of_a_discriminator():
    logit = torch.tensor([-1.0, 0.0, 3.0])
    d = torch.sigmoid(logit)
    assert positive_reward(logit).tolist() == pytest.approx((-(1 - d).log()).tolist(), abs=1e-6)
    assert negative_reward(logit).tolist() == pytest.approx(d.log().tolist(), abs=1e-6)
    assert bounded_reward(logit).tolist() == pytest.approx((2 * d - 1).tolist(), abs=1e-6)
    assert positive_reward(torch.tensor(200.0)).item() == 200.0, "without overflow"


def test_slopes_of_one_are_not_penalised():
    slope = torch.tensor([[0.6, 0.8], [3.0, 0.0], [0.0, 0.0]], requires_grad=True)
    penalty = gradient_penalty(slope)
    penalty.sum().backward()
    assert penalty.tolist() == pytest.approx([0.0, 4.0, 1.0], abs=1e-5)
    assert slope.grad is not None
    assert slope.grad.isfinite().all(), "also where the slope is nothing"
