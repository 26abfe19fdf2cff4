"""Weighted QMIX: losses and weights of literal numbers, and Q* of the timesteps and actions that are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.algos.weighted_qmix import CentralQ, central_weights, optimistic_weights, weighted_td_loss


def test_the_loss_sums_both_errors_with_their_weights():
    """Errors of Q_tot 1, -2, 3 with weights 0.5, 1, 1, of Q* 2, 0, 4. Sequences count 2, 1, 1; the last is masked."""
    q, central_q, target = (
        torch.tensor([[2.0, 1.0, 3.0]]),
        torch.tensor([[3.0, 3.0, 4.0]]),
        torch.tensor([[1.0, 3.0, 0.0]]),
    )
    settings: dict[str, Any] = {
        "valid": torch.tensor([[True, True, False]]), "weight": torch.tensor([[0.5, 1.0, 1.0]]),
        "importance": torch.tensor([2.0, 1.0, 1.0]),
    }  # fmt: skip
    squared = weighted_td_loss(q, central_q, target, huber_delta=None, **settings)
    assert squared.item() == pytest.approx((2 * (0.5 * 0.5 + 2.0) + 2.0) / 2)
    linear = weighted_td_loss(q, central_q, target, huber_delta=1.0, **settings)
    assert linear.item() == pytest.approx((2 * (0.5 * 0.5 + 1.5) + 1.5) / 2)


def test_weights_are_one_for_promising_joint_actions_and_alpha_for_others():
    """Equal values are not promising."""
    target = torch.tensor([1.0, 3.0, 2.0])
    assert optimistic_weights(torch.tensor([2.0, 1.0, 2.0]), target, 0.25).tolist() == [0.25, 1.0, 0.25]
    greedy, greedy_q = torch.tensor([True, False, False]), torch.tensor([2.0, 2.0, 2.0])
    assert central_weights(greedy, target, greedy_q, 0.25).tolist() == [1.0, 1.0, 0.25]


class Team:
    """Networks of two agents whose value is a table [T + 1, S, A], indexed by the sum of the agents' choices."""

    def __init__(self, table: Tensor):
        self.table = table

    def same_actions(self, actions: Any, others: Any) -> Tensor:
        return actions["all"] == others["all"]


TABLE = torch.arange(24.0).view(4, 2, 3)  # four timesteps of two sequences, three sums of choices
REQUEST = SimpleNamespace(
    name="timesteps", alive=torch.tensor([[[1, 1], [1, 1]], [[1, 0], [1, 1]], [[1, 1], [0, 0]]]).bool()
)


def central(rule: Any, greedy: Tensor | None = None) -> CentralQ:
    """Q* is the table plus the input, of the target networks 100 more."""

    def learned(value: Team, inputs: Any) -> dict[str, Tensor]:
        return {"all": value.table[:-1] + inputs}

    def successors(value: Team, inputs: Any) -> dict[str, Tensor]:
        return {"all": value.table[1:] + inputs}

    def evaluate(value: Team, q: dict[str, Tensor], actions: Any, timesteps: Any) -> Tensor:
        assert timesteps is REQUEST
        offset = 1000.0 if value.table[0, 0, 0] >= 100 else 0.0
        return q["all"].gather(-1, actions["all"].sum(-1, keepdim=True)).squeeze(-1) + offset

    def choose(q: dict[str, Tensor], timesteps: Any) -> dict[str, Tensor]:
        assert q == {"q": "of the policy"}
        assert timesteps is REQUEST
        assert greedy is not None
        return {"all": greedy}

    reader = SimpleNamespace(learned=learned, successors=successors)
    return CentralQ(
        Team(TABLE.clone().requires_grad_()), Team(TABLE + 100), reader,
        evaluate=evaluate, greedy=choose, rule=rule, alpha=0.25,
    )  # fmt: skip


def test_the_next_value_is_that_of_the_target_networks_at_the_successors():
    actions: Any = {"all": torch.tensor([[[0, 1], [1, 1]], [[0, 0], [1, 0]], [[1, 1], [0, 1]]])}
    inputs: Any = torch.tensor(0.5)
    request: Any = REQUEST
    found = central("none").next_value(inputs, actions, request)
    expected = [[TABLE[t + 1, s, actions["all"][t, s].sum()].item() + 1100.5 for s in range(2)] for t in range(3)]
    assert found.tolist() == expected


TAKEN = torch.tensor([[[0, 1], [1, 1]], [[0, 0], [1, 0]], [[1, 1], [0, 1]]])
GREEDY = torch.tensor([[[0, 1], [1, 0]], [[0, 1], [1, 0]], [[1, 0], [1, 0]]])


def batch(rule: Any, target: Tensor, q_taken: Tensor) -> tuple[Tensor, Tensor]:
    request, inputs = REQUEST, torch.tensor(0.0)
    rest: Any = {
        "q": {"q": "of the policy"},
        "q_taken": q_taken,
        "target": target,
        "actions": {"all": TAKEN},
        "timesteps": request,
    }
    return central(rule, GREEDY).evaluate_batch(inputs, **rest)


def test_optimistic_weights_compare_q_tot_with_the_target():
    target, q_taken = torch.full((3, 2), 5.0), torch.tensor([[4.0, 6.0], [5.0, 4.0], [9.0, 0.0]])
    central_q, weight = batch("optimistic", target, q_taken)
    expected = [[TABLE[t, s, TAKEN[t, s].sum()].item() for s in range(2)] for t in range(3)]
    assert central_q.tolist() == expected
    assert central_q.requires_grad
    assert weight.tolist() == [[1.0, 0.25], [0.25, 1.0], [0.25, 1.0]]


def test_central_weights_compare_the_target_with_q_of_the_greedy_joint_action():
    """Agreement of the agents alive: both; one of two; the only one alive; both; one of two; nobody is alive.

    Elsewhere the target has to exceed Q* of the greedy joint action, 4 at the first timestep and 13 at the third.
    """
    for target, second, fifth in ((4.0, 0.25, 0.25), (4.1, 1.0, 0.25), (13.1, 1.0, 1.0)):
        _, weight = batch("central", torch.full((3, 2), target), torch.zeros(3, 2))
        assert weight.tolist() == [[1.0, second], [1.0, 1.0], [fifth, 1.0]]
        assert not weight.requires_grad
