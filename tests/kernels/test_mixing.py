"""The operator of QMIX's mixing network against PyTorch."""

import pytest
import torch

from coterie.kernels.mixing import qmix
from coterie.nets.mixers import QMIXMixer

SHAPES = [(3, 6, 8, 16), (1, 1, 1, 1), (2, 5, 17, 9), (5, 18, 32, 64)]
"""Agents, inputs, units of the mixing layer, hidden units of a hypernetwork."""


def mixer(shape=SHAPES[0], dtype=torch.float64):
    agents, inputs, units, hidden = shape
    net = QMIXMixer(agents, inputs, units, hidden, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():  # biases are zero at first
            p.add_(torch.randn(p.shape, generator=draw), alpha=0.1)
    return net.to(dtype)


def inputs(rows, shape=SHAPES[0], dtype=torch.float64):
    """Returns Q of the agents and the state, which require gradients."""
    draw = torch.Generator().manual_seed(2)
    sizes = ((*rows, shape[0]), (*rows, shape[1]))
    return [torch.randn(*size, generator=draw, dtype=dtype).requires_grad_() for size in sizes]


def layers(net):
    return (net.hidden, net.first, net.second, net.direct, net.value)


def fused(net, chosen, state):
    found = qmix(chosen, state, layers(net))
    assert found is not None
    return found


def eager(net, chosen, state):
    return net(chosen, chosen, state, chosen, torch.ones_like(chosen, dtype=torch.bool))


def values_and_gradients(function, net, chosen, state):
    out = function(net, chosen, state)
    weight = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad((out * weight).sum(), [chosen, state, *net.parameters()])]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [(0,), (1,), (7,), (3, 0), (5, 60), (2, 3, 4)])
def test_values_and_gradients_are_those_of_pytorch(rows, shape):
    net, given = mixer(shape), inputs(rows, shape)
    for a, b in zip(*(values_and_gradients(f, net, *given) for f in (fused, eager)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("rows", "shape"), [(9, SHAPES[0]), (1, SHAPES[1])])
def test_gradients_are_those_of_finite_differences(rows, shape):
    net, given = mixer(shape), inputs((rows,), shape)
    names, parameters = zip(*net.named_parameters(), strict=True)

    def run(chosen, state, *values):
        for name, value in zip(names, values, strict=True):
            layer, kind = name.split(".")
            object.__setattr__(given_layers[layer], kind, value)
        return qmix(chosen, state, given_layers.values())

    class Layer:
        """A layer whose weight and bias are arguments."""

    given_layers = {name: Layer() for name in ("hidden", "first", "second", "direct", "value")}
    assert torch.autograd.gradcheck(run, [*given, *parameters])


def test_a_state_without_gradient_changes_no_other_gradient():
    net, (chosen, state) = mixer(), inputs((100,))
    whole = values_and_gradients(fused, net, chosen, state)
    fused(net, chosen, state.detach()).mul(torch.linspace(-1, 2, 100, dtype=state.dtype)).sum().backward()
    assert torch.equal(chosen.grad, whole[1])
    assert all(torch.equal(p.grad, grad) for p, grad in zip(net.parameters(), whole[3:], strict=True))


@pytest.mark.parametrize("rows", [1, 47, 49, 1001])
def test_a_mixer_gives_the_same_with_and_without_kernels(rows, kernels_on):
    net, given = mixer(SHAPES[3], torch.float32), inputs((rows,), SHAPES[3], torch.float32)
    found = []
    for on in (False, True):
        with kernels_on(on):
            found.append(values_and_gradients(eager, net, *given))
    assert not all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # the kernel was used
    for without, with_kernels in zip(*found, strict=True):
        scale = float(without.detach().abs().max())
        torch.testing.assert_close(with_kernels, without, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("rows", [1, 47, 1001])
def test_the_number_of_threads_does_not_change_a_bit(rows, threads):
    net, given, found = mixer(SHAPES[3], torch.float32), inputs((rows,), SHAPES[3], torch.float32), []
    for count in (1, 2, 3):
        with threads(count):
            found.append(values_and_gradients(fused, net, *given))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_rows_do_not_depend_on_their_neighbors():
    net, (chosen, state) = mixer(dtype=torch.float32), inputs((100,), dtype=torch.float32)
    sizes = [1, 3, 50, 46]
    parts = [fused(net, *part) for part in zip(chosen.split(sizes), state.split(sizes), strict=True)]
    assert torch.equal(fused(net, chosen, state), torch.cat(parts))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["chosen", "state"])
def test_non_finite_inputs_give_what_pytorch_gives(place, bad):
    net, (chosen, state) = mixer(), inputs((5,))
    with torch.no_grad():
        (chosen if place == "chosen" else state)[2, 0] = bad
    out, chosen_grad, state_grad, *_ = values_and_gradients(fused, net, chosen, state)
    expected = values_and_gradients(eager, net, chosen, state)
    torch.testing.assert_close(out, expected[0], equal_nan=True)
    others = [0, 1, 3, 4]
    for grad, eager_grad in ((chosen_grad, expected[1]), (state_grad, expected[2])):
        torch.testing.assert_close(grad[others], eager_grad[others])
    assert not out[2].isfinite() or bad == -float("inf")


def test_a_weight_of_zero_has_no_gradient():
    net, (chosen, state) = mixer(), inputs((4,))
    with torch.no_grad():
        for layer in (net.first, net.second):
            layer.weight.zero_()
            layer.bias.zero_()
    for a, b in zip(*(values_and_gradients(f, net, chosen, state) for f in (fused, eager)), strict=True):
        torch.testing.assert_close(a, b)


def test_inputs_need_not_be_contiguous():
    net, (chosen, state) = mixer(), inputs((6, 4))
    found = fused(net, chosen.transpose(0, 1), state.transpose(0, 1))
    assert torch.equal(found, fused(net, chosen, state).T)


def test_other_types_have_no_kernel():
    net, (chosen, state) = mixer(), inputs((4,))
    assert qmix(chosen.float(), state, layers(net)) is None
    assert qmix(chosen.half(), state.half(), layers(net.half())) is None
