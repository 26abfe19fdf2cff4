"""Gradient steps on samples of a replay buffer, or on minibatches of sequences, captured as CUDA graphs.

Sampling and priorities are not part of a graph: the sample is copied to static tensors, and the step returns the errors
that priorities are computed from. Nor are hard updates of the target networks of learners with a replay buffer, which
only some steps make.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from coterie.algos.optimizer import Optimizer, changed_by_steps
from coterie.core.graphed import Graphed, StaticInputs
from coterie.core.tree import Tree, tree_leaves, tree_map


class StepResult(NamedTuple):
    """Results of most gradient steps, without gradients.

    Attributes:
        reports: Metrics of the networks that took a step, [metrics] each.
        error: Errors of the sampled sequences [S], for their priorities; None if sampling is uniform.
    """

    reports: tuple[Tensor, ...]
    error: Tensor | None


Step = Callable[..., StepResult]
"""Takes a gradient step on a sample, a tree of tensors. Further arguments are coefficients by name, such as learning
rates by module, numbers or tensors [] float32, and flags, by which steps differ.
"""


Result = TypeVar("Result")
"""Tree of tensors without gradients that a step returns."""


class GraphedStep(Generic[Result]):
    """A gradient step as a CUDA graph, one for each value of flags and constants. Its results are those of the step.

    Args:
        step: The step.
        optimizers: Optimizers that take it.
        modules: Modules that it evaluates or changes.
        targets: Modules whose parameters it changes besides.
        reads: Returns other tensors that it reads and that are not part of the sample.
        generators: Generators that it draws from.
        constants: Returns Python values that it depends on besides, such as `Policy.constants`.
        what: Name of the step for messages.
    """

    def __init__(
        self,
        step: Callable[..., Result],
        *,
        optimizers: Sequence[Optimizer],
        modules: Sequence[nn.Module],
        targets: Sequence[nn.Module] = (),
        reads: Callable[[], list[Tensor]] = list,
        generators: Sequence[torch.Generator] = (),
        constants: Callable[[], Hashable] = tuple,
        what: str,
    ):
        self._step, self._reads, self._generators, self._what = step, reads, tuple(generators), what
        self._constants = constants
        self._optimizers, self._modules = tuple(optimizers), (*modules, *targets)
        self._followers = [x for target in targets for x in target.parameters()]
        self._samples, self._coefficients = StaticInputs(), StaticInputs()
        self._numbers: dict[str, float] = {}
        self._loaded_numbers: Tree = {}
        self._graphed: dict[Hashable, Graphed] = {}

    def __call__(self, sample: Tree, coefficients: dict[str, float], *flags: bool) -> Result:
        """Takes a step. Arguments as those of the step.

        Raises:
            UserError: If the step cannot be captured.
        """
        key = (flags, self._constants())
        if key not in self._graphed:
            self._graphed[key] = Graphed(
                partial(self._step_on, flags),
                changes=self._changes,
                reads=self._reads,
                generators=self._generators,
                what=self._what,
            )
        if coefficients != self._numbers:  # seldom more than once per update
            device = tree_leaves(sample)[0].device
            numbers = {name: torch.full((), value, device=device) for name, value in coefficients.items()}
            self._loaded_numbers, self._numbers = self._coefficients.load(numbers), dict(coefficients)
        return tree_map(torch.clone, self._graphed[key](self._samples.load(sample), self._loaded_numbers))

    def _step_on(self, flags: tuple[bool, ...], sample: Tree, coefficients: dict[str, Tensor]) -> Result:
        return self._step(sample, coefficients, *flags)

    def _changes(self) -> list[Tensor]:
        return [*changed_by_steps(self._optimizers, self._modules), *self._followers]

    @property
    def captures(self) -> int:
        """Number of captures so far."""
        return sum(graphed.captures for graphed in self._graphed.values())
