"""Curiosity by literal numbers."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.math.curiosity import action_error, curiosity_reward, running_return, squared_error
from coterie.types import Action, ActionSpec


def test_the_reward_is_eta_times_the_error_and_weighted_at_most_one():
    error = torch.tensor([0.5, 4.0, 100.0])
    assert curiosity_reward(error, 2.0, 0.1).tolist() == [1.0, 8.0, 10.0]
    assert float(0.1 * curiosity_reward(error, 2.0, 0.1).max()) == pytest.approx(1.0)
    assert curiosity_reward(error, 2.0, 0.0).tolist() == [1.0, 8.0, 200.0]  # nothing is weighted, nothing is cut


def test_an_error_is_half_the_squared_distance():
    found = squared_error(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 6.0], [0.0, 0.0]]))
    assert found.tolist() == [12.5, 0.0]


def test_choices_are_told_by_the_sum_of_their_cross_entropies_among_open_ones():
    spec = ActionSpec(choices=(3, 2))
    params, action = torch.zeros(1, 5), Action(torch.tensor([[2, 0]]))
    mask = torch.tensor([[True, False, True, True, True]])
    assert float(action_error(spec, params, mask, action)) == pytest.approx(2 * math.log(2))
    assert float(action_error(spec, params, None, action)) == pytest.approx(math.log(3) + math.log(2))


def test_numbers_are_told_by_half_the_squared_error_beside_choices():
    spec = ActionSpec(choices=(2,), continuous=2, low=(-1.0, -1.0), high=(1.0, 1.0))
    params = torch.tensor([[0.0, 0.0, 1.0, -1.0]])
    action = Action(torch.tensor([[1]]), torch.tensor([[0.5, 1.0]]))
    assert float(action_error(spec, params, None, action)) == pytest.approx(math.log(2) + 0.5 * (0.25 + 4.0))


def test_a_closed_choice_gets_no_gradient():
    spec = ActionSpec(choices=(3,))
    params = torch.zeros(1, 3, requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    action_error(spec, params, mask, Action(torch.tensor([[0]]))).sum().backward()
    assert params.grad is not None
    assert params.grad.tolist() == [[-0.5, 0.0, 0.5]]


def test_running_returns_wait_where_nobody_acts_and_go_on_over_ends():
    reward = torch.tensor([1.0, 7.0, 2.0]).view(3, 1, 1)
    live = torch.tensor([True, False, True]).view(3, 1, 1)
    found = running_return(reward, live, torch.tensor([[4.0]]), 0.5)
    assert found.flatten().tolist() == [3.0, 3.0, 3.5]
    assert running_return(reward, torch.ones_like(live), torch.tensor([[4.0]]), 0.5).flatten().tolist() == [
        3.0,
        8.5,
        6.25,
    ]
