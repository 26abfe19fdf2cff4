"""SAC: soft values against literal numbers."""

import math

import pytest
import torch

from coterie.algos.sac import actor_loss, expected_q


def test_expected_q_of_components_is_summed():
    prob, q = torch.tensor([0.5, 0.5, 0.2, 0.8]), torch.tensor([1.0, 3.0, 10.0, 20.0])
    assert expected_q(prob, q).item() == pytest.approx(2 + 18)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_the_optimal_soft_policy_is_the_softmax_of_q(alpha):
    """Its loss is -V = -alpha logsumexp(Q / alpha); that of every other policy is higher."""
    q, temperature = torch.tensor([1.0, 0.0, -2.0]), torch.tensor([alpha])
    there = torch.ones(1, 1, 1, dtype=torch.bool)

    def loss(prob):
        entropy = -(prob * prob.log()).sum().expand(1, 1, 1)
        return actor_loss(q.expand(1, 1, 1, 3), prob.expand(1, 1, 1, 3), entropy, temperature, there).item()

    best = loss((q / alpha).softmax(-1))
    assert best == pytest.approx(-alpha * math.log(sum(math.exp(x / alpha) for x in q.tolist())), abs=1e-5)
    for seed in range(20):
        logits = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        assert loss(logits.softmax(-1)) > best
