"""KL divergences, Fisher information and conjugate gradients, against literal numbers, torch and a direct solution."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, Normal
from torch.distributions import kl_divergence as reference

from coterie.core.specs import ActionSpec
from coterie.functional.trust_region import conjugate_gradient, fisher_product, kl_divergence

SPECS = {
    "discrete": ActionSpec(choices=(3,)),
    "multi_discrete": ActionSpec(choices=(3, 2)),
    "continuous": ActionSpec(continuous=2),
    "hybrid": ActionSpec(choices=(2,), continuous=1),
}


def draw(spec, seed, rows=4):
    g = torch.Generator().manual_seed(seed)
    params = torch.randn(rows, spec.mask_size + spec.continuous, generator=g, dtype=torch.float64)
    log_std = torch.randn(rows, spec.continuous, generator=g, dtype=torch.float64) / 2 if spec.continuous else None
    return params, log_std


def test_the_categorical_divergence_weights_log_ratios_with_old_probabilities():
    old, new = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    found = kl_divergence(ActionSpec(choices=(2,)), (old, None), (new, None), None)
    assert found.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-7)  # 0.1438


def test_the_gaussian_divergence_of_shifted_and_widened_distributions():
    spec, one = ActionSpec(continuous=1), torch.ones(1)
    shifted = kl_divergence(spec, (0 * one, 0 * one), (one, 0 * one), None)
    widened = kl_divergence(spec, (0 * one, 0 * one), (0 * one, math.log(2) * one), None)
    assert shifted.item() == 0.5
    assert widened.item() == pytest.approx(math.log(2) - 3 / 8, abs=1e-6)


@pytest.mark.parametrize("kind", SPECS)
def test_divergences_are_sums_of_those_of_torch(kind):
    spec = SPECS[kind]
    old, new = draw(spec, 0), draw(spec, 1)
    expected = torch.zeros(4, dtype=torch.float64)
    for p, q in zip(*(x[0][:, : spec.mask_size].split(spec.choices, -1) for x in (old, new)), strict=True):
        expected += reference(Categorical(logits=p), Categorical(logits=q))
    if spec.continuous:
        p, q = (Normal(params[:, spec.mask_size :], log_std.exp()) for params, log_std in (old, new))
        expected += reference(p, q).sum(-1)
    torch.testing.assert_close(kl_divergence(spec, old, new, None), expected)


def test_masked_choices_change_neither_divergence_nor_information():
    spec, mask = SPECS["discrete"], torch.tensor([True, False, True])
    old, new = torch.tensor([0.0, 5.0, 0.0]), torch.tensor([0.0, -7.0, 1.0])
    two = ActionSpec(choices=(2,))
    expected = kl_divergence(two, (old[mask], None), (new[mask], None), None)
    torch.testing.assert_close(kl_divergence(spec, (old, None), (new, None), mask), expected)
    direction = torch.tensor([1.0, 9.0, 0.0])
    product, _ = fisher_product(spec, (old, None), (direction, None), mask)
    torch.testing.assert_close(product, torch.tensor([0.25, 0.0, -0.25]))


@pytest.mark.parametrize("kind", SPECS)
def test_the_information_is_the_second_derivative_of_the_divergence(kind):
    spec = SPECS[kind]
    params, log_std = (None if x is None else x[0] for x in draw(spec, 0))
    at = torch.cat([params, params[:0] if log_std is None else log_std])
    split = len(params)

    def divergence(x):
        new = (x[:split], None if log_std is None else x[split:])
        return kl_divergence(spec, (params, log_std), new, None)

    hessian = torch.autograd.functional.hessian(divergence, at)
    direction = torch.randn(len(at), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    halves = (direction[:split], None if log_std is None else direction[split:])
    product = torch.cat([x for x in fisher_product(spec, (params, log_std), halves, None) if x is not None])
    torch.testing.assert_close(product, hessian @ direction)


def test_conjugate_gradients_find_the_solution_of_a_direct_solver():
    g = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=g, dtype=torch.float64)
    matrix, b = root @ root.T + torch.eye(12), torch.randn(12, generator=g, dtype=torch.float64)
    exact = torch.linalg.solve(matrix, b)
    torch.testing.assert_close(conjugate_gradient(matrix.mv, b, 30), exact, rtol=1e-5, atol=1e-5)
    assert (conjugate_gradient(matrix.mv, b, 3) - exact).norm() > 0.1 * exact.norm()


def test_conjugate_gradients_stay_at_a_solution_that_they_have_found():
    matrix, b = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([2.0, 4.0])
    torch.testing.assert_close(conjugate_gradient(matrix.mv, b, 50), torch.tensor([2.0, 1.0]))
    assert conjugate_gradient(matrix.mv, torch.zeros(2), 5).tolist() == [0.0, 0.0]
