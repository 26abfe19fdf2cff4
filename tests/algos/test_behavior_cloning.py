"""Optimizers of behavior cloning: their learning rate, and the target networks that they set."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch

from coterie.algos.algorithm import CloningOptimizer
from coterie.algos.optimizer import Optimizer, TargetNetwork
from coterie.nets.layers import Linear
from policy_cases import draw


def test_a_step_moves_all_networks_by_the_learning_rate_and_returns_the_norm():
    """Adam's first step is the learning rate in the direction of the sign. The gradient is 3 and 4."""
    layers = torch.nn.ParameterDict({"a": torch.nn.Parameter(torch.zeros(1)), "b": torch.nn.Parameter(torch.zeros(1))})
    cloning = CloningOptimizer(Optimizer({"policy": layers}, 1e-8, 0.0, None))
    assert cloning.targets == ()
    norm = cloning.step(3 * layers["a"].sum() - 4 * layers["b"].sum(), 0.1)
    assert (norm.shape, norm.item()) == ((), pytest.approx(5.0))
    assert [layers[name].item() for name in "ab"] == pytest.approx([-0.1, 0.1])
    cloning.update_targets()
    with pytest.raises(FrozenInstanceError):
        cloning.targets = ()  # pyright: ignore[reportAttributeAccessIssue]


def test_all_target_networks_are_set_equal_to_what_they_follow():
    online = [Linear(2, 3, gain=1.0, generator=draw(seed)) for seed in range(2)]
    optimizer = Optimizer({"policy": torch.nn.ModuleList(online)}, 1e-8, 0.0, None)
    targets = tuple(TargetNetwork(layer, 0.01, None) for layer in online)
    cloning = CloningOptimizer(optimizer, targets)
    cloning.step(sum((layer.weight.sum() for layer in online), torch.zeros(())), 0.1)
    assert not torch.equal(online[0].weight, targets[0].module.weight)
    cloning.update_targets()
    for layer, target in zip(online, targets, strict=True):
        assert torch.equal(layer.weight, target.module.weight)
