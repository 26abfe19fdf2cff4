"""Gradient steps, clipping, target networks and metrics against literal numbers; `test_schedules.py`: schedules."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from coterie.algos.optimizer import Optimizer, TargetNetwork, averaged_metrics, mean_metrics
from coterie.core.errors import NonFiniteError
from coterie.kernels import switch
from coterie.ranks.ranks import Ranks
from rank_threads import on_ranks


class Weights(nn.Module):
    """A vector and a matrix of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.ones(2))
        self.matrix = nn.Parameter(torch.ones(2, 3))


def optimizer_of(**modules: nn.Module) -> Optimizer:
    return Optimizer(modules, eps=1e-8, weight_decay=0.0, max_grad_norm=None)


def test_the_first_step_of_adam_is_the_learning_rate_times_the_sign_of_the_gradient():
    """Per module, with its own learning rate; parameters stay views of one tensor, and the norms are returned."""
    one, other = Weights(), Weights()
    optimizer = optimizer_of(one=one, other=other)
    assert tuple(optimizer.flat) == ("one", "other")
    loss = 3 * one.vector[0] - 4 * one.matrix[1, 2] + 2 * other.matrix.sum()
    norms = optimizer.step(loss, {"one": 0.1, "other": 0.01})
    assert norms.tolist() == pytest.approx([5.0, math.sqrt(24)])
    assert not norms.requires_grad
    torch.testing.assert_close(one.vector.detach(), torch.tensor([0.9, 1.0]))
    torch.testing.assert_close(one.matrix.detach(), torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.1]]))
    torch.testing.assert_close(other.vector.detach(), torch.ones(2))
    torch.testing.assert_close(other.matrix.detach(), torch.full((2, 3), 0.99))


def test_gradients_of_earlier_steps_do_not_add_up():
    """Adam's second step with gradient 1 after one of 1: the learning rate again; their sum would give another."""
    weights = Weights()
    optimizer = optimizer_of(one=weights)
    for step in (1, 2):
        assert optimizer.step(weights.vector[0] * 1.0, {"one": 0.1}).item() == pytest.approx(1.0)
        assert weights.vector[0].item() == pytest.approx(1 - 0.1 * step, abs=1e-6)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize(("max_grad_norm", "scale"), [(None, 1.0), (10.0, 1.0), (2.5, 0.5), (0.5, 0.1)])
def test_gradients_are_clipped_to_a_norm_per_module(max_grad_norm, scale, kernels, monkeypatch):
    """A gradient of (3, 4); norms are returned as they were before."""
    if not kernels:
        monkeypatch.setattr("coterie.kernels.switch.on", False)
    clipped, other = Weights(), Weights()
    optimizer = Optimizer({"a": clipped, "b": other}, eps=1e-8, weight_decay=0.0, max_grad_norm=max_grad_norm)
    norms = optimizer.step(3 * clipped.vector[0] + 4 * clipped.vector[1] + 0.1 * other.vector[0], {"a": 0.0, "b": 0.0})
    assert norms.tolist() == pytest.approx([5.0, 0.1])
    assert clipped.vector.grad is not None
    assert clipped.vector.grad.tolist() == pytest.approx([3 * scale, 4 * scale], rel=1e-5)
    assert other.vector.grad is not None
    assert other.vector.grad[0].item() == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("kernels", [False, True])
def test_entries_of_gradients_are_clipped_before_the_norm(kernels, monkeypatch):
    """Adam's first moment shows the clipped gradient: 0.1 times it after a step."""
    monkeypatch.setattr(switch, "on", kernels)
    for max_norm, expected in ((None, [0.5, -0.5, 0.1]), (0.5, [0.35, -0.35, 0.07])):
        layer = nn.Linear(3, 1, bias=False)
        optimizer = Optimizer({"net": layer}, 1e-8, 0.0, max_norm, 0.5)
        norm = optimizer.step((layer.weight * torch.tensor([4.0, -9.0, 0.1])).sum(), {"net": 0.01})
        assert norm.item() == pytest.approx(97.01**0.5)  # of the gradient before any clipping
        found = optimizer.state_dict()["net"]["exp_avg"] * 10
        assert found.tolist() == pytest.approx(expected, abs=1e-3)


def test_weight_decay_and_eps_reach_adam():
    """Weight decay adds 0.5 to a gradient of zero; an eps of 1 divides the first step of gradient 1 by 2."""
    decayed, damped = Weights(), Weights()
    Optimizer({"a": decayed}, eps=1e-8, weight_decay=0.5, max_grad_norm=None).step(0 * decayed.vector.sum(), {"a": 0.1})
    assert decayed.vector.tolist() == pytest.approx([0.9, 0.9])
    optimizer = Optimizer({"a": damped}, eps=1.0, weight_decay=0.5, max_grad_norm=None)
    own = optimizer.for_module("a")
    own.step(damped.vector[0] * 1.0, {"a": 0.1})
    assert damped.vector.tolist() == pytest.approx([0.95, 1.0])


def stepped(weights: Weights) -> Weights:
    """Returns weights that an optimizer has put next to each other."""
    Optimizer({"weights": weights}, 1e-8, 0.0, None)
    return weights


def test_a_target_network_refuses_weights_that_no_optimizer_has_put_next_to_each_other():
    with pytest.raises(ValueError, match="create its optimizer first"):
        TargetNetwork(Weights(), 1.0, None)


def test_soft_and_hard_updates_of_a_target_network():
    online = stepped(Weights())
    online.vector.sum().backward()
    soft, hard = TargetNetwork(online, 0.25, None), TargetNetwork(online, 0.25, 3)
    assert not any(p.requires_grad for p in soft.module.parameters())
    assert all(p.grad is None for p in soft.module.parameters())
    with torch.no_grad():
        online.vector.copy_(torch.tensor([5.0, 1.0]))
    soft.update()
    assert soft.module.vector.tolist() == [2.0, 1.0]
    soft.update()
    assert soft.module.vector.tolist() == [2.75, 1.0]
    for expected in (1.0, 1.0, 5.0):
        hard.update()
        assert hard.module.vector[0].item() == expected
    soft.hard_update()
    assert soft.module.vector.tolist() == [5.0, 1.0]
    assert soft.module.vector.data_ptr() != online.vector.data_ptr()


def test_a_restored_target_network_is_updated_at_the_same_call():
    online = stepped(Weights())
    target, restored = TargetNetwork(online, 0.5, 2), TargetNetwork(online, 0.5, 2)
    target.update()
    restored.load_state_dict(target.state_dict())
    with torch.no_grad():
        online.vector.fill_(3.0)
    restored.update()
    assert restored.module.vector.tolist() == [3.0, 3.0]


def test_metrics_are_means_over_minibatches_and_must_be_finite():
    reports = torch.tensor([[1.0, -2.0], [3.0, -6.0]])
    assert mean_metrics(reports, ("a", "b"), "blue") == {"a": 2.0, "b": -4.0}
    for wrong in (math.nan, math.inf, -math.inf):
        reports = torch.tensor([[1.0, 2.0], [3.0, 3.0], [1.0, wrong]])
        with pytest.raises(NonFiniteError, match=r"^team blue: b became NaN or infinite in minibatch 2 of the update"):
            mean_metrics(reports, ("a", "b"), "blue")
    with pytest.raises(ValueError, match="zip"):
        mean_metrics(torch.zeros(2, 2), ("a",), "blue")


def test_a_hard_update_replaces_numbers_that_are_not_finite():
    online = stepped(Weights())
    target = TargetNetwork(online, 1.0, None)
    with torch.no_grad():
        target.module.vector.fill_(math.nan)
    target.update()
    assert target.module.vector.tolist() == [1.0, 1.0]


def test_all_ranks_take_the_step_of_their_mean_gradient():
    """Gradients 3 and 5 of one weight, 0 and -2 of one of another module, in one exchange."""

    def step(ranks: Ranks) -> tuple[list[float], list[float], int]:
        one, other = Weights(), Weights()
        optimizer = Optimizer({"one": one, "other": other}, 1e-8, 0.0, None, ranks=ranks)
        loss = (3 + 2 * ranks.rank) * one.vector[1] - 2 * ranks.rank * other.matrix[1, 2]
        norms = optimizer.step(loss, {"one": 0.1, "other": 0.1}).tolist()
        return norms, [one.vector[1].item(), other.matrix[1, 2].item()], ranks.traffic.calls

    assert on_ranks(2, step) == [(pytest.approx([4.0, 1.0]), pytest.approx([0.9, 1.1]), 1)] * 2
    assert on_ranks(1, step)[0][2] == 0


def test_metrics_are_means_over_ranks_in_one_exchange():
    def means(ranks: Ranks) -> tuple[dict[str, float], int]:
        reports = torch.tensor([[1.0, -2.0], [3.0, -6.0], [2.0, -4.0]]) + 10 * ranks.rank
        more = {"c": torch.tensor(4.0 * ranks.rank)}
        return mean_metrics(reports, ("a", "b"), "blue", more, ranks=ranks), ranks.traffic.calls

    assert on_ranks(2, means) == [({"a": 7.0, "b": 1.0, "c": 2.0}, 1)] * 2
    assert on_ranks(1, means) == [({"a": 2.0, "b": -4.0, "c": 0.0}, 0)]


def test_the_rank_with_a_nan_is_named():
    """The first metric decides, a loss of its own samples. Norms of gradients are those of the mean over all ranks."""

    def message(ranks: Ranks) -> str:
        reports = torch.tensor([[1.0, 2.0], [math.nan if ranks.rank == 1 else 0.0, math.nan]])
        with pytest.raises(NonFiniteError) as error:
            mean_metrics(reports, ("a", "b"), "blue", ranks=ranks)
        return str(error.value)

    expected = "rank 1: team blue: a, b became NaN or infinite in minibatch 1 of the update. "
    assert all(found.startswith(expected) for found in on_ranks(2, message))


def test_numbers_are_averaged_over_ranks():
    def means(ranks: Ranks) -> tuple[dict[str, float], dict[str, float], int]:
        found = averaged_metrics({"a": 3.0 * ranks.rank, "b": 1.0}, ranks)
        return found, averaged_metrics({}, ranks), ranks.traffic.calls

    assert on_ranks(2, means) == [({"a": 1.5, "b": 1.0}, {}, 1)] * 2
    assert on_ranks(1, means) == [({"a": 0.0, "b": 1.0}, {}, 0)]
