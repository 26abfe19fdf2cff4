"""Kernels are called directly, unless something traces the call."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coterie.kernels.mlp import mlp
from coterie.nets.layers import Linear


def _network():
    """Returns weights and biases of a perceptron 3-4-2."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(a, b, generator=draw) for a, b in ((3, 4), (4, 2))]
    return weights, [torch.zeros(b) for b in (4, 2)]


NETWORK = _network()


def run(x):
    return mlp(x, *NETWORK, activated=1)


def operators(function, *args):
    """Returns the names of the dispatcher's operators that a call uses."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(*args)
    return {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("grad", [False, True])
def test_a_call_does_not_pass_the_dispatcher(grad):
    found = operators(run, torch.ones(5, 3, requires_grad=grad))
    assert "aten::empty" in found or "aten::new_empty" in found
    assert not any(name.startswith("coterie::") for name in found)


def test_a_traced_call_is_an_operator_of_the_graph():
    graph = make_fx(run)(torch.ones(5, 3))
    assert torch.ops.coterie.mlp.default in {node.target for node in graph.graph.nodes}


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_trace_is_an_operator_of_the_graph():
    traced = torch.jit.trace(run, torch.ones(5, 3), check_trace=False)
    assert "coterie::mlp" in str(traced.graph)
    torch.testing.assert_close(traced(torch.full((2, 3), 2.0)), run(torch.full((2, 3), 2.0)))


def test_a_compiled_call_is_an_operator_of_the_graph():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch.compile(run, backend=backend, fullgraph=True)(torch.ones(5, 3))
    assert "coterie.mlp" in graphs[0].code


@pytest.mark.parametrize("within", [False, True])
def test_fake_tensors_give_fake_tensors(within):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        x = torch.ones(5, 3)
        out = run(x) if within else None
    out = run(x) if out is None else out
    assert type(out) is not torch.Tensor
    assert out.shape == (5, 2)


def test_transformations_of_functions_use_operations_of_pytorch(kernels_on):
    x, layer = torch.ones(4, 5, 3), Linear(3, 2, gain=1.0, generator=torch.Generator().manual_seed(0))
    assert torch.func.vmap(lambda x: torch.zeros(()) if run(x) is None else torch.ones(()))(x).tolist() == [0.0] * 4
    with kernels_on(True):
        torch.testing.assert_close(torch.func.vmap(layer)(x), torch.stack([layer(part) for part in x]))
