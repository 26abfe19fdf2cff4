"""Gradient steps on minibatches of equal size, captured as one CUDA graph.

The number of timesteps in which an environment acted differs between rollouts, and shapes within a graph do not.
Minibatches are therefore filled up with the first sample, masked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.algos.minibatches import random_parts
from coterie.algos.optimizer import Optimizer, changed_by_steps
from coterie.core.graphed import Graphed, StaticInputs
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.core.types import HiddenState

Step = Callable[[Any, dict[str, HiddenState], dict[str, Tensor]], Tensor]
"""Takes a gradient step on a minibatch, with the hidden states before it, and coefficients [] float32 by name."""


class GraphedMinibatches:
    """Gradient steps on the minibatches of a rollout. Their results are those of minibatches without padding.

    Args:
        step: Returns a report [metrics].
        optimizer: Takes the step.
        modules: Modules that the step evaluates.
        what: Name of the step for messages.
    """

    def __init__(self, step: Step, optimizer: Optimizer, modules: tuple[nn.Module, ...], what: str):
        self._step = step
        self._numbers, self._samples = StaticInputs(), StaticInputs()
        self.graphed = Graphed(self._step_on, changes=lambda: changed_by_steps([optimizer], modules), what=what)

    def load(self, batch: Any, hidden_states: Tree, coefficients: dict[str, float]) -> Tree:
        """Returns what `epoch` takes: static tensors that the steps of an update read.

        Args:
            batch: Samples, in static tensors.
            hidden_states: Hidden states before them, in static tensors.
            coefficients: Numbers by name, which are copied to static tensors.
        """
        device = tree_leaves(batch)[0].device
        numbers = {name: torch.full((), value, device=device) for name, value in coefficients.items()}
        return batch, hidden_states, self._numbers.load(numbers)

    def epoch(
        self, loaded: Tree, candidates: Tensor, num_minibatches: int, *, shuffle: torch.Generator
    ) -> list[Tensor]:
        """Takes a step on each minibatch, and returns the reports.

        Args:
            loaded: Result of `load`.
            candidates: Indices of samples to draw from.
            num_minibatches: Number of parts.
            shuffle: Source of the random order, the same as without graphs.
        """
        batch, hidden_states, _ = loaded
        samples = batch.log_prob.shape[1 if hidden_states else 0]
        size = -(-samples // num_minibatches)
        places = torch.arange(size, device=candidates.device)
        reports = []
        for chosen in random_parts(candidates, num_minibatches, shuffle):
            padded = F.pad(chosen, (0, size - len(chosen)))
            static = self._samples.load((padded, places < len(chosen)))
            reports.append(self.graphed(loaded, static).clone())
        return reports

    def _step_on(self, loaded: Tree, chosen: tuple[Tensor, Tensor]) -> Tensor:
        """Takes a step on the samples with indices [M] int64 where a mask [M] is True."""
        batch, hidden_states, coefficients = loaded
        index, is_sample = chosen
        sample_axis = 1 if hidden_states else 0
        minibatch = tree_map(lambda x: x.index_select(sample_axis, index), batch)
        is_valid = is_sample.unsqueeze(-1).expand(minibatch.log_prob.shape)
        minibatch = minibatch.masked(is_valid)
        return self._step(minibatch, tree_map(lambda x: x.index_select(0, index), hidden_states), coefficients)
