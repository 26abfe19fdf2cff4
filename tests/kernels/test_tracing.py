"""Traces repeat the operations of a function with other inputs."""

import pytest
import torch
from torch import nn

from coterie.core.device_constants import DeviceNumber
from coterie.core.types import Action
from coterie.kernels.mlp import mlp
from coterie.kernels.tracing import CannotTraceError, equal, trace


def repeated(function, first, then):
    """Returns the results of a trace for other inputs than those of the call that was traced."""
    with torch.inference_mode():
        traced, _ = trace(function, *first)
        return traced()(*then)


def assert_repeats(function, *inputs):
    """Checks the results of tracing and repeating against those of the function."""
    others = tuple(torch.rand_like(x) if x.is_floating_point() else ~x for x in inputs)
    with torch.inference_mode():
        traced, results = trace(function, *inputs)
        assert equal(results, function(*inputs))
        assert equal(traced()(*others), function(*others))


X, MASK = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([[True], [False], [True]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: x + 1,
        lambda x, m: torch.where(m, 0.0, x),
        lambda x, m: torch.where(m, x, 0.0),
        lambda x, m: x.masked_fill(m, 0).exp().mul_(2).add_(x).log_(),
        lambda x, m: torch.cat([x, m.float(), m.expand(-1, 2)], -1),
        lambda x, m: (x[:, 1:3], x[:, -2:], x[1], x[..., :1], x[:, ::2], x[:, 1:-1]),
        lambda x, m: x.split([1, 3], -1)[1],
        lambda x, m: x.max(-1),
        lambda x, m: (x.argmax(-1, keepdim=True), x.sort(-1, descending=True).values, x.to(torch.float64)),
        lambda x, m: {"a": [x.t(), None], "b": {"c": x.reshape(2, 6).flatten()}},
        lambda x, m: x.log_softmax(-1).gather(-1, m.long()).squeeze(-1),
        lambda x, m: torch.zeros(2, 3),
        lambda x, m: x @ torch.ones(4, 2),
        lambda x, m: (x, m),
        lambda x, m: (x.flatten(0, 0) + 1, m.flatten(0, 0).logical_not(), x.clamp(0, 1).flatten(0, 0) + 2),
        lambda x, m: torch.stack([x, x.clone()]).unbind(1)[0],
        lambda x, m: torch.nn.functional.pad(x, (0, 2)),
    ],
)
def test_results_with_other_inputs_are_those_of_the_function(function):
    assert_repeats(function, X, MASK)


def test_an_object_that_was_passed_twice_is_two_inputs():
    assert torch.equal(repeated(lambda x, y: x - y, (X, X), (X, X + 1)), X - (X + 1))


def test_inputs_are_found_in_dictionaries_tuples_and_dataclasses():
    def function(action, rest):
        return Action(action.discrete + rest["a"][1], None)

    def inputs(k):
        return Action(torch.tensor([k])), {"a": (torch.zeros(1), torch.tensor([10 * k]))}

    found = repeated(function, inputs(1), inputs(2))
    assert isinstance(found, Action)
    assert found.discrete is not None
    assert found.discrete.item() == 22


def test_an_input_that_is_returned_is_that_of_the_call():
    later = {"h": X + 1}
    assert repeated(lambda state: state, ({"h": X},), (later,))["h"] is later["h"]


def test_parameters_that_are_changed_in_place_are_read_again():
    layer = nn.Linear(4, 2)
    with torch.inference_mode():
        traced, _ = trace(layer, X)
    with torch.no_grad():
        layer.weight.add_(1)
    with torch.inference_mode():
        assert equal(traced()(X), layer(X))


def test_operations_without_inputs_are_executed_once_per_start():
    weight, calls = torch.ones(4), []

    def twice(x):
        calls.append(x)
        return x * (weight * 2)

    with torch.inference_mode():
        traced, _ = trace(twice, X)
        repeat = traced()
        weight.fill_(3)
        assert torch.equal(repeat(X), X * 2)  # as of the start
        assert torch.equal(traced()(X), X * 6)
    assert len(calls) == 1


@pytest.mark.parametrize("value", [0.1, 0.7])
def test_numbers_that_change_are_read_again_and_act_like_python_numbers(value):
    number = DeviceNumber(0.5, torch.device("cpu"))

    def function(x):
        epsilon = number.operand
        return x * (1 - epsilon) + epsilon / 3, x < epsilon

    with torch.inference_mode():
        traced, _ = trace(function, X)
        number.value = value
        assert isinstance(number.operand, float)
        assert equal(traced()(X), function(X))


def test_kernels_are_called_with_new_inputs():
    weights, biases = [torch.rand(4, 5), torch.rand(5, 2)], [torch.zeros(5), torch.ones(2)]
    assert_repeats(lambda x: mlp(x, weights, biases, activated=1), X)


def test_parameters_of_kernels_are_prepared_at_every_start():
    weight, bias = nn.Parameter(torch.rand(4, 2)), nn.Parameter(torch.rand(2))
    with torch.inference_mode():
        traced, _ = trace(lambda x: mlp(x, [weight], [bias], activated=0), X)
        repeat = traced()
        torch.testing.assert_close(repeat(X + 1), (X + 1) @ weight + bias)
        torch.testing.assert_close(repeat(X.t().contiguous().t() + 1), (X + 1) @ weight + bias)
        weight.zero_()
        torch.testing.assert_close(repeat(X), bias.expand(3, 2))
        bias.data = torch.ones(2)
        torch.testing.assert_close(traced()(X), torch.ones(3, 2))


def test_parameters_of_kernels_that_depend_on_inputs_are_read_again():
    bias = torch.zeros(2)

    def layer(x, weight):
        return mlp(x, [weight * 2], [bias], activated=0)

    first, then = torch.rand(4, 2), torch.rand(4, 2)
    torch.testing.assert_close(repeated(layer, (X, first), (X, then)), X @ (then * 2))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * x.sum().item(), "host"),
        (lambda x: x if x.sum() > 0 else -x, "host"),
        (lambda x: x.nonzero(), "host"),
        (lambda x: x[x > 0.5], "host"),
        (lambda x: (x * 2).masked_select(x > 0.5), "host"),
        (lambda x: x.view(-1).unsqueeze(0).mul_(2), "an input"),
        (lambda x: (CONSTANT + 1).add_(x.sum()), "constant"),
        (lambda x: torch.dropout(x, 0.5, True), "random"),
        (lambda x: x + torch.rand(3, 4), "random"),
        (lambda x: x.add_(1), "an input"),
        (lambda x: x[0].zero_(), "an input"),
        (lambda x: CONSTANT.add_(x.sum()), "constant"),
    ],
)
def test_what_cannot_be_repeated_is_refused(function, reason):
    x = X.clone()
    with torch.inference_mode(), pytest.raises(CannotTraceError, match=reason):
        trace(function, x)


CONSTANT = torch.zeros(1)


def test_equal_compares_values_shapes_types_and_layouts():
    nan = torch.tensor([float("nan"), 1.0])
    assert equal({"a": nan}, {"a": nan.clone()})
    assert not equal(nan, torch.tensor([1.0, 1.0]))
    assert not equal(torch.ones(2), torch.ones(2, 1))
    assert not equal(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not equal(torch.ones(2, 2), torch.ones(2, 2).t())
    assert not equal(torch.ones(2), torch.tensor([1.0, 2.0]))
