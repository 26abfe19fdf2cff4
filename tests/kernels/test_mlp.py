"""The operator of multilayer perceptrons against PyTorch."""

import itertools

import pytest
import torch

from coterie.kernels.mlp import ACTIVATIONS, eager_mlp, mlp
from coterie.nets.config import NetworkConfig
from coterie.nets.layers import MLP, Linear

SHAPES = [((3, 5, 2), 1), ((4, 17, 6, 3), 3), ((5, 2), 0), ((1, 33, 1), 1)]
CASES = [  # every pair of activation, normalization, sets and shape, but silu, which has no normalization
    ("tanh", False, None, SHAPES[0], 7),
    ("tanh", True, 3, SHAPES[1], 1),
    ("tanh", "hidden", None, SHAPES[1], 7),
    ("tanh", "hidden", 3, SHAPES[0], 1),
    ("tanh", False, 3, SHAPES[2], 7),
    ("relu", False, None, SHAPES[1], 1),
    ("relu", True, None, SHAPES[0], 7),
    ("relu", "hidden", 3, SHAPES[3], 7),
    ("relu", True, 3, SHAPES[2], 1),
    ("silu", False, 3, SHAPES[1], 7),
    ("silu", False, None, SHAPES[3], 7),
]


def network(widths, *, activated, sets=None, norm=False, dtype=torch.float64, seed=0):
    """Returns weights, biases, scales and shifts that require gradients."""
    draw = torch.Generator().manual_seed(seed)
    lead = () if sets is None else (sets,)

    def tensor(*shape):
        return torch.randn(*lead, *shape, generator=draw, dtype=dtype).requires_grad_()

    def row(size):
        return tensor(size) if sets is None else tensor(1, size)

    normed = widths[norm == "hidden" : activated + 1] if norm and activated else ()
    weights = [tensor(a, b) for a, b in itertools.pairwise(widths)]
    return weights, [row(b) for b in widths[1:]], [row(w) for w in normed], [row(w) for w in normed]


def as_function(parts, activation, activated):
    """Returns the operator as a function of x and all parameters."""
    edges = [0, *itertools.accumulate(len(part) for part in parts)]

    def run(x, *flat):
        weights, biases, scales, shifts = (flat[a:b] for a, b in itertools.pairwise(edges))
        norms = list(zip(scales, shifts, strict=True))
        return mlp(x, weights, biases, norms=norms, activation=activation, activated=activated)

    return run


@pytest.mark.parametrize(("activation", "norm", "sets", "shape", "rows"), CASES)
def test_values_and_gradients_are_those_of_pytorch(activation, norm, sets, shape, rows):
    widths, activated = shape
    parts = network(widths, activated=activated, sets=sets, norm=norm)
    x = torch.randn(*(() if sets is None else (sets,)), rows, widths[0], dtype=torch.float64, requires_grad=True)
    flat = [x, *itertools.chain(*parts)]
    run = as_function(parts, activation, activated)
    torch.testing.assert_close(run(*flat), eager_mlp(x, *parts, ACTIVATIONS[activation], activated))
    assert torch.autograd.gradcheck(run, flat)


@pytest.mark.parametrize("norm", [True, "hidden"])
def test_the_gradient_can_be_differentiated_again(norm):
    parts = network((3, 4, 2), activated=1, norm=norm)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(as_function(parts, "tanh", 1), [x, *itertools.chain(*parts)])


@pytest.mark.parametrize("norm", [False, True, "hidden"])
def test_a_network_gives_the_same_with_and_without_kernels(norm, kernels_on):
    generator = torch.Generator().manual_seed(0)
    net = MLP(18, NetworkConfig((64, 40), "tanh", layer_norm=norm), generator)
    head, x = Linear(40, 5, gain=1.0, generator=generator), torch.randn(1100, 18, generator=generator)
    found = {}
    for on in (False, True):
        with kernels_on(on):
            out = net(x, head)
            out.square().sum().backward()
        found[on] = [out.detach(), *(p.grad for p in (*net.parameters(), *head.parameters()))]
        net.zero_grad(set_to_none=True), head.zero_grad(set_to_none=True)
    for eager, fused in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(fused, eager, rtol=1e-4, atol=1e-4 * float(eager.abs().max()))


@pytest.mark.parametrize(("rows", "sets", "norm"), [(1, 2, True), (47, None, "hidden"), (1001, 2, "hidden")])
def test_the_number_of_threads_does_not_change_a_bit(rows, sets, norm, threads):
    parts = network((18, 64, 64, 5), activated=2, sets=sets, norm=norm, dtype=torch.float32)
    x = torch.randn(*(() if sets is None else (sets,)), rows, 18, requires_grad=True)
    flat, found = [x, *itertools.chain(*parts)], []
    for count in (1, 2, 3):
        with threads(count):
            out = as_function(parts, "tanh", 2)(*flat)
            found.append([out, *torch.autograd.grad(out.square().sum(), flat)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("norm", [False, True, "hidden"])
def test_inputs_of_any_width_are_read(norm, kernels_on):
    """There is a kernel for the normalization of up to 256 inputs."""
    net, x = (
        MLP(300, NetworkConfig((8,), "relu", layer_norm=norm), torch.Generator().manual_seed(0)),
        torch.randn(5, 300),
    )
    with kernels_on(True):
        fused = net(x)
    with kernels_on(False):
        torch.testing.assert_close(fused, net(x))


def test_rows_do_not_depend_on_their_neighbors():
    weights, biases, *_ = network((18, 64, 5), activated=1, dtype=torch.float32)
    x = torch.randn(100, 18)
    whole = mlp(x, weights, biases, activated=1)
    parts = [mlp(part, weights, biases, activated=1) for part in x.split([1, 3, 50, 46])]
    assert torch.equal(whole, torch.cat(parts))


def test_no_rows_give_no_output_and_zero_gradients():
    weights, biases, *_ = network((3, 4, 2), activated=1)
    out = mlp(torch.zeros(0, 3, dtype=torch.float64), weights, biases, activated=1)
    out.sum().backward()
    assert out.shape == (0, 2)
    assert all(not p.grad.any() for p in (*weights, *biases))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_inputs_give_what_pytorch_gives(bad, activation):
    parts = network((3, 4, 2), activated=1, dtype=torch.float32)
    x = torch.ones(5, 3)
    x[2, 1] = bad
    fused = mlp(x, parts[0], parts[1], activation=activation, activated=1)
    eager = eager_mlp(x, *parts, ACTIVATIONS[activation], 1)
    torch.testing.assert_close(fused, eager, equal_nan=True)
    assert fused[:2].isfinite().all()


@pytest.mark.parametrize("size", [1e-30, 1.0, 20.0, 1e30])
def test_tanh_is_accurate_for_numbers_of_all_sizes(size):
    x = torch.linspace(-size, size, 1001).unsqueeze(-1)
    found = mlp(x, [torch.ones(1, 1)], [torch.zeros(1)], activated=1)
    torch.testing.assert_close(found, x.double().tanh().float(), rtol=0, atol=2.5e-7)


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
def test_inputs_need_not_be_contiguous(layout):
    weights, biases, *_ = network((4, 6, 2), activated=1, sets=3)
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    x = {
        "transposed": x[..., :4].transpose(0, 1),
        "strided": x[..., ::2].transpose(0, 1),
        "expanded": x[:, 0, :4].expand(3, 5, 4),
    }[layout]
    fused = mlp(x, weights, biases, activated=1)
    torch.testing.assert_close(fused, mlp(x.contiguous(), weights, biases, activated=1), rtol=0, atol=0)


def test_other_types_and_activations_have_no_kernel():
    weights, biases, *_ = network((3, 4, 2), activated=1, dtype=torch.float32)
    x = torch.zeros(5, 3)
    assert mlp(x, weights, biases, activation="gelu", activated=1) is None
    norms = [(torch.ones(width), torch.zeros(width)) for width in (3, 4)]
    assert mlp(x, weights, biases, norms=norms, activation="silu", activated=1) is None
    wide = [torch.zeros(3, 257), torch.zeros(257, 2)]
    assert mlp(x, wide, [torch.zeros(257), torch.zeros(2)], activation="silu", activated=1) is None
    assert mlp(x.double(), weights, biases, activated=1) is None
    assert mlp(x.half(), [w.half() for w in weights], biases, activated=1) is None


def test_two_layers_without_an_activation_have_no_kernel():
    weights, biases, *_ = network((3, 4, 2), activated=0)
    assert mlp(torch.zeros(5, 3, dtype=torch.float64), weights, biases, activated=0) is None


def test_a_compiled_and_an_exported_network_contain_the_operator(kernels_on):
    net = MLP(3, NetworkConfig((4,), "tanh"), torch.Generator().manual_seed(0))
    x = torch.randn(6, 3)
    with kernels_on(True):
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), net(x), rtol=0, atol=0)
        program = torch.export.export(net, (x,))
    assert any("coterie.mlp" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), net(x))


@pytest.mark.parametrize("shape", [(4, 5, 3), (5, 4), (3,)])
def test_other_shapes_have_no_kernel(shape):
    weights, biases, *_ = network((3, 2), activated=0)
    assert mlp(torch.zeros(shape, dtype=torch.float64), weights, biases, activated=0) is None


def test_other_numbers_of_sets_have_no_kernel():
    weights, biases, *_ = network((3, 2), activated=0, sets=2)
    assert mlp(torch.zeros(3, 5, 3, dtype=torch.float64), weights, biases, activated=0) is None


@pytest.mark.parametrize(("widths", "norm"), [((3, 1025), False), ((3, 1025, 2), False), ((3, 4, 257), True)])
def test_layers_that_are_too_wide_have_no_kernel(widths, norm):
    activated = len(widths) - 1
    weights, biases, scales, shifts = network(widths, activated=activated, norm=norm)
    norms = list(zip(scales, shifts, strict=True))
    x = torch.zeros(5, 3, dtype=torch.float64)
    assert mlp(x, weights, biases, norms=norms, activated=activated) is None


WIDE = [((7, 300, 5), 1), ((60, 257, 600, 5), 2), ((300, 4), 1), ((40, 512), 1), ((5, 260), 0), ((0, 300, 5), 1)]
"""Widths and activated layers of networks whose gradients are computed block by block."""


@pytest.mark.parametrize(("rows", "sets"), [(0, None), (1, 2), (150, None), (48, 2)])
@pytest.mark.parametrize(("widths", "activated"), WIDE)
def test_wide_layers_have_the_values_and_gradients_of_pytorch_with_any_number_of_threads(
    widths, activated, sets, rows, threads
):
    parts = network(widths, activated=activated, sets=sets)
    with torch.no_grad():
        for weight in parts[0]:
            weight *= max(weight.shape[-2], 1) ** -0.5
    x = torch.randn(*(() if sets is None else (sets,)), rows, widths[0], dtype=torch.float64, requires_grad=True)
    flat, found = [x, *itertools.chain(*parts)], []
    for count in (1, 2, 3):
        with threads(count):
            out = as_function(parts, "tanh", activated)(*flat)
            found.append([out, *torch.autograd.grad(out.cos().sum(), flat)])
            without_x = as_function(parts, "tanh", activated)(x.detach(), *flat[1:])
            assert all(map(torch.equal, found[-1][2:], torch.autograd.grad(without_x.cos().sum(), flat[1:])))
            with torch.no_grad():
                assert torch.equal(as_function(parts, "tanh", activated)(*flat), out)
    assert all(map(torch.equal, found[0] * 2, found[1] + found[2]))
    expected = eager_mlp(x, *parts, 0, activated)
    expected = [expected, *torch.autograd.grad(expected.cos().sum(), flat)]
    for kernel, eager in zip(found[0], expected, strict=True):
        torch.testing.assert_close(kernel, eager, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("width", [512, 1000], ids=["weights within the cache", "larger weights"])
def test_rows_of_wide_layers_do_not_depend_on_their_neighbors(width, threads):
    weights, biases, *_ = network((18, 512, width, 5), activated=2, dtype=torch.float32)
    x = torch.randn(100, 18)
    with threads(2):
        whole = mlp(x, weights, biases, activated=2)
        parts = [mlp(part, weights, biases, activated=2) for part in x.split([1, 3, 24, 26, 46])]
    assert torch.equal(whole, torch.cat(parts))


def test_inputs_of_wide_layers_need_not_be_contiguous():
    weights, biases, *_ = network((4, 300, 2), activated=1, sets=3)
    x = torch.randn(50, 3, 8, dtype=torch.float64)[..., ::2].transpose(0, 1)
    outs = [mlp(given, weights, biases, activated=1) for given in (x, x.contiguous())]
    gradients = [torch.autograd.grad(out.sum(), weights) for out in outs]
    assert torch.equal(*outs)
    assert all(map(torch.equal, *gradients))
