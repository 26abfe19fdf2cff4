"""Distributions of discrete, multi-discrete, continuous and hybrid actions, with masks."""

import math

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional import policy_gradient
from coterie.functional.policy_gradient import (
    choice_log_probs,
    component_log_probs,
    draw_noise,
    log_prob_and_entropy,
    sample_action,
)

SPECS = {
    "discrete": ActionSpec(choices=(4,)),
    "multi_discrete": ActionSpec(choices=(3, 2)),
    "continuous": ActionSpec(continuous=2, low=(-1, -1), high=(1, 1)),
    "hybrid": ActionSpec(choices=(3, 2), continuous=2, low=(-1, -1), high=(1, 1)),
}


def sample_many(spec, samples=20_000, mask=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    params = torch.randn(spec.mask_size + spec.continuous, generator=generator).expand(samples, -1)
    log_std = torch.tensor([-0.5, 0.3]) if spec.continuous else None
    noise = draw_noise(spec, (samples,), generator, torch.device("cpu"))
    action, log_prob = sample_action(spec, params, log_std=log_std, mask=mask, noise=noise)
    return params, log_std, action, log_prob


@pytest.mark.parametrize("kind", SPECS)
def test_log_prob_while_sampling_equals_log_prob_computed_later(kind):
    spec = SPECS[kind]
    assert spec.kind == kind
    params, log_std, action, log_prob = sample_many(spec)
    later, _ = log_prob_and_entropy(spec, params, action, log_std=log_std, mask=None)
    torch.testing.assert_close(later, log_prob, atol=1e-6, rtol=0)


def test_sample_frequencies_match_the_softmax():
    params, _, action, _ = sample_many(SPECS["discrete"], samples=50_000)
    frequency = torch.bincount(action.discrete[:, 0], minlength=4) / 50_000
    torch.testing.assert_close(frequency, params[0].softmax(-1), atol=0.01, rtol=0)


def test_without_noise_the_most_likely_available_choice_is_taken():
    mask = torch.tensor([[True, True, False, True]])
    action, log_prob = sample_action(
        SPECS["discrete"], torch.tensor([[0.0, 1.0, 9.0, 0.5]]), log_std=None, mask=mask, noise=None
    )
    assert action.discrete.tolist() == [[1]]
    assert log_prob.item() == pytest.approx(1 - math.log(1 + math.e + math.exp(0.5)))


def test_masked_choices_are_never_sampled_and_get_no_gradient():
    spec = SPECS["multi_discrete"]
    mask = torch.tensor([True, False, True, False, True]).expand(20_000, -1)
    _, _, action, _ = sample_many(spec, mask=mask)
    assert set(action.discrete[:, 0].tolist()) == {0, 2}
    assert set(action.discrete[:, 1].tolist()) == {1}
    params = torch.tensor([[0.3, float("nan"), 0.1, 1e6, 0.0]], requires_grad=True)
    log_prob, entropy = log_prob_and_entropy(
        spec, params, type(action)(action.discrete[:1]), log_std=None, mask=mask[:1]
    )
    (log_prob + entropy).sum().backward()
    assert params.grad is not None
    assert params.grad[0, 1] == 0
    assert params.grad[0, 3] == 0
    assert params.grad.isfinite().all()


def test_a_single_available_choice_has_zero_entropy():
    mask = torch.tensor([[False, True, False, False]])
    action, log_prob = sample_action(SPECS["discrete"], torch.zeros(1, 4), log_std=None, mask=mask, noise=None)
    _, entropy = log_prob_and_entropy(SPECS["discrete"], torch.zeros(1, 4), action, log_std=None, mask=mask)
    assert log_prob.item() == pytest.approx(0)
    assert entropy.item() == pytest.approx(0)


@pytest.mark.parametrize("kind", SPECS)
def test_log_probs_and_entropies_of_a_batch_are_those_of_its_entries(kind):
    """Five environments of two agents, by the formulas in plain Python; five is also the sum of choices."""
    spec, draw = SPECS[kind], torch.Generator().manual_seed(0)
    params = torch.randn(5, 2, spec.mask_size + spec.continuous, generator=draw)
    mask = torch.rand(5, 2, spec.mask_size, generator=draw) < 0.5
    choice = [torch.randint(n, (5, 2), generator=draw) for n in spec.choices]
    for part, index in zip(mask.split(spec.choices, -1), choice, strict=True):
        part.scatter_(-1, index.unsqueeze(-1), True)
    discrete = torch.stack(choice, -1) if choice else None
    number = torch.randn(5, 2, 2, generator=draw) if spec.continuous else None
    log_std = torch.randn(5, 2, 2, generator=draw) if spec.continuous else None
    log_prob, entropy = log_prob_and_entropy(
        spec, params, Action(discrete, number), log_std=log_std, mask=mask if choice else None
    )
    parts = component_log_probs(spec, params, mask if choice else None)
    assert log_prob.shape == entropy.shape == (5, 2)
    for i, j in ((i, j) for i in range(5) for j in range(2)):
        p, start, log_p, h = params[i, j].tolist(), 0, 0.0, 0.0
        for k, width in enumerate(spec.choices):
            available = [a for a in range(start, start + width) if mask[i, j, a]]
            total = math.log(sum(math.exp(p[a]) for a in available))
            log_p += p[start + int(choice[k][i, j])] - total
            h -= sum(math.exp(p[a] - total) * (p[a] - total) for a in available)
            for a in available:
                assert parts[k][i, j, a - start].item() == pytest.approx(p[a] - total, abs=1e-5)
            start += width
        if number is not None and log_std is not None:
            for x, mean, s in zip(number[i, j].tolist(), p[start:], log_std[i, j].tolist(), strict=True):
                log_p += -0.5 * ((x - mean) / math.exp(s)) ** 2 - s - 0.5 * math.log(2 * math.pi)
                h += s + 0.5 * math.log(2 * math.pi * math.e)
        assert log_prob[i, j].item() == pytest.approx(log_p, rel=1e-5, abs=1e-5)
        assert entropy[i, j].item() == pytest.approx(h, abs=1e-5)
    if choice:
        torch.testing.assert_close(choice_log_probs(spec, params, mask), torch.cat(parts, -1))


def test_a_kernel_computes_both_if_kernels_are_on_and_there_are_choices_alone(monkeypatch):
    """If it does not support the shapes, it returns None."""
    fused, calls, answers = (torch.tensor([-7.0]), torch.tensor([3.0])), [], []

    def categorical(*given):
        calls.append(given)
        return answers.pop(0)

    monkeypatch.setattr(policy_gradient.fused, "categorical", categorical)
    params, choice = torch.zeros(1, 4), Action(torch.tensor([[2]]), None)
    uniform = (pytest.approx(-math.log(4)), pytest.approx(math.log(4)))
    for on, answer, expected in ((False, fused, uniform), (True, None, uniform), (True, fused, (-7.0, 3.0))):
        answers[:] = [answer]
        found = log_prob_and_entropy(SPECS["discrete"], params, choice, log_std=None, mask=None, kernels=on)
        assert tuple(x.item() for x in found) == expected
        hybrid = Action(torch.tensor([[0, 1]]), torch.zeros(1, 2))
        options = {"log_std": torch.zeros(2), "mask": None, "kernels": on}
        log_prob_and_entropy(SPECS["hybrid"], torch.zeros(1, 7), hybrid, **options)
        assert answers == [] if on else [fused]
    assert [given[3] for given in calls] == [(4,), (4,)]
    assert calls[0][0] is params
