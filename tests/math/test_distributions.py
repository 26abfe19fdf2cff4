"""Distributions of discrete, multi-discrete, continuous and hybrid actions, with masks."""

import math

import pytest
import torch

from coterie.math.distributions import draw_noise, evaluate, floored, log_choices, sample
from coterie.types import Action, ActionSpec

SPECS = {
    "discrete": ActionSpec(choices=(4,)),
    "multi_discrete": ActionSpec(choices=(3, 2)),
    "continuous": ActionSpec(continuous=2, low=(-1, -1), high=(1, 1)),
    "hybrid": ActionSpec(choices=(3, 2), continuous=2, low=(-1, -1), high=(1, 1)),
}


def drawn(spec, rows=20_000, mask=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    params = torch.randn(spec.mask_size + spec.continuous, generator=generator).expand(rows, -1)
    log_std = torch.tensor([-0.5, 0.3]) if spec.continuous else None
    noise = draw_noise(spec, (rows,), generator, torch.device("cpu"))
    action, log_prob = sample(spec, params, log_std, mask, noise)
    return params, log_std, action, log_prob


@pytest.mark.parametrize("kind", SPECS)
def test_the_log_probability_noted_while_acting_is_the_one_computed_later(kind):
    spec = SPECS[kind]
    assert spec.kind == kind
    params, log_std, action, log_prob = drawn(spec)
    later, _ = evaluate(spec, params, log_std, None, action)
    torch.testing.assert_close(later, log_prob, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", SPECS)
def test_the_entropy_is_minus_the_mean_log_probability_of_samples(kind):
    params, log_std, action, log_prob = drawn(SPECS[kind])
    _, entropy = evaluate(SPECS[kind], params, log_std, None, action)
    assert -log_prob.mean().item() == pytest.approx(entropy[0].item(), abs=0.03)


def test_samples_have_the_frequencies_of_the_softmax():
    params, _, action, _ = drawn(SPECS["discrete"], rows=50_000)
    frequency = torch.bincount(action.discrete[:, 0], minlength=4) / 50_000
    torch.testing.assert_close(frequency, params[0].softmax(-1), atol=0.01, rtol=0)


def test_components_of_a_multi_discrete_action_are_summed():
    spec = SPECS["multi_discrete"]
    params = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0]])
    _, log_prob = sample(spec, params, None, None, None)
    assert log_prob.item() == pytest.approx(-math.log(6))


def test_the_greedy_action_is_the_most_likely_available_one():
    mask = torch.tensor([[True, True, False, True]])
    action, log_prob = sample(SPECS["discrete"], torch.tensor([[0.0, 1.0, 9.0, 0.5]]), None, mask, None)
    assert action.discrete.tolist() == [[1]]
    assert log_prob.item() == pytest.approx(1 - math.log(1 + math.e + math.exp(0.5)))


def test_masked_choices_are_never_drawn_and_get_no_gradient():
    spec = SPECS["multi_discrete"]
    mask = torch.tensor([True, False, True, False, True]).expand(20_000, -1)
    _, _, action, _ = drawn(spec, mask=mask)
    assert set(action.discrete[:, 0].tolist()) == {0, 2}
    assert set(action.discrete[:, 1].tolist()) == {1}
    params = torch.tensor([[0.3, float("nan"), 0.1, 1e6, 0.0]], requires_grad=True)
    log_prob, entropy = evaluate(spec, params, None, mask[:1], type(action)(action.discrete[:1]))
    (log_prob + entropy).sum().backward()
    assert params.grad is not None
    assert params.grad[0, 1] == 0
    assert params.grad[0, 3] == 0
    assert params.grad.isfinite().all()


def test_a_single_available_choice_has_no_entropy():
    mask = torch.tensor([[False, True, False, False]])
    action, log_prob = sample(SPECS["discrete"], torch.zeros(1, 4), None, mask, None)
    _, entropy = evaluate(SPECS["discrete"], torch.zeros(1, 4), None, mask, action)
    assert log_prob.item() == pytest.approx(0)
    assert entropy.item() == pytest.approx(0)


def test_the_gaussian_is_the_one_of_torch():
    spec = SPECS["continuous"]
    params, log_std, action, log_prob = drawn(spec, rows=5)
    reference = torch.distributions.Normal(params, log_std.exp().expand_as(params))
    torch.testing.assert_close(log_prob, reference.log_prob(action.continuous).sum(-1))
    torch.testing.assert_close(evaluate(spec, params, log_std, None, action)[1], reference.entropy().sum(-1))


# ------------------------------------------------------------------------------------------------ a floor of epsilon


def test_a_floor_mixes_with_uniform_draws_from_what_is_available():
    """0.7 pi + 0.3 / 2 of two available choices of three; the third is exactly zero."""
    spec = ActionSpec(choices=(3,))
    logits = torch.tensor([0.8, 0.2, 9.0]).log()
    mask = torch.tensor([True, True, False])
    mixed = log_choices(spec, floored(spec, logits, mask, 0.3), mask).exp()
    torch.testing.assert_close(mixed, torch.tensor([0.71, 0.29, 0.0]))
    assert mixed[2] == 0
    free = log_choices(spec, floored(spec, logits, None, 0.3), None).exp()
    torch.testing.assert_close(free, torch.tensor([0.156, 0.114, 0.73]))
    assert floored(spec, logits, mask, 0.0) is logits


def test_a_floor_holds_for_every_component_and_leaves_numbers_alone():
    spec = ActionSpec(choices=(2, 3), continuous=1, low=(-1,), high=(1,))
    params = torch.tensor([[50.0, 0.0, 0.0, 0.0, 50.0, 0.25]])
    mixed = floored(spec, params, None, 0.3)
    expected = torch.tensor([[0.85, 0.15, 0.1, 0.1, 0.8]])
    torch.testing.assert_close(mixed[:, :5].exp(), expected)
    assert mixed[0, 5] == 0.25
    action = Action(torch.tensor([[1, 2]]), torch.tensor([[0.25]]))
    log_prob, _ = evaluate(spec, mixed, torch.zeros(1), None, action)
    assert log_prob.item() == pytest.approx(math.log(0.15 * 0.8) - 0.5 * math.log(2 * math.pi), abs=1e-5)


def test_a_floor_sends_finite_gradients_through_masks():
    spec, mask = ActionSpec(choices=(3,)), torch.tensor([[True, False, True]])
    logits = torch.tensor([[90.0, 0.0, -90.0]], requires_grad=True)
    log_p = log_choices(spec, floored(spec, logits, mask, 0.1), mask)
    (log_p[0, 2] - (log_p.exp() * log_p).sum()).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] == 0
