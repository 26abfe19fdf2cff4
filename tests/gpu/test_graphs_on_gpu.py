"""CUDA graphs on a GPU: replays compute what the function computes. Part of `make gpu`, skipped without a GPU."""

import pytest
import torch

from coterie.algos.graphed import Graphed, StaticInputs
from coterie.core.errors import UserError
from coterie.core.tree import tree_map
from graph_rollouts import CASES, assert_rollouts_are_those_without_graphs
from graph_training import (
    COMA,
    LEARNERS,
    OFF_POLICY,
    ON_POLICY,
    ORIGINAL,
    assert_coma_is_that_without_graphs,
    assert_gradient_steps_are_those_without_graphs,
    assert_original_is_that_without_graphs,
    assert_same,
    assert_targets_are_those_without_graphs,
    assert_updates_are_those_without_graphs,
    coma,
    off_policy,
    trained,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: make gpu")
DEVICE = torch.device("cuda", 0)


def copied(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize(("name", "rnn"), LEARNERS)
def test_updates_are_those_without_graphs(name, rnn):
    assert_updates_are_those_without_graphs(name, rnn, DEVICE, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ON_POLICY)
def test_targets_are_those_without_graphs(case):
    assert_targets_are_those_without_graphs(case, DEVICE, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ORIGINAL)
def test_steps_of_mappo_original_are_those_without_graphs(case):
    assert_original_is_that_without_graphs(case, DEVICE, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", OFF_POLICY)
def test_gradient_steps_are_those_without_graphs(case):
    assert_gradient_steps_are_those_without_graphs(case, DEVICE, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", COMA)
def test_steps_of_coma_are_those_without_graphs(case):
    assert_coma_is_that_without_graphs(case, DEVICE, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("train", "case"), [(off_policy, "QMIX"), (off_policy, "MATD3"), (off_policy, "MASAC"), (coma, "hard updates")]
)
def test_a_resumed_learner_captures_again_and_continues(train, case):
    """Its optimizers have other moments than those that it has captured."""
    first, other = (train(case, "on", DEVICE) for _ in range(2))
    rollouts = [first.collect() for _ in range(3)]
    other.learner.update(rollouts[2], 0.0)
    first.learner.update(rollouts[0], 0.0)
    other.learner.load_state_dict(tree_map(copied, first.learner.state_dict()))
    expected, found = ([x.learner.update(rollouts[1], 0.5)] for x in (first, other))
    assert_same(expected, first, found, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_rollouts_are_those_without_graphs(case):
    assert_rollouts_are_those_without_graphs(case, DEVICE)


def test_replays_are_the_padded_steps(monkeypatch):
    """The same operations on the same static tensors, executed one by one."""
    found, training = trained("ippo", "gru", "on", DEVICE)
    monkeypatch.setattr(Graphed, "__call__", lambda self, *inputs: self._function(*inputs))
    expected, eager = trained("ippo", "gru", "on", DEVICE)
    assert_same(expected, eager, found, training, rtol=1e-6, atol=1e-6)


def test_draws_and_changes_are_those_without_a_graph():
    expected, own = (torch.Generator(DEVICE).manual_seed(3) for _ in range(2))
    total = torch.zeros(2, device=DEVICE)

    def add(x):
        return total.add_(x * torch.rand(2, generator=own, device=DEVICE)).clone()

    graphed, inputs = Graphed(add, changes=lambda: [total], generators=[own], what="it"), StaticInputs()
    plain = torch.zeros(2, device=DEVICE)
    for k in range(3):
        x = torch.full((2,), k + 1.0, device=DEVICE)
        plain += x * torch.rand(2, generator=expected, device=DEVICE)
        assert torch.equal(graphed(inputs.load(x)), plain)
    assert torch.equal(own.get_state(), expected.get_state())


def test_a_read_by_the_host_is_refused_in_one_line():
    graphed = Graphed(lambda x: x * x.sum().item(), changes=list, what="the update of team red")
    with pytest.raises(
        UserError, match=r"^cuda_graphs=on: the update of team red cannot be captured.*cuda_graphs=off.$"
    ):
        graphed(StaticInputs().load(torch.ones(1, device=DEVICE)))
