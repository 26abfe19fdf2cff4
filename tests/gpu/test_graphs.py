"""Gradient steps as CUDA graphs, on a fake device that replays operations without the Python around them."""

from dataclasses import dataclass

import pytest
import torch

from coterie.algos.graphed import Graphed, GraphedMinibatches, StaticInputs
from coterie.algos.on_policy import random_parts
from coterie.algos.optimizer import Optimizer
from coterie.core.errors import UserError
from coterie.core.tree import register_pytree, tree_map
from fakecuda import CUDA, fake_cuda
from graph_training import Training, assert_updates_are_those_without_graphs


@pytest.fixture
def cuda():
    with fake_cuda() as found:
        yield found


def copied(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


def nothing_changes():
    return []


def test_a_replay_reads_inputs_and_writes_results_in_place(cuda):
    graphed, inputs = Graphed(lambda x: 2 * x + 1, changes=nothing_changes, what="it"), StaticInputs()
    results = [graphed(inputs.load(torch.full((3,), value, device=CUDA))) for value in (1.0, 2.0)]
    assert results[0] is results[1]
    assert results[1].tolist() == [5, 5, 5]
    assert graphed.captures == 1


def test_python_is_not_executed_again(cuda):
    """Numbers are those of the capture: a learning rate as a number would never change."""
    numbers = iter((1.0, 1.0, 2.0, 3.0))
    graphed, inputs = Graphed(lambda x: x * next(numbers), changes=nothing_changes, what="it"), StaticInputs()
    assert [graphed(inputs.load(torch.ones(1, device=CUDA))).item() for _ in range(3)] == [1, 1, 1]


def test_one_hot_codes_are_part_of_a_graph(cuda):
    """The stand-in computes them by operations that it records."""
    graphed, inputs = Graphed(lambda x: torch.nn.functional.one_hot(x, 3), what="it"), StaticInputs()
    found = [graphed(inputs.load(torch.full((1,), k, device=CUDA))).tolist() for k in range(3)]
    assert found == [[[1, 0, 0]], [[0, 1, 0]], [[0, 0, 1]]]


def test_each_set_of_shapes_is_captured_once(cuda):
    graphed, inputs = Graphed(lambda x: x.sum(), changes=nothing_changes, what="it"), StaticInputs()
    sums = [graphed(inputs.load(torch.ones(size, device=CUDA))).item() for size in (2, 3, 2, 3)]
    assert sums == [2, 3, 2, 3]
    assert graphed.captures == 2


def test_what_is_changed_counts_calls_and_not_captures(cuda):
    """Calls before the capture are undone. A tensor that replaces the changed one is captured again."""
    kept = {"x": torch.zeros(1, device=CUDA)}
    graphed = Graphed(lambda one: kept["x"].add_(one).clone(), changes=lambda: [kept["x"]], what="it")
    inputs = StaticInputs()
    one = inputs.load(torch.ones(1, device=CUDA))
    assert [graphed(one).item() for _ in range(3)] == [1, 2, 3]
    kept["x"] = torch.full((1,), 10.0, device=CUDA)
    assert [graphed(one).item() for _ in range(2)] == [11, 12]
    assert graphed.captures == 2


def test_draws_are_those_without_a_graph(cuda):
    def draw(generator):
        return torch.rand(2, generator=generator, device=CUDA)

    expected = torch.Generator(CUDA).manual_seed(3)
    numbers = [draw(expected).tolist() for _ in range(3)]
    own = torch.Generator(CUDA).manual_seed(3)
    graphed = Graphed(lambda _: draw(own), changes=nothing_changes, generators=[own], what="it")
    one = StaticInputs().load(torch.ones(1, device=CUDA))
    assert [graphed(one).tolist() for _ in range(3)] == numbers
    unregistered = Graphed(lambda _: draw(own), changes=nothing_changes, what="it")
    with pytest.raises(UserError, match="generator is not registered"):
        unregistered(one)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: x * x.sum().item(), "read by the host"),
        (lambda x: x[x > 0], "read by the host"),
        (lambda x: x + torch.tensor([1.0], device=CUDA), "copy from the host"),
    ],
)
def test_a_function_that_waits_for_the_host_is_refused_in_one_line(cuda, function, kind):
    graphed = Graphed(function, changes=nothing_changes, what="the update of team red")
    with pytest.raises(UserError) as error:
        graphed(StaticInputs().load(torch.ones(1, device=CUDA)))
    assert str(error.value).startswith(
        f"cuda_graphs=on: the update of team red cannot be captured as a CUDA graph ({kind}"
    )
    assert str(error.value).endswith("). Use cuda_graphs=off.")


@register_pytree
@dataclass(frozen=True)
class Samples:
    """Timesteps [M, 1], or sequences [L, M, 1]."""

    log_prob: torch.Tensor
    valid: torch.Tensor | None = None

    def masked(self, mask):
        return Samples(self.log_prob, mask)


@pytest.mark.parametrize("sequences", [False, True])
def test_minibatches_are_filled_up_to_the_size_of_the_largest_and_no_further(cuda, sequences):
    """Six samples with the numbers 1 to 6, or sequences of two timesteps of them, in three minibatches, then five."""
    sizes = []

    def step(batch, hidden_states, coefficients):
        sizes.append(batch.log_prob.shape[-2])
        return torch.where(batch.valid, batch.log_prob, 0.0).sum().reshape(1)

    weights = torch.nn.Linear(1, 1, device=CUDA)
    optimizer = Optimizer({"policy": weights}, 1e-5, 0.0, None)
    steps = GraphedMinibatches(step, optimizer, (weights,), "the update")
    numbers = torch.arange(1.0, 7.0, device=CUDA)[:, None]
    batch = Samples(numbers.expand(2, 6, 1).clone() if sequences else numbers)
    loaded = steps.load(batch, {"h": numbers} if sequences else {}, {})
    shuffle = torch.Generator(CUDA).manual_seed(0)
    for count, total in ((6, 21.0), (5, 15.0)):
        candidates = torch.arange(count, device=CUDA)
        reports = [steps(loaded, chosen, 2) for chosen in random_parts(candidates, 3, shuffle)]
        assert sum(report.item() for report in reports) == total * (2 if sequences else 1)
    assert set(sizes) == {2}
    assert steps.graphed.captures == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rnn"), [("ippo", "none"), ("poca", "none")])
def test_updates_are_those_without_graphs(cuda, name, rnn):
    """Minibatches that are filled up. Those of recurrent networks are equal bit for bit: `test_graphed_targets.py`."""
    assert_updates_are_those_without_graphs(name, rnn, CUDA, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_an_update_reads_no_more_with_graphs_and_as_often_in_all_epochs(cuda, rnn):
    """Gradient steps and rollouts are two graphs, which are captured once."""
    training = Training("ippo", rnn, CUDA, cuda_graphs="on")
    training.update(0.0)
    cuda.reads.clear()
    cuda.copies.clear()
    training.update(0.5)
    once = {"training/collector:_checked_counts": 1, "algos/optimizer:mean_metrics": 1}
    assert cuda.reads == once | ({"algos/clipped_learner:acted_candidates": 1} if rnn == "none" else {})
    assert cuda.copies == {"training/rollout_builder:team_rollout": 1}
    assert training.learner._graphs.graphed.captures == training.rollout_captures == 1


def test_a_resumed_learner_captures_again_and_continues_exactly(cuda):
    """Also one that has captured before its state is loaded, whose graph writes to other moments."""
    first, fresh, used = (Training("ippo", "none", CUDA, cuda_graphs="on") for _ in range(3))
    rollouts = [first.collect() for _ in range(3)]
    used.learner.update(rollouts[2], 0.0)
    first.learner.update(rollouts[0], 0.0)
    saved = first.learner.state_dict()
    for other in (fresh, used):
        other.learner.load_state_dict(tree_map(copied, saved))
    metrics = [x.learner.update(rollouts[1], 0.5) for x in (first, fresh, used)]
    assert metrics[0] == metrics[1] == metrics[2]
    assert [x.learner._graphs.graphed.captures for x in (first, fresh, used)] == [1, 1, 2]
    for x, y, z in zip(first.tensors(), fresh.tensors(), used.tensors(), strict=True):
        assert torch.equal(x, y)
        assert torch.equal(x, z)
