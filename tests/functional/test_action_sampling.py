"""Squashed Gaussians and choices: literal numbers and identities; `test_distributions.py` tests other samples."""

import math

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.functional import policy_gradient
from coterie.functional.policy_gradient import draw_noise, sample_action
from coterie.nets.squashed_actions import bounded_log_std, choice_distribution, max_entropy, sample_squashed

HYBRID = ActionSpec(choices=(3, 2), continuous=2, low=(-1, -1), high=(1, 1))
ONE_COMPONENT = ActionSpec(choices=(4,))


def test_squashed_sample_and_its_log_density():
    """u = 0.3 + 0.5 x 0.7 = 0.65, log N(u) = -0.470791, log(1 - tanh(u)^2) = -0.395722."""
    action, density = sample_squashed(torch.tensor([0.3]), torch.tensor([math.log(0.5)]), torch.tensor([0.7]))
    assert action.item() == pytest.approx(0.571670, abs=1e-6)
    assert density.item() == pytest.approx(-0.470791 + 0.395722, abs=1e-5)


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


def test_masked_choices_have_probability_and_log_prob_zero():
    logits = torch.tensor([1.0, 2.0, 5.0, 3.0, 1.0]).log().requires_grad_()
    mask = torch.tensor([True, True, False, True, True])
    prob, log_prob = choice_distribution((3, 2), logits, mask)
    assert prob.tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0.75, 0.25])
    assert log_prob.tolist() == pytest.approx([math.log(1 / 3), math.log(2 / 3), 0, math.log(0.75), math.log(0.25)])
    (prob * (torch.arange(5.0) - log_prob)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[2] == 0
    assert (logits.grad[[0, 1, 3, 4]] != 0).all()
    free, _ = choice_distribution((3, 2), logits, None)
    assert free.tolist() == pytest.approx([0.125, 0.25, 0.625, 0.75, 0.25])


def test_max_entropy_counts_available_choices():
    """Nothing that is available counts as one choice."""
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()
    assert max_entropy((3, 2), mask).tolist() == pytest.approx([math.log(6), math.log(2), 0, math.log(2)])


def test_noise_is_gumbel_for_choices_and_normal_for_numbers():
    """The same draws by hand; -log of an exponential variate is Gumbel."""
    noise = draw_noise(HYBRID, (3, 4), torch.Generator().manual_seed(5), torch.device("cpu"))
    draw = torch.Generator().manual_seed(5)
    exponential = torch.empty(3, 4, 5).exponential_(generator=draw)
    normal = torch.randn(3, 4, 2, generator=draw)
    torch.testing.assert_close(noise, torch.cat([-exponential.log(), normal], -1))
    for spec, size in ((ONE_COMPONENT, 4), (ActionSpec(continuous=2, low=(-1, -1), high=(1, 1)), 2)):
        assert draw_noise(spec, (3, 4), torch.Generator(), torch.device("cpu")).shape == (3, 4, size)


@pytest.mark.parametrize("with_noise", [False, True])
@pytest.mark.parametrize("spec", [HYBRID, ONE_COMPONENT], ids=["hybrid", "one component"])
def test_every_agent_of_a_batch_takes_its_own_action(spec, with_noise):
    """Three environments of two agents, each compared with its formula: the highest log-probability plus noise among
    available choices, and mean + std x noise. The number of environments equals a component's number of choices."""
    draw = torch.Generator().manual_seed(0)
    size = spec.mask_size + spec.continuous
    params, noise = torch.randn(3, 2, size, generator=draw), torch.randn(3, 2, size, generator=draw)
    mask = torch.tensor([[True, False, True, True, True], [False, True, True, False, True]])[:, : spec.mask_size]
    mask, log_std = mask.expand(3, 2, -1), torch.tensor([-0.5, 0.3])
    given = {"log_std": log_std if spec.continuous else None, "mask": mask, "noise": noise if with_noise else None}
    action, log_prob = sample_action(spec, params, **given)
    assert action.discrete is not None
    assert (action.discrete.shape, log_prob.shape) == ((3, 2, len(spec.choices)), (3, 2))
    for i, j in ((i, j) for i in range(3) for j in range(2)):
        p, n, expected, start = params[i, j].tolist(), (noise * with_noise)[i, j].tolist(), 0.0, 0
        for k, width in enumerate(spec.choices):
            available = [a for a in range(start, start + width) if mask[i, j, a]]
            best = max(available, key=lambda a, p=p, n=n: p[a] + n[a])
            assert action.discrete[i, j, k] == best - start
            expected += p[best] - math.log(sum(math.exp(p[a]) for a in available))
            start += width
        for c in range(spec.continuous):
            s = log_std[c].item()
            assert action.continuous is not None
            assert action.continuous[i, j, c].item() == pytest.approx(p[start + c] + n[start + c] * math.exp(s))
            expected += -0.5 * n[start + c] ** 2 - s - 0.5 * math.log(2 * math.pi)
        assert log_prob[i, j].item() == pytest.approx(expected, abs=1e-5)


def test_a_kernel_samples_if_kernels_are_on_and_there_are_choices_alone(monkeypatch):
    """If it does not support the shapes, it returns None."""
    calls, answers = [], [(torch.tensor([[3]]), torch.tensor([-0.5])), None]

    def sample(*given):
        calls.append(given)
        return answers.pop(0)

    monkeypatch.setattr(policy_gradient.fused, "sample_categorical", sample)
    params, hybrid, noise = torch.tensor([[0.0, 9.0, 0.0, 0.0]]), torch.zeros(1, 7), torch.ones(1, 4)
    for on, count in ((False, 0), (True, 2)):
        for choice, density in ((3, -0.5), (1, -0.00037))[not on :]:
            action, log_prob = sample_action(ONE_COMPONENT, params, log_std=None, mask=None, noise=noise, kernels=on)
            assert (action.discrete.tolist(), action.continuous) == ([[choice]], None)
            assert log_prob.tolist() == pytest.approx([density], abs=1e-5)
        action, _ = sample_action(HYBRID, hybrid, log_std=torch.zeros(2), mask=None, noise=None, kernels=on)
        assert (action.discrete.tolist(), action.continuous.tolist()) == ([[0, 0]], [[0.0, 0.0]])
        assert len(calls) == count
    assert calls[0][0] is params
    assert calls[0][1:] == (None, noise, (4,))


def test_squashed_samples_and_distributions_of_a_batch_are_those_of_its_entries():
    draw = torch.Generator().manual_seed(1)
    mean, log_std, noise = torch.randn(3, 3, 2, 2, generator=draw)
    found, density = sample_squashed(mean, log_std, noise)
    logits, mask = torch.randn(3, 2, 5, generator=draw), torch.rand(3, 2, 5, generator=draw) < 0.7
    mask[..., 1] = mask[..., 4] = True
    prob, log_prob = choice_distribution((3, 2), logits, mask)
    entropy = max_entropy((3, 2), mask)
    assert (found.shape, density.shape, prob.shape, entropy.shape) == ((3, 2, 2), (3, 2), (3, 2, 5), (3, 2))
    for place in ((i, j) for i in range(3) for j in range(2)):
        alone = sample_squashed(mean[place], log_std[place], noise[place])
        torch.testing.assert_close((found[place], density[place]), alone)
        alone = choice_distribution((3, 2), logits[place], mask[place])
        torch.testing.assert_close((prob[place], log_prob[place]), alone)
        counts = mask[place][:3].sum().item(), mask[place][3:].sum().item()
        assert entropy[place].item() == pytest.approx(math.log(counts[0] * counts[1]), abs=1e-6)
    one, _ = choice_distribution((5,), logits, None)
    torch.testing.assert_close(one, logits.softmax(-1))
