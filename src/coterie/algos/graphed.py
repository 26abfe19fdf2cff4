"""Functions of tensors on a GPU that are captured as CUDA graphs, and gradient steps among them.

A replay starts all operations of a function at once. It reads and writes the memory that the function read and wrote
when it was captured, and executes no Python: numbers and branches of that time are part of the graph.

Gradient steps are captured on samples of a replay buffer, on sequences, and on minibatches. Sampling and priorities are
not part of a graph: the sample is copied to static tensors, and the step returns the errors that give priorities.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.algos.optimizer import Optimizer, TargetNetwork, changed_by_steps
from coterie.core.errors import UserError
from coterie.core.tree import Tree, tree_leaves, tree_map
from coterie.core.types import HiddenState

_WARM_UP_CALLS = 3
"""Calls before a capture, in which libraries allocate what they keep, as in PyTorch's examples."""


class StaticInputs:
    """Static tensors for trees of tensors of one structure, into which each tree is copied."""

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Tree] = {}

    def load(self, tree: Tree) -> Tree:
        """Copies a tree, and returns the copy: the same tensors for all trees with the same shapes and types."""
        leaves = tree_leaves(tree)
        key = tuple((tuple(x.shape), x.dtype) for x in leaves)
        if key not in self._buffers:
            self._buffers[key] = tree_map(torch.empty_like, tree)
        for buffer, x in zip(tree_leaves(self._buffers[key]), leaves, strict=True):
            buffer.copy_(x)
        return self._buffers[key]


class _Captured(NamedTuple):
    inputs: list[Tensor]
    kept: list[Tensor]
    replay: Callable[[], None]
    outputs: Tree


class Graphed:
    """A function of tensors on a GPU, captured as one CUDA graph for each set of input tensors.

    The first call with other input tensors captures the function again, so inputs have to be static tensors. The calls
    before a capture, which change parameters and draw random numbers, are undone: results do not depend on when the
    function was captured.

    Args:
        function: Returns a tree of tensors without gradients. It may neither read tensors on the host nor copy any to
            the GPU, and everything that differs between calls has to be in its inputs, or in tensors that stay where
            they are.
        changes: Returns the tensors that the function changes in place. If these are others, it is captured again.
        reads: Returns tensors that it reads besides its inputs, such as parameters; the same holds for them.
        generators: Generators that the function draws from.
        what: Name of the function for messages.
    """

    def __init__(
        self,
        function: Callable[..., Tree],
        *,
        changes: Callable[[], list[Tensor]] = list,
        reads: Callable[[], list[Tensor]] = list,
        generators: Sequence[torch.Generator] = (),
        what: str,
    ):
        self._function, self._changes, self._reads = function, changes, reads
        self._generators, self._what = generators, what
        self._captured: dict[tuple[int, ...], _Captured] = {}
        self.captures = 0
        """Number of captures so far."""

    def __call__(self, *inputs: Tree) -> Tree:
        """Returns the function's results, which the next call overwrites.

        Raises:
            UserError: If the function cannot be captured.
        """
        leaves, changed = tree_leaves(inputs), self._changes()
        kept = [*changed, *self._reads()]
        key = tuple(id(x) for x in leaves)  # of tensors that `_captured` keeps
        found = self._captured.get(key)
        if found is None or [id(x) for x in found.kept] != [id(x) for x in kept]:
            replay, outputs = self._capture(inputs, leaves[0].device, changed)
            found = self._captured[key] = _Captured(leaves, kept, replay, outputs)
        found.replay()
        return found.outputs

    def _capture(
        self, inputs: tuple[Tree, ...], device: torch.device, changed: list[Tensor]
    ) -> tuple[Callable[[], None], Tree]:
        def call() -> Tree:
            return self._function(*inputs)

        self.captures += 1
        before = [x.detach().clone() for x in changed]
        states = [g.get_state() for g in self._generators]
        try:
            warm_up(call, device)
            with torch.no_grad():
                for x, value in zip(changed, before, strict=True):
                    x.copy_(value)
            replay, outputs = capture(call, self._generators, device)
        except RuntimeError as error:
            raise UserError(
                f"cuda_graphs=on: {self._what} cannot be captured as a CUDA graph ({_first_line(error)}). Use "
                "cuda_graphs=off."
            ) from error
        for g, state in zip(self._generators, states, strict=True):
            g.set_state(state)
        return replay, outputs


class GraphedFunction:
    """A function of any tensors on a GPU, captured as a CUDA graph for each set of their shapes and types.

    Tensors are copied to static ones. Arguments are those of `Graphed`.
    """

    def __init__(self, function: Callable[..., Tree], *, reads: Callable[[], list[Tensor]] = list, what: str):
        self._graphed, self._inputs = Graphed(function, reads=reads, what=what), StaticInputs()

    def __call__(self, *inputs: Tree) -> Tree:
        """Returns the function's results, static tensors that the next call overwrites.

        Raises:
            UserError: If the function cannot be captured.
        """
        return self._graphed(*self._inputs.load(inputs))

    @property
    def captures(self) -> int:
        """Number of captures so far."""
        return self._graphed.captures


def warm_up(function: Callable[[], Tree], device: torch.device) -> None:
    """Calls a function on a stream of its own, before it is captured."""
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_CALLS):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)


def capture(
    function: Callable[[], Tree], generators: Sequence[torch.Generator], device: torch.device
) -> tuple[Callable[[], None], Tree]:
    """Captures a function without executing its operations.

    Args:
        function: The function.
        generators: Generators that it draws from. Each replay draws from their states at that time.
        device: The GPU.

    Returns:
        A function that executes the operations, and the tensors to which it writes the results.
    """
    graph = torch.cuda.CUDAGraph()
    for g in generators:
        graph.register_generator_state(g)
    with _without_garbage_collection(), torch.cuda.graph(graph, stream=_stream(device)):
        outputs = function()
    return graph.replay, outputs


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream of warm-ups and captures: gradients are accumulated on the stream of their first use."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Context of a capture, which would fail if a CUDA graph or event were destroyed within it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _first_line(error: RuntimeError) -> str:
    """Returns the first line of the message: of the error within a capture, since the end of the capture is another."""
    within = error.__context__
    return str(within if isinstance(within, RuntimeError) else error).partition("\n")[0].rstrip(".")


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
