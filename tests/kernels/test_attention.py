"""The operator of residual attention against PyTorch's operations, which compute it without kernels."""

import pytest
import torch

from coterie.kernels.attention import Projections, attention
from coterie.nets.entity_critic import HEADS, ResidualAttention


def network(units, dtype, seed=0):
    draw = torch.Generator().manual_seed(seed)
    net = ResidualAttention(units, draw).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=draw, dtype=dtype))
    return net


def contexts_of(members):
    """The contexts of MA-POCA's critic, of entities by observation, and of the same by observation and action."""
    everyone, own = torch.arange(members), torch.eye(members, dtype=torch.bool)
    return torch.cat([everyone.unsqueeze(0), torch.where(own, everyone, everyone + members)])


def results(net, x, present, contexts, grad):
    """Returns the output, with and without gradients, and the gradients of x and the parameters."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    out = net(x, present, contexts)
    out.backward(grad)
    with torch.no_grad():
        again = net(x, present, contexts)
    return [out.detach(), again, x.grad, *(p.grad.clone() for p in net.parameters())]


@pytest.mark.parametrize(
    ("samples", "members", "units", "some_absent", "dtype"),
    [
        (1, 1, 64, False, torch.float64),
        (37, 3, 64, True, torch.float64),
        (40, 5, 128, False, torch.float32),
        (3, 30, 64, True, torch.float32),
        (37, 3, 16, True, torch.float64),
        (40, 5, 48, False, torch.float32),
    ],
)
def test_values_and_gradients_are_those_without_kernels(samples, members, units, some_absent, dtype, kernels_on):
    net, draw = network(units, dtype), torch.Generator().manual_seed(1)
    contexts = contexts_of(members)
    x = torch.randn(samples, 2 * members, units, generator=draw, dtype=dtype)
    present = torch.rand(samples, 2 * members, generator=draw) < 0.6 if some_absent else None
    for used, entities in ((contexts, 2 * members), (contexts[:1], members), (None, members)):
        here = None if present is None else present[:, :entities]
        grad = torch.randn(samples, 1 if used is None else len(used), units, generator=draw, dtype=dtype)
        with kernels_on(False):
            expected = results(net, x[:, :entities], here, used, grad)
        with kernels_on(True):
            found = results(net, x[:, :entities], here, used, grad)
        tolerance = 1e-9 if dtype is torch.float64 else 1e-4
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("samples", [1, 9, 200])
def test_the_number_of_threads_does_not_change_a_bit(samples, threads, kernels_on):
    net, draw = network(64, torch.float32), torch.Generator().manual_seed(1)
    x, grad = (torch.randn(samples, n, 64, generator=draw) for n in (6, 4))
    found = []
    for count in (1, 2, 5):
        with threads(count), kernels_on(True):
            found.append(results(net, x, None, contexts_of(3), grad))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_a_sample_does_not_depend_on_its_neighbors(kernels_on):
    net, x = network(64, torch.float32), torch.randn(20, 6, 64, generator=torch.Generator().manual_seed(1))
    with kernels_on(True), torch.no_grad():
        together = net(x, None, contexts_of(3))
        assert torch.equal(together, torch.cat([net(row.unsqueeze(0), None, contexts_of(3)) for row in x]))


def test_an_infinite_entity_spoils_its_own_sample_only(kernels_on):
    net, x = network(64, torch.float32), torch.randn(20, 6, 64, generator=torch.Generator().manual_seed(1))
    x[7, 2, 3] = float("inf")
    with kernels_on(True), torch.no_grad():
        finite = net(x, None, contexts_of(3)).isfinite().all(-1)
    assert finite.sum() == 19 * 4 + 2  # it is in two of the contexts
    assert finite[7].tolist() == [False, True, True, False]


@pytest.mark.parametrize("units", [8, 20, 72])
def test_units_that_fill_no_vector_have_no_kernel(units):
    net = network(units, torch.float32)
    layers = (net.query_key_value.weight, net.query_key_value.bias, net.out.weight, net.out.bias)
    assert attention(torch.zeros(2, 3, units), None, torch.tensor([[0, 1]]), Projections(*layers), HEADS) is None


def test_a_context_of_an_unknown_entity_is_refused():
    net = network(64, torch.float32)
    layers = (net.query_key_value.weight, net.query_key_value.bias, net.out.weight, net.out.bias)
    with pytest.raises(IndexError, match=r"contexts of entities \[\[0, 3\]\], but there are 3"):
        attention(torch.zeros(2, 3, 64), None, torch.tensor([[0, 3]]), Projections(*layers), HEADS)
