"""Intrinsic rewards against literal numbers."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.core.specs import ActionSpec
from coterie.core.types import Action
from coterie.functional.intrinsic_rewards import (
    action_error,
    curiosity_reward,
    non_episodic_return,
    running_return,
    squared_error,
)
from coterie.functional.returns import lambda_return


def test_weighted_curiosity_reward_is_at_most_one():
    error = torch.tensor([0.5, 4.0, 100.0])
    assert curiosity_reward(error, 2.0, 0.1).tolist() == [1.0, 8.0, 10.0]
    assert float(0.1 * curiosity_reward(error, 2.0, 0.1).max()) == pytest.approx(1.0)
    assert curiosity_reward(error, 2.0, 0.0).tolist() == [1.0, 8.0, 200.0]  # with weight 0, nothing is clipped


def test_squared_error_is_half_the_squared_distance():
    found = squared_error(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 6.0], [0.0, 0.0]]))
    assert found.tolist() == [12.5, 0.0]


def test_error_of_choices_is_the_sum_of_cross_entropies_over_available_choices():
    spec = ActionSpec(choices=(3, 2))
    params, action = torch.zeros(1, 5), Action(torch.tensor([[2, 0]]))
    mask = torch.tensor([[True, False, True, True, True]])
    assert float(action_error(spec, params, mask, action)) == pytest.approx(2 * math.log(2))
    assert float(action_error(spec, params, None, action)) == pytest.approx(math.log(3) + math.log(2))


def test_error_of_numbers_is_half_the_squared_error():
    spec = ActionSpec(choices=(2,), continuous=2, low=(-1.0, -1.0), high=(1.0, 1.0))
    params = torch.tensor([[0.0, 0.0, 1.0, -1.0]])
    action = Action(torch.tensor([[1]]), torch.tensor([[0.5, 1.0]]))
    assert float(action_error(spec, params, None, action)) == pytest.approx(math.log(2) + 0.5 * (0.25 + 4.0))


def test_a_masked_choice_gets_no_gradient():
    spec = ActionSpec(choices=(3,))
    params = torch.zeros(1, 3, requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    action_error(spec, params, mask, Action(torch.tensor([[0]]))).sum().backward()
    assert params.grad is not None
    assert params.grad.tolist() == [[-0.5, 0.0, 0.5]]


def test_running_returns_skip_invalid_timesteps_and_continue_across_episodes():
    reward = torch.tensor([1.0, 7.0, 2.0]).view(3, 1, 1)
    valid = torch.tensor([True, False, True]).view(3, 1, 1)
    found = running_return(reward, valid, torch.tensor([[4.0]]), 0.5)
    assert found.flatten().tolist() == [3.0, 3.0, 3.5]
    assert running_return(reward, torch.ones_like(valid), torch.tensor([[4.0]]), 0.5).flatten().tolist() == [
        3.0,
        8.5,
        6.25,
    ]


def test_non_episodic_return_continues_in_the_next_episode():
    """A timestep without action takes no time: with lambda 1, the reward of 4 after it is one step away."""
    reward = torch.tensor([1.0, 2.0, 0.0, 4.0])
    value = torch.tensor([10.0, 20.0, 99.0, 40.0, 50.0])
    valid = torch.tensor([True, True, False, True])
    found = non_episodic_return(reward, value, valid, gamma=0.5, td_lambda=1.0)
    # G_3 = 4 + 0.5 x 50, G_2 = G_3, G_1 = 2 + 0.5 x 29, G_0 = 1 + 0.5 x 16.5
    assert found.tolist() == [9.25, 16.5, 29.0, 29.0]
    one_step = non_episodic_return(reward, value, valid, gamma=0.5, td_lambda=0.0)
    assert one_step.tolist() == [11.0, 22.0, 29.0, 29.0]  # V of the timestep after the final one, not its own 99
    ended = lambda_return(
        reward,
        value[1:],
        terminated=~valid | torch.tensor([False, True, False, False]),
        boundary=~valid,
        gamma=0.5,
        td_lambda=1.0,
    )
    assert ended.tolist()[:2] == [2.0, 2.0]  # negative control: the episodic return


def test_non_episodic_return_without_ends_is_the_lambda_return():
    g = torch.Generator().manual_seed(0)
    reward, value = torch.rand(7, 3, 2, 2, generator=g), torch.rand(8, 3, 2, 2, generator=g)
    never = torch.zeros(7, 3, 2, 1, dtype=torch.bool)
    gamma = torch.tensor([0.9, 0.5])
    found = non_episodic_return(reward, value, ~never, gamma=gamma, td_lambda=0.8)
    torch.testing.assert_close(
        found, lambda_return(reward, value[1:], terminated=never, boundary=never, gamma=gamma, td_lambda=0.8)
    )
    assert not torch.allclose(
        found, lambda_return(reward, value[1:], terminated=never, boundary=never, gamma=0.9, td_lambda=0.8)
    )


def test_action_errors_of_a_batch_are_those_of_its_entries():
    draw = torch.Generator().manual_seed(0)
    spec = ActionSpec(choices=(3, 2), continuous=2, low=(-1.0, -1.0), high=(1.0, 1.0))
    params, number = torch.randn(3, 2, 7, generator=draw), torch.randn(3, 2, 2, generator=draw)
    choice = torch.stack([torch.randint(n, (3, 2), generator=draw) for n in spec.choices], -1)
    found = action_error(spec, params, None, Action(choice, number))
    assert found.shape == (3, 2)
    for i, j in ((i, j) for i in range(3) for j in range(2)):
        p, expected, start = params[i, j].tolist(), 0.0, 0
        for k, width in enumerate(spec.choices):
            logits = p[start : start + width]
            expected += math.log(sum(map(math.exp, logits))) - logits[choice[i, j, k]]
            start += width
        expected += sum(0.5 * (x - a) ** 2 for x, a in zip(p[start:], number[i, j].tolist(), strict=True))
        assert found[i, j].item() == pytest.approx(expected, abs=1e-5)
