"""Learners whose policies can be trained by behavior cloning, before reinforcement learning or alongside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from coterie.algos.optimizer import Optimizer, TargetNetwork


@dataclass(frozen=True)
class CloningOptimizer:
    """Gradient steps on a policy that leave the learner's own optimizer as it is.

    Attributes:
        optimizer: Trains the networks that act.
        targets: Target networks of the networks that act.
    """

    optimizer: Optimizer
    targets: tuple[TargetNetwork, ...] = ()

    def step(self, loss: Tensor, lr: float) -> Tensor:
        """Takes one gradient step and returns the gradient norm before clipping []."""
        return self.optimizer.step(loss, dict.fromkeys(self.optimizer.flat, lr))[0]

    def update_targets(self) -> None:
        """Sets target networks equal to the networks that they follow."""
        for target in self.targets:
            target.hard_update()


class CloningLearner(ABC):
    """An algorithm whose policy supports behavior cloning."""

    @abstractmethod
    def cloning_optimizer(self) -> CloningOptimizer:
        """Returns an optimizer of the networks that act, with moments of its own."""
