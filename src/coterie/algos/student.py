"""Learners whose policies can be fitted to demonstrations, before they learn or beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from coterie.algos.optimiser import Optimiser
from coterie.algos.target import Target


@dataclass(frozen=True)
class Fitting:
    """Steps of what acts that are not the learner's own. targets: networks that follow what acts."""

    optimiser: Optimiser
    targets: tuple[Target, ...] = ()

    def step(self, loss: Tensor, lr: float) -> Tensor:
        """One step down the gradient of a loss; returns the gradient's norm []."""
        return self.optimiser.step(loss, dict.fromkeys(self.optimiser.names, lr))[0]

    def arrive(self) -> None:
        """Sets targets equal to what they follow, as they are where a learner begins."""
        for target in self.targets:
            target.arrive()


class Student(ABC):
    """An algorithm whose policy, a `coterie.fittable.Fittable`, can be fitted to demonstrations."""

    @abstractmethod
    def fitting(self) -> Fitting:
        """Steps the weights that act, with moments of its own, so that the learner's are left as they are."""
