"""Gradient steps on samples of a replay buffer, captured as CUDA graphs.

Sampling and priorities are not part of a graph: the sample is copied to static tensors, and the step returns the errors
that priorities are computed from. Nor are hard updates of target networks, which only some steps make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coterie.algos.optimizer import Optimizer, changed_by_steps
from coterie.algos.replay.buffer import ReplaySample
from coterie.core.graphed import Graphed, StaticInputs
from coterie.core.tree import Tree, tree_map


class StepResult(NamedTuple):
    """Results of a gradient step, without gradients.

    Attributes:
        reports: Metrics of the networks that took a step, [metrics] each.
        error: Errors of the sampled sequences [S], for their priorities; None if sampling is uniform.
    """

    reports: tuple[Tensor, ...]
    error: Tensor | None


Step = Callable[..., StepResult]
"""Takes a gradient step on a `ReplaySample`. Further arguments are learning rates by module, numbers or tensors []
float32, and flags, by which steps differ.
"""


class GraphedStep:
    """A gradient step as a CUDA graph, one for each value of its flags. Its results are those of the step.

    Args:
        step: The step.
        optimizers: Optimizers that take it.
        modules: Modules that it evaluates or changes.
        targets: Modules whose parameters it changes besides.
        reads: Returns other tensors that it reads and that are not part of the sample.
        generators: Generators that it draws from.
        what: Name of the step for messages.
    """

    def __init__(
        self,
        step: Step,
        *,
        optimizers: Sequence[Optimizer],
        modules: Sequence[nn.Module],
        targets: Sequence[nn.Module] = (),
        reads: Callable[[], list[Tensor]] = list,
        generators: Sequence[torch.Generator] = (),
        what: str,
    ):
        self._step, self._reads, self._generators, self._what = step, reads, tuple(generators), what
        self._optimizers, self._modules = tuple(optimizers), (*modules, *targets)
        self._followers = [x for target in targets for x in target.parameters()]
        self._samples, self._coefficients = StaticInputs(), StaticInputs()
        self._lr: dict[str, float] = {}
        self._loaded_lr: Tree = {}
        self._graphed: dict[tuple[bool, ...], Graphed] = {}

    def __call__(self, sample: ReplaySample, lr: dict[str, float], *flags: bool) -> StepResult:
        """Takes a step. Arguments as those of the step.

        Raises:
            UserError: If the step cannot be captured.
        """
        if flags not in self._graphed:
            self._graphed[flags] = Graphed(
                partial(self._step_on, flags),
                changes=self._changes,
                reads=self._reads,
                generators=self._generators,
                what=self._what,
            )
        if lr != self._lr:  # once per update
            numbers = {name: torch.full((), value, device=sample.weight.device) for name, value in lr.items()}
            self._loaded_lr, self._lr = self._coefficients.load(numbers), dict(lr)
        return tree_map(torch.clone, self._graphed[flags](self._samples.load(sample), self._loaded_lr))

    def _step_on(self, flags: tuple[bool, ...], sample: ReplaySample, lr: dict[str, Tensor]) -> StepResult:
        return self._step(sample, lr, *flags)

    def _changes(self) -> list[Tensor]:
        return [*changed_by_steps(self._optimizers, self._modules), *self._followers]

    @property
    def captures(self) -> int:
        """Number of captures so far."""
        return sum(graphed.captures for graphed in self._graphed.values())
