"""COMA: counterfactual advantages against literal numbers, losses of several components by loops."""

import math
import statistics

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.functional.counterfactual import (
    coma_loss,
    component_mean,
    counterfactual_advantage,
    critic_loss,
    sum_by_component,
)
from coterie.functional.policy_gradient import choice_log_probs
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


PARTS = [[slice(0, 3), slice(3, 5)], [slice(0, 2)]]
"""Choices of each component of two agents, of which the second has one component, and padding."""
COMPONENT = torch.zeros(2, 5, 2)
for _agent, _parts in enumerate(PARTS):
    for _k, _part in enumerate(_parts):
        COMPONENT[_agent, _part, _k] = 1
VALID = torch.tensor([[[True, True], [True, False]], [[False, True], [True, True]], [[False, False], [True, False]]])


def random_batch():
    """Returns log-probabilities, very negative for padding, values, and choices one-hot [3, 2, 2, 5]."""
    generator = torch.Generator().manual_seed(0)
    log_pi, taken = torch.full((3, 2, 2, 5), -1e9), torch.zeros(3, 2, 2, 5)
    for i, parts in enumerate(PARTS):
        for part in parts:
            logits = torch.randn(3, 2, part.stop - part.start, generator=generator)
            log_pi[:, :, i, part] = logits.log_softmax(-1)
            taken[:, :, i, part] = torch.nn.functional.one_hot(logits.roll(1, -1).argmax(-1), logits.shape[-1]).float()
    return log_pi, 3 * torch.randn(3, 2, 2, 5, generator=generator), taken


@pytest.mark.parametrize("normalize", [False, True])
def test_losses_of_several_components_by_loops(normalize):
    """Advantages are normalized over all components that exist; an agent's mean is over its own components."""
    log_pi, q, taken = random_batch()
    advantages, log_probs, entropies, highest = [], [], [], []
    for t, b, i in VALID.nonzero().tolist():
        own, number = [], []
        for part in PARTS[i]:
            pi, values, choice = log_pi[t, b, i, part].exp(), q[t, b, i, part], int(taken[t, b, i, part].argmax())
            own.append((values[choice] - (pi * values).sum()).item())
            number.append(log_pi[t, b, i, part][choice].item())
        advantages.append(own)
        log_probs.append(number)
        probs = [p for part in PARTS[i] for p in log_pi[t, b, i, part].exp().tolist()]
        entropies.append(-sum(p * math.log(p) for p in probs))
        highest.append(max(probs))
    flat = [x for own in advantages for x in own]
    mean, std = statistics.fmean(flat), statistics.pstdev(flat)
    scaled = [[(x - mean) / std for x in own] for own in advantages] if normalize else advantages
    products = [sum(a * p for a, p in zip(own, ps, strict=True)) for own, ps in zip(scaled, log_probs, strict=True)]
    terms = coma_loss(log_pi, q, taken, VALID, COMPONENT, normalize_advantage=normalize)
    assert terms.policy.item() == pytest.approx(-statistics.fmean(products), rel=1e-5)
    assert terms.advantage.item() == pytest.approx(statistics.fmean(map(statistics.fmean, advantages)), rel=1e-5)
    assert terms.entropy.item() == pytest.approx(statistics.fmean(entropies), rel=1e-5)
    assert terms.pi_max.item() == pytest.approx(statistics.fmean(highest), rel=1e-5)


def test_losses_of_a_critic_of_several_components_by_loops():
    _, q, taken = random_batch()
    target = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1))
    squares, errors, values, targets = [], [], [], []
    for t, b, i in VALID.nonzero().tolist():
        own = [q[t, b, i, part][int(taken[t, b, i, part].argmax())].item() for part in PARTS[i]]
        goal = target[t, b, i].item()
        squares.append(statistics.fmean((x - goal) ** 2 for x in own))
        errors.append(statistics.fmean(abs(x - goal) for x in own))
        values.append(statistics.fmean(own))
        targets.append(goal)
    terms = critic_loss(q, taken, target, VALID, COMPONENT)
    found = [terms.loss, terms.td_error_abs, terms.q_taken, terms.target]
    assert [x.item() for x in found] == pytest.approx(
        [*map(statistics.fmean, (squares, errors, values, targets))], rel=1e-5
    )


def test_means_are_over_the_components_that_an_agent_has():
    x = torch.tensor([[[2.0, 4.0], [5.0, 100.0]], [[1.0, 1.0], [7.0, -9.0]]])
    assert component_mean(x, COMPONENT).tolist() == [[3.0, 5.0], [1.0, 7.0]]
    assert component_mean(x[..., :1], None).tolist() == [[2.0, 5.0], [1.0, 7.0]]
