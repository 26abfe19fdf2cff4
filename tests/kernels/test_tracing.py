"""Traces repeat the operations of a function with other inputs."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.core.device_constants import DeviceNumber
from coterie.core.types import Action
from coterie.functional.statistics import initial_moments, update_moments
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
        repeat = traced()
        found = repeat(*others)
        assert equal(repeat(*inputs), results)
        assert equal(found, function(*others))  # the second call leaves the results of the first one


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
        lambda x, m: x[m.long().squeeze(-1)],
        lambda x, m: (CONSTANT + 1).add_(x.sum()),
        lambda x, m: torch.zeros(3).copy_(x[:, 0]).mul_(2),
    ],
)
def test_results_with_other_inputs_are_those_of_the_function(function):
    assert_repeats(function, X, MASK)


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


def test_moments_are_computed_by_operations_that_are_recorded():
    """Their kernel is not an operator. Its results may differ in the last bits."""

    def function(x):
        return update_moments(initial_moments(4, x.device), x, None, kernels=True)

    torch.testing.assert_close(repeated(function, (X,), (X + 1,)), function(X + 1))


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
        (lambda x: torch.unique(x), "host"),
        (lambda x: torch.bincount(x.long().flatten()), "host"),
        (lambda x: x * (2 * x).tolist()[0][0], "host by tolist"),
        (lambda x: x * (2 * x).numpy()[0, 0], "host by numpy"),
        (lambda x: torch.where(x > np.asarray(x).mean(), x, 0.0), "host by __array__"),
        (lambda x: x.view(-1).unsqueeze(0).mul_(2), "an input"),
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
    assert not equal({"a": nan}, {"a": nan, "b": nan})
    assert not equal(nan, torch.tensor([1.0, 1.0]))
    assert not equal(torch.ones(2), torch.ones(2, 1))
    assert not equal(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not equal(torch.ones(2, 2), torch.ones(2, 2).t())
    assert not equal(torch.ones(2), torch.tensor([1.0, 2.0]))


# --------------------------------------------------------------------------------------- functions that change tensors


class Executed(TorchDispatchMode):
    """Names of the operations that are executed while it is active."""

    def __init__(self):
        super().__init__()
        self.names = []

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # it would import PyTorch's compiler, which takes a second

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def network():
    """Returns a network with its gradients, a function that takes a step of gradient descent, and what it changes."""
    net, draw = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)), torch.Generator().manual_seed(0)
    for p in net.parameters():
        p.data.normal_(generator=draw)
        p.grad = torch.zeros_like(p)

    def step(x):
        for p in net.parameters():
            p.grad.zero_()
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(0.1 * p.grad)
        return loss.detach()

    return net, step, [*net.parameters(), *(p.grad for p in net.parameters())]


def repeat_below_autograd(traced, *inputs):
    with torch._C._AutoDispatchBelowAutograd():
        return traced(*inputs)


def test_steps_with_gradients_are_those_of_the_function():
    """Gradients, parameters and losses of four steps, each of which reads what the one before has changed."""
    (_, step, changes), (_, plain, expected) = network(), network()
    start, first = trace(step, X, changes=changes)
    repeat, inputs = start(), [X + 0.1 * k for k in range(1, 4)]
    found = [first, *(repeat_below_autograd(repeat, x) for x in inputs)]
    assert equal(found, [plain(x) for x in (X, *inputs)])
    assert equal(changes, expected)
    assert len({float(x) for x in found}) == 4


def test_parameters_that_others_change_are_read_again():
    (net, step, changes), (other, plain, expected) = network(), network()
    start, _ = trace(step, X, changes=changes)
    repeat = start()
    plain(X)
    with torch.no_grad():
        net[0].weight.mul_(2)
        other[0].weight.mul_(2)
    assert equal(repeat_below_autograd(repeat, X), plain(X))
    assert equal(changes, expected)


def test_only_views_are_made_once_by_a_function_that_changes_tensors():
    """What is computed from tensors that may change is computed in each call, also if the function leaves them."""
    weight, constant = torch.ones(4), torch.ones(2, 2)

    def function(x):
        weight.add_(1)
        return x * (constant.flatten() * 3) + weight.view(1, 4) + torch.arange(4)

    start, _ = trace(function, X, changes=[weight])
    repeat = start()
    with Executed() as executed:
        found = repeat(X)
    assert equal(found, X * 3 + 3 + torch.arange(4))
    assert not {"view", "arange", "flatten", "reshape"} & {*executed.names}
    constant.fill_(2)
    assert equal(repeat(X), X * 6 + 4 + torch.arange(4))
    assert executed.names.count("mul") == 2


def test_results_that_nobody_reads_are_not_computed():
    start, _ = trace(lambda x: (x.exp().sum(), x + 1)[1], X)
    with Executed() as executed:
        found = start()(X)
    assert equal(found, X + 1)
    assert executed.names == ["add"]


def test_the_gradients_of_inputs_are_not_computed_and_changes_that_nobody_reads_are_made():
    counter = torch.zeros(())
    start, _ = trace(lambda x: (counter.add_(1), x * 2)[1], X, changes=[counter])
    repeat = start()
    for _ in range(3):
        repeat(X)
    assert counter == 4


def test_random_numbers_are_drawn_in_each_call_and_in_the_order_of_the_function():
    def function_of(generator):
        def function(x):
            torch.rand(2, generator=generator)  # nobody reads them
            first = torch.randn(4, generator=generator)
            return x * first + torch.empty(4).exponential_(generator=generator)

        return function

    own, other = (torch.Generator().manual_seed(3) for _ in range(2))
    start, first = trace(function_of(own), X, changes=[], generators=[own])
    repeat = start()
    found, expected = [first, repeat(X), repeat(X)], [function_of(other)(X) for _ in range(3)]
    assert equal(found, expected)
    assert torch.equal(own.get_state(), other.get_state())
    assert not equal(found[1], found[2])


def test_random_numbers_of_another_generator_are_refused():
    own, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(4)
    with pytest.raises(CannotTraceError, match="random"):
        trace(lambda x: x * torch.rand(4, generator=other), X, changes=[], generators=[own])
    with pytest.raises(CannotTraceError, match="random"):
        trace(lambda x: x * torch.rand(4), X, changes=[], generators=[own])


def test_a_change_of_a_tensor_that_is_not_declared_is_refused():
    declared, other = torch.zeros(4), torch.zeros(4)
    with pytest.raises(CannotTraceError, match="changes an input or a constant"):
        trace(lambda x: (declared.add_(1), other.add_(1)), X, changes=[declared])
    trace(lambda x: (declared.add_(1), declared[1:].mul_(2)), X, changes=[declared])


def test_a_call_that_is_refused_is_completed_once():
    """Its results are those without a trace, with what it draws and changes after the reason."""

    def function(x):
        scale = float(x.sum().item())
        return x * scale * torch.rand(4, generator=generator), counter.add_(1)

    counter, generator = torch.zeros(()), torch.Generator().manual_seed(3)
    with pytest.raises(CannotTraceError, match="host") as found:
        trace(function, X, changes=[], generators=[])
    state = generator.get_state()
    generator.manual_seed(3)
    assert equal(found.value.results[0], function(X)[0])
    assert torch.equal(generator.get_state(), state)
    assert counter == 2


def test_an_error_in_a_backward_pass_is_that_of_the_tracer():
    _, step, changes = network()
    with pytest.raises(CannotTraceError, match="changes an input or a constant"):
        trace(step, X, changes=changes[:4])  # without the gradients


def test_tensors_are_released_after_their_last_use(monkeypatch):
    alive = []

    def spy(x):
        made = x + 1
        doubled = made * 2
        tripled = doubled * 3
        return tripled * 4

    start, _ = trace(spy, X)
    repeat, add, mul = start(), torch.add, torch.mul
    constants = repeat.__globals__
    made = []

    def recording(function):
        def call(*args):
            alive.append(sum(x() is not None for x in made))
            found = function(*args)
            made.append(weakref.ref(found))
            return found

        return call

    for name, value in [*constants.items()]:
        if value in (add, mul):
            monkeypatch.setitem(constants, name, recording(value))
    assert equal(repeat(X), (X + 1) * 24)
    assert alive == [0, 1, 1, 1]  # each operation finds the result of the one before, and no others
