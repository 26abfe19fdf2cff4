"""Gradient steps captured as CUDA graphs: on samples of a replay buffer, on sequences, and on minibatches.

Sampling and priorities are not part of a graph: the sample is copied to static tensors, and the step returns the errors
that priorities are computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.algos.optimizer import Optimizer, TargetNetwork, changed_by_steps
from coterie.core.graphed import Graphed, StaticInputs
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.core.types import HiddenState


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
        targets: Target networks that it reads and updates.
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
        targets: Sequence[TargetNetwork] = (),
        reads: Callable[[], list[Tensor]] = list,
        generators: Sequence[torch.Generator] = (),
        constants: Callable[[], Hashable] = tuple,
        what: str,
    ):
        self._step, self._reads, self._generators, self._what = step, reads, tuple(generators), what
        self._constants = constants
        self._optimizers, self._modules = tuple(optimizers), (*modules, *(target.module for target in targets))
        self._followers = [x for target in targets for x in target.tensors()]
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


MinibatchStep = Callable[[Any, dict[str, HiddenState], dict[str, Tensor]], Tensor]
"""Takes a gradient step on a minibatch, with the hidden states before it, and coefficients [] float32 by name."""


class GraphedMinibatches:
    """Gradient steps on the minibatches of a rollout as one CUDA graph.

    The number of timesteps in which an environment acted differs between rollouts, and shapes within a graph do not.
    Minibatches are therefore filled up with the first sample, masked. Results are those without padding.

    Args:
        step: Returns a report [metrics].
        optimizer: Takes the step.
        modules: Modules that the step evaluates.
        what: Name of the step for messages.
    """

    def __init__(self, step: MinibatchStep, optimizer: Optimizer, modules: tuple[nn.Module, ...], what: str):
        self._step = step
        self._numbers, self._samples = StaticInputs(), StaticInputs()
        self.graphed = Graphed(self._step_on, changes=lambda: changed_by_steps([optimizer], modules), what=what)

    def load(self, batch: Any, hidden_states: Tree, coefficients: dict[str, float]) -> Tree:
        """Returns what the steps of an update read, in static tensors.

        Args:
            batch: Samples, in static tensors.
            hidden_states: Hidden states before them, in static tensors.
            coefficients: Numbers by name, which are copied to static tensors.
        """
        device = tree_leaves(batch)[0].device
        numbers = {name: torch.full((), value, device=device) for name, value in coefficients.items()}
        return batch, hidden_states, self._numbers.load(numbers)

    def __call__(self, loaded: Tree, chosen: Tensor, size: int) -> Tensor:
        """Takes a step on a minibatch and returns its report.

        Args:
            loaded: Result of `load`.
            chosen: Indices of its samples [M].
            size: Size of all minibatches, at least M.
        """
        padded = F.pad(chosen, (0, size - len(chosen)))
        is_sample = torch.arange(size, device=chosen.device) < len(chosen)
        return self.graphed(loaded, self._samples.load((padded, is_sample))).clone()

    def _step_on(self, loaded: Tree, chosen: tuple[Tensor, Tensor]) -> Tensor:
        """Takes a step on the samples with indices [M] int64 where a mask [M] is True."""
        batch, hidden_states, coefficients = loaded
        index, is_sample = chosen
        sample_axis = 1 if hidden_states else 0
        minibatch = tree_map(lambda x: x.index_select(sample_axis, index), batch)
        is_valid = is_sample.unsqueeze(-1).expand(minibatch.log_prob.shape)
        minibatch = minibatch.masked(is_valid)
        return self._step(minibatch, tree_map(lambda x: x.index_select(0, index), hidden_states), coefficients)
