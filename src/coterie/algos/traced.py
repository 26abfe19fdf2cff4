"""Gradient steps as traces: their operations, without the Python code and the record of gradients around them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from coterie.algos.graphed import Result
from coterie.algos.optimizer import Optimizer, TargetNetwork, changed_by_steps
from coterie.core.tree import Tree, tree_leaves
from coterie.kernels.native import only_kernels_in_parallel
from coterie.kernels.tracing import CannotTraceError, equal, trace

STEPS_BEFORE = 20
"""Steps of a kind that are taken as usual before one is traced, which takes as long as some dozens of steps gain."""
_MOST_KINDS = 128
"""Kinds of steps that are traced. Where episodes end at different timesteps, the number of timesteps that were acted on
differs between rollouts, and with it the size of minibatches: with MAPPO and 64 environments of foraging there are 35
sizes. There, a trace takes about 9 ms, as much as 25 steps by it gain, and 0.1 MB.
"""
_MOST_COUNTED = 1000
"""Kinds of steps that are counted."""
_MOST_NUMBERS = 1 << 18
"""Numbers of the largest tensor of a sample up to which PyTorch uses one thread beside kernels. On two cores, MAPPO on
simple_spread is 5% faster with one for 128 environments (45,000 numbers), and as fast with either for 1,024 (360,000),
where more cores than two can share an operation."""


class TracedStep(Generic[Result]):
    """A gradient step that is repeated by a trace, one for each kind of steps: flags, constants, layouts of samples and
    parameters that require gradients.

    After `STEPS_BEFORE` steps of a kind, one is traced, and the next one is taken with and without the trace. If any
    bit differs, if there is no trace, or while modules have hooks, steps are taken as usual. Other arguments are those
    of `GraphedStep`.

    Args:
        by_kernels: Kernels do most of the work, so that PyTorch uses one thread for samples of moderate size.
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
        by_kernels: bool = False,
    ):
        self._step, self._reads, self._generators, self._constants = step, reads, tuple(generators), constants
        self._optimizers, self._modules = tuple(optimizers), tuple(modules)
        self._parameters = [p for module in modules for p in module.parameters()]
        self._hooks, self._by_kernels = _hooks(modules), by_kernels
        self._followers = [x for target in targets for x in target.tensors()]
        self._numbers: dict[str, float] = {}
        self._coefficients: dict[str, Tensor] = {}
        self._traced: dict[Hashable, _Traced] = {}
        self._counts: dict[Hashable, int] = {}  # steps that were taken as usual

    def __call__(self, sample: Tree, coefficients: dict[str, float], *flags: bool) -> Result:
        """Takes a step. Arguments as those of the step."""
        leaves = tree_leaves(sample)
        if not self._by_kernels or torch.get_num_threads() == 1 or max(x.numel() for x in leaves) > _MOST_NUMBERS:
            return self._take(sample, leaves, coefficients, flags)
        with only_kernels_in_parallel():
            return self._take(sample, leaves, coefficients, flags)

    def _take(
        self, sample: Tree, leaves: Sequence[Tensor], coefficients: dict[str, float], flags: tuple[bool, ...]
    ) -> Result:
        if coefficients != self._numbers:  # seldom more than once per update
            self._numbers = dict(coefficients)
            for name, value in coefficients.items():
                if name not in self._coefficients:
                    self._coefficients[name] = torch.zeros((), dtype=torch.float64)
                self._coefficients[name].fill_(value)
        if any(self._hooks):
            return self._step(sample, self._coefficients, *flags)
        layouts = tuple([(x.shape, x.stride(), x.dtype) for x in leaves])
        kind = (flags, self._constants(), layouts, tuple([p.requires_grad for p in self._parameters]))
        found, kept = self._traced.get(kind), [*self._changes(), *self._reads()]
        if found is None or found.identities != [*map(id, kept)]:
            return self._trace(kind, kept, sample, flags)
        if found.repeat is None:
            return self._step(sample, self._coefficients, *flags)
        if not found.is_checked:
            return self._check(found, sample, flags)
        with torch._C._AutoDispatchBelowAutograd():
            return found.repeat(sample)

    def _changes(self) -> list[Tensor]:
        return [*(x for optimizer in self._optimizers for x in optimizer.tensors()), *self._followers]

    def _trace(self, kind: Hashable, kept: list[Tensor], sample: Tree, flags: tuple[bool, ...]) -> Result:
        """Takes a step, and traces it if it is due and possible."""
        if kind not in self._traced:
            if kind not in self._counts and len(self._counts) == _MOST_COUNTED:
                self._counts.clear()
            self._counts[kind] = count = self._counts.get(kind, 0) + 1
            if count <= STEPS_BEFORE or len(self._traced) == _MOST_KINDS:
                return self._step(sample, self._coefficients, *flags)
        changes = [*changed_by_steps(self._optimizers, self._modules), *self._followers]
        try:
            start, results = trace(
                lambda sample: self._step(sample, self._coefficients, *flags),
                sample,
                changes=changes,
                generators=self._generators,
            )
        except CannotTraceError as refusal:
            self._traced[kind] = _Traced(kept, None)
            return refusal.results
        with torch._C._AutoDispatchBelowAutograd():
            self._traced[kind] = _Traced(kept, start())
        return results

    def _check(self, traced: _Traced, sample: Tree, flags: tuple[bool, ...]) -> Result:
        """Takes a step with and without the trace, which is discarded if the results differ."""
        changes, found = [*changed_by_steps(self._optimizers, self._modules), *self._followers], None
        before = _copies(changes, self._generators)
        assert traced.repeat is not None
        try:
            with torch._C._AutoDispatchBelowAutograd():
                results = traced.repeat(sample)
            found = results, _copies(changes, self._generators)
        except RuntimeError:  # of an operation that does not allow what another sample allowed
            pass
        with torch.no_grad():
            for x, value in zip(changes, before[0], strict=True):
                x.copy_(value)
        for generator, state in zip(self._generators, before[1], strict=True):
            generator.set_state(state)
        expected = self._step(sample, self._coefficients, *flags)
        traced.is_checked = found is not None and equal(found, (expected, _copies(changes, self._generators)))
        if not traced.is_checked:
            traced.repeat = None
        return expected


def _hooks(modules: Sequence[nn.Module]) -> list[Any]:
    """Returns dictionaries of the hooks of modules, to which others are added."""
    parts = [part for module in modules for part in module.modules()]
    forward = [x for part in parts for x in (part._forward_hooks, part._forward_pre_hooks)]
    return [*forward, *(x for part in parts for x in (part._backward_hooks, part._backward_pre_hooks))]


def _copies(tensors: Sequence[Tensor], generators: Sequence[torch.Generator]) -> tuple[list[Tensor], list[Tensor]]:
    """Returns copies of tensors, and the states of generators."""
    return [x.detach().clone() for x in tensors], [g.get_state() for g in generators]


class _Traced:
    """A traced step.

    Attributes:
        kept: Tensors that it reads and changes.
        identities: Their identities, which differ from those of a copy of the step.
        repeat: Takes a step; None if it cannot be traced.
        is_checked: True if a step by the trace once had the same results.
    """

    def __init__(self, kept: list[Tensor], repeat: Callable[..., Any] | None):
        self.kept, self.identities = kept, [*map(id, kept)]
        self.repeat, self.is_checked = repeat, False
