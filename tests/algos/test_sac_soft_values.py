"""SAC: soft values against literal numbers."""

import math

import pytest
import torch

from coterie.algos.sac import entropy, expected_q, soft_value
from coterie.math.action_sampling import choice_distribution


def test_entropy_is_exact_for_choices_and_sampled_for_numbers():
    prob = torch.tensor([0.5, 0.25, 0.25])
    assert entropy(prob, prob.log(), torch.tensor(0.0)).item() == pytest.approx(1.5 * math.log(2))
    assert entropy(prob, prob.log(), torch.tensor(-2.0)).item() == pytest.approx(1.5 * math.log(2) + 2)


def test_expected_q_of_components_is_summed():
    prob, q = torch.tensor([0.5, 0.5, 0.2, 0.8]), torch.tensor([1.0, 3.0, 10.0, 20.0])
    assert expected_q(prob, q).item() == pytest.approx(2 + 18)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_the_optimal_soft_policy_is_the_softmax_of_q(alpha):
    """V = alpha logsumexp(Q / alpha); every other policy has a lower value."""
    q, temperature = torch.tensor([1.0, 0.0, -2.0]), torch.tensor(alpha)
    prob, log_prob = choice_distribution((3,), q / alpha, None)
    best = soft_value(q, prob, entropy(prob, log_prob, torch.zeros(())), temperature).item()
    assert best == pytest.approx(alpha * math.log(sum(math.exp(x / alpha) for x in q.tolist())), abs=1e-5)
    for seed in range(20):
        logits = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        prob, log_prob = choice_distribution((3,), logits, None)
        assert soft_value(q, prob, entropy(prob, log_prob, torch.zeros(())), temperature).item() < best
