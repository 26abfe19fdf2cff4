"""Behavior-cloning losses against literal numbers."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.behavior_cloning import actions_match, deterministic_loss, large_margin_loss, squashed_log_prob


def test_large_margin_loss_is_the_violation_of_the_margin():
    q = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.9, 0.0], [1.0, 1.0, 1.0]])
    demonstrated = torch.tensor([[0], [1], [2]])
    found = large_margin_loss(q, demonstrated, None, choices=(3,), margin=0.8)
    assert found.tolist() == pytest.approx([0.0, 0.0, 0.8])
    assert large_margin_loss(
        q, torch.tensor([[1], [0], [2]]), None, choices=(3,), margin=0.8
    ).tolist() == pytest.approx([1.8, 1.7, 0.8])


def test_masked_choices_do_not_enter_the_maximum():
    q, demonstrated = torch.tensor([[0.0, 5.0, 0.5]], requires_grad=True), torch.tensor([[0]])
    mask = torch.tensor([[True, False, True]])
    loss = large_margin_loss(q, demonstrated, mask, choices=(3,), margin=0.8)
    loss.sum().backward()
    assert loss.item() == pytest.approx(1.3)
    assert q.grad is not None
    assert q.grad.tolist() == [[-1.0, 0.0, 1.0]]
    assert large_margin_loss(q, demonstrated, None, choices=(3,), margin=0.8).item() == pytest.approx(5.8), (
        "negative control: without the mask it does"
    )


def test_losses_of_components_are_summed():
    q, demonstrated = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.3]]), torch.tensor([[0, 2]])
    assert large_margin_loss(q, demonstrated, None, choices=(2, 3), margin=0.8).item() == pytest.approx(0.0 + 0.5)


def test_squashed_log_prob_matches_torch():
    mean, log_std = torch.tensor([[0.5]]), torch.tensor([[math.log(2.0)]])
    number = torch.tensor([[math.tanh(1.5)]])
    gaussian = -0.5 * 0.25 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    expected = gaussian - math.log(1 - math.tanh(1.5) ** 2)
    assert squashed_log_prob(mean, log_std, number).item() == pytest.approx(expected, abs=1e-5)
    drawn = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(0.5, 2.0), [torch.distributions.TanhTransform()]
    )
    assert drawn.log_prob(number).item() == pytest.approx(expected, abs=1e-5)


def test_actions_at_the_bounds_have_a_finite_density():
    mean = torch.zeros(1, 2, requires_grad=True)
    loss = -squashed_log_prob(mean, torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])).sum()
    loss.backward()
    assert mean.grad is not None
    assert loss.isfinite()
    assert mean.grad.tolist()[0] == pytest.approx([-math.atanh(0.999), math.atanh(0.999)], abs=1e-3)


def test_deterministic_loss_is_cross_entropy_plus_half_the_squared_error():
    spec = ActionSpec(choices=(2,), continuous=1, low=(-1.0,), high=(1.0,))
    params = torch.tensor([[0.0, math.log(3.0), 0.0]])
    action = Action(torch.tensor([[1]]), torch.tensor([[0.6]]))
    assert deterministic_loss(spec, params, None, action).item() == pytest.approx(-math.log(0.75) + 0.18, abs=1e-6)
    only = torch.tensor([[False, True]])
    assert deterministic_loss(spec, params, only, action).item() == pytest.approx(0.18, abs=1e-6)


def test_actions_match_in_all_choices_and_in_numbers_within_the_tolerance():
    demonstrated = Action(torch.tensor([[0, 1]] * 3), torch.tensor([[0.5, 1.0]] * 3))
    greedy = Action(torch.tensor([[0, 1], [0, 0], [0, 1]]), torch.tensor([[0.55, 1.7], [0.5, 1.0], [0.3, 1.0]]))
    assert actions_match(greedy, demonstrated).tolist() == [True, False, False]


def test_losses_of_a_batch_are_those_of_its_entries():
    """Two environments of three agents, two components and two numbers; the formulas in plain Python."""
    draw = torch.Generator().manual_seed(0)
    spec = ActionSpec(choices=(2, 3), continuous=2, low=(-1.0, -1.0), high=(1.0, 1.0))
    params, mask = torch.randn(2, 3, 7, generator=draw), torch.rand(2, 3, 5, generator=draw) < 0.6
    choice = torch.stack([torch.randint(n, (2, 3), generator=draw) for n in spec.choices], -1)
    mask[..., :2] |= torch.nn.functional.one_hot(choice[..., 0], 2).bool()
    mask[..., 2:] |= torch.nn.functional.one_hot(choice[..., 1], 3).bool()
    number, log_std = torch.rand(2, 3, 2, generator=draw) * 1.8 - 0.9, torch.randn(2, 3, 2, generator=draw)
    margin = large_margin_loss(params[..., :5], choice, mask, choices=spec.choices, margin=0.8)
    error = deterministic_loss(spec, params, mask, Action(choice, number))
    density = squashed_log_prob(params[..., 5:], log_std, number)
    assert margin.shape == error.shape == density.shape == (2, 3)
    for i, j in ((i, j) for i in range(2) for j in range(3)):
        p, m, start, violation, cross_entropy, log_prob = params[i, j].tolist(), mask[i, j].tolist(), 0, 0.0, 0.0, 0.0
        for k, width in enumerate(spec.choices):
            own = start + int(choice[i, j, k])
            available = [a for a in range(start, start + width) if m[a]]
            violation += max(p[a] + 0.8 * (a != own) for a in available) - p[own]
            cross_entropy -= p[own] - math.log(sum(math.exp(p[a]) for a in available))
            start += width
        for c in range(2):
            x, s, a = p[5 + c], log_std[i, j, c].item(), number[i, j, c].item()
            cross_entropy += 0.5 * (math.tanh(x) - a) ** 2
            z = (math.atanh(a) - x) / math.exp(s)
            log_prob += -0.5 * z * z - s - 0.5 * math.log(2 * math.pi) - math.log(1 - a * a)
        assert margin[i, j].item() == pytest.approx(violation, abs=1e-5)
        assert error[i, j].item() == pytest.approx(cross_entropy, abs=1e-5)
        assert density[i, j].item() == pytest.approx(log_prob, abs=1e-4)


def test_actions_of_one_kind_match_by_that_kind():
    """Numbers beyond the bounds count as the bounds; a difference of exactly the tolerance is a match."""
    one, other = torch.tensor([[[0], [1]], [[2], [2]]]), torch.tensor([[[0], [2]], [[2], [1]]])
    assert actions_match(Action(one), Action(other)).tolist() == [[True, False], [True, False]]
    number = torch.tensor([[[-1.7, 0.5], [0.25, 0.5]], [[0.5, 1.9], [0.5, 0.0]]])
    demonstrated = torch.tensor([[[-1.0, 0.5], [0.5, 0.5]], [[0.5, 1.0], [0.0, 0.0]]])
    found = actions_match(Action(None, number), Action(None, demonstrated), tolerance=0.25)
    assert found.tolist() == [[True, True], [True, False]]
    assert actions_match(Action(one, number), Action(one, demonstrated), 0.25).tolist() == found.tolist()
    assert actions_match(Action(one, number), Action(other)).tolist() == [[True, False], [True, False]]
    assert actions_match(Action(one, number), Action(None, demonstrated), 0.25).tolist() == found.tolist()
