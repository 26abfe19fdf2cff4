"""COMA: counterfactual advantages against literal numbers."""

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.math.counterfactual import counterfactual_advantage, sum_by_component
from coterie.math.distributions import choice_log_probs
from coterie.policies.epsilon_soft import mix_with_uniform

CLIMBING = torch.tensor([[11.0, -30, 0], [-30, 7, 0], [0, 6, 5]])


def test_counterfactual_advantages_of_the_climbing_game():
    """Agent 1 chooses the row: for each column, its three choices relative to their mean."""
    q = CLIMBING.T.repeat_interleave(3, 0)  # [9, 3]: the value of each row, column by column
    taken = torch.eye(3).repeat(3, 1)
    found = counterfactual_advantage(q, torch.full((9, 3), 1 / 3), taken).view(3, 3).T
    known = [[17.3333, -24.3333, -1.6667], [-23.6667, 12.6667, -1.6667], [6.3333, 11.6667, 3.3333]]
    torch.testing.assert_close(found, torch.tensor(known), atol=1e-4, rtol=0)


def test_expected_values_of_the_climbing_game_under_uniform_play():
    pi = torch.full((3,), 1 / 3)
    assert float(pi @ CLIMBING @ pi) == pytest.approx(-3.4444, abs=1e-4)
    assert (CLIMBING @ pi).tolist() == pytest.approx([-6.3333, -7.6667, 3.6667], abs=1e-4)
    assert (pi @ CLIMBING).tolist() == pytest.approx([-6.3333, -5.6667, 1.6667], abs=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_mean_counterfactual_advantage_over_the_policy_is_zero(right):
    """With masks and uniform mixing. Negative control: a baseline of the policy before mixing."""
    generator = torch.Generator().manual_seed(0)
    spec, mask = ActionSpec(choices=(4,)), torch.rand(200, 4, generator=generator) < 0.6
    mask[:, 1] = True
    logits = 2 * torch.randn(200, 4, generator=generator)
    q = torch.where(mask, 5 * torch.randn(200, 4, generator=generator), 1e9)
    pi = choice_log_probs(spec, mix_with_uniform(spec, logits, mask, 0.3), mask).exp()
    assert torch.equal(pi == 0, ~mask)
    other = pi if right else choice_log_probs(spec, logits, mask).exp()
    every = torch.eye(4).expand(200, 4, 4)
    advantage = counterfactual_advantage(q.unsqueeze(1), other.unsqueeze(1), every)[..., 0]
    mean = torch.where(mask, pi * torch.where(mask, advantage, 0.0), 0.0).sum(-1)
    assert (mean.abs().max() < 1e-5) == right


def test_advantages_are_summed_by_component():
    """Two agents with 3 + 2 and 2 choices: the second has one component, and padding."""
    component = torch.zeros(2, 5, 2)
    component[0, :3, 0] = component[0, 3:, 1] = component[1, :2, 0] = 1
    x = torch.arange(1.0, 11.0).view(2, 5)
    assert sum_by_component(x, component).tolist() == [[6, 9], [13, 0]]
    assert sum_by_component(x, None).tolist() == [[15], [40]]
    taken = torch.tensor([[0.0, 1, 0, 1, 0], [0, 1, 0, 0, 0]])
    pi = torch.tensor([[0.2, 0.3, 0.5, 0.5, 0.5], [0.5, 0.5, 0, 0, 0]])
    found = counterfactual_advantage(x, pi, taken, component)
    torch.testing.assert_close(found, torch.tensor([[-0.3, -0.5], [0.5, 0.0]]))
