"""Squashed Gaussians: literal numbers and identities."""

import math

import pytest
import torch

from coterie.math.squashed_gaussian import bounded_log_std, sample_squashed


def test_squashed_sample_and_its_log_density():
    """u = 0.3 + 0.5 x 0.7 = 0.65, log N(u) = -0.470791, log(1 - tanh(u)^2) = -0.395722."""
    action, density = sample_squashed(torch.tensor([0.3]), torch.tensor([math.log(0.5)]), torch.tensor([0.7]))
    assert action.item() == pytest.approx(0.571670, abs=1e-6)
    assert density.item() == pytest.approx(-0.470791 + 0.395722, abs=1e-5)


def test_log_densities_of_numbers_are_summed():
    mean, log_std, noise = torch.tensor([0.1, -0.4]), torch.tensor([-0.2, 0.3]), torch.tensor([0.5, -1.0])
    _, both = sample_squashed(mean, log_std, noise)
    apart = [sample_squashed(mean[i : i + 1], log_std[i : i + 1], noise[i : i + 1])[1] for i in range(2)]
    assert both.item() == pytest.approx(sum(x.item() for x in apart), abs=1e-6)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.3), (0.8, 0.5), (-0.3, 1.0)])
def test_the_density_integrates_to_one(mean, std):
    """On a grid of actions; the control leaves the bend of the tanh out."""
    action = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    u = torch.atanh(action)
    noise = ((u - mean) / std).unsqueeze(-1)
    drawn, density = sample_squashed(torch.full_like(noise, mean), torch.full_like(noise, math.log(std)), noise)
    torch.testing.assert_close(drawn.squeeze(-1), action, atol=1e-9, rtol=0)
    assert torch.trapezoid(density.exp(), action).item() == pytest.approx(1, abs=1e-3)
    unbent = density + (1 - action.square()).log()
    assert torch.trapezoid(unbent.exp(), action).item() < 0.95


def test_extreme_samples_have_finite_densities_and_gradients():
    """Where 1 - tanh(u)^2 is 0 in float32; negative control: its logarithm is infinite."""
    mean = torch.tensor([30.0, -30.0], requires_grad=True)
    action, density = sample_squashed(mean, torch.zeros(2), torch.zeros(2))
    density.backward()
    assert (1 - action.square()).log().isinf().all()
    assert density.isfinite()
    assert mean.grad is not None
    assert mean.grad.tolist() == pytest.approx([2, -2])


def test_log_std_is_bounded_with_a_nonzero_gradient():
    raw = torch.tensor([0.0, -5.0, 5.0, -100.0, 100.0], requires_grad=True)
    log_std = bounded_log_std(raw)
    log_std[:3].sum().backward()
    assert log_std.tolist() == pytest.approx([0, -5, 2, -5, 2], abs=1e-2)
    assert raw.grad is not None
    assert (raw.grad[:3] > 0).all()
