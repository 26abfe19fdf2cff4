"""Distributions of discrete, multi-discrete, continuous and hybrid actions, with masks."""

import math

import pytest
import torch

from coterie.math.distributions import draw_noise, evaluate, sample
from coterie.types import ActionSpec

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
