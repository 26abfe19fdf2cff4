"""The operators of GRU and LSTM against PyTorch."""

import pytest
import torch

from coterie.kernels import recurrent as kernels
from coterie.nets.recurrent import build_rnn

KINDS = ("gru", "lstm")
GATES = {"gru": 3, "lstm": 4}


def arguments(kind, *, steps, rows, inputs, units, sets=None, dtype=torch.float64, seed=0):
    """Returns x, first, hidden states, both weights and biases, random and with resets."""
    draw = torch.Generator().manual_seed(seed)
    lead, row = ((), ()) if sets is None else ((sets,), (1,))

    def tensor(*shape):
        return (0.5 * torch.randn(*shape, generator=draw, dtype=dtype)).requires_grad_()

    gates = GATES[kind] * units
    states = [tensor(*lead, rows, units) for _ in range(1 if kind == "gru" else 2)]
    weights = (tensor(*lead, inputs, gates), tensor(*lead, units, gates))
    biases = [tensor(*lead, *row, gates), *([tensor(*lead, *row, units)] if kind == "gru" else [])]
    first = torch.rand(steps, *lead, rows, generator=draw) < 0.3
    return tensor(steps, *lead, rows, inputs), first, states, weights, biases


def operator(kind, x, first, states, weights, biases):
    if kind == "gru":
        return (kernels.gru(x, first, states[0], weights, *biases),)
    return kernels.lstm(x, first, tuple(states), weights, biases[0])


def flat(x, first, states, weights, biases):
    return [x, *states, *weights, *biases]


@pytest.mark.parametrize(
    ("kind", "shape", "sets"),
    [
        *(("gru", (1, 1, 1, 1), None), ("gru", (4, 3, 2, 5), 2), ("gru", (3, 30, 1, 2), None)),
        *(("lstm", (1, 1, 1, 1), 2), ("lstm", (4, 3, 2, 5), None), ("lstm", (3, 30, 1, 2), 2)),
    ],
)
def test_gradients_are_those_of_finite_differences(kind, shape, sets):
    given = arguments(kind, **dict(zip(("steps", "rows", "inputs", "units"), shape, strict=True)), sets=sets)
    _, first, states, *_ = given

    def run(x, *rest):
        k = len(states)
        return operator(kind, x, first, rest[:k], rest[k : k + 2], rest[k + 2 :])

    assert torch.autograd.gradcheck(run, flat(*given), fast_mode=True)


@pytest.mark.parametrize(
    ("kind", "sets", "rows"),
    [("gru", None, 1), ("gru", None, 100), ("gru", 2, 25), ("lstm", None, 25), ("lstm", 2, 1), ("lstm", 2, 200)],
)
def test_a_layer_gives_the_same_with_and_without_kernels(kind, sets, rows, kernels_on):
    layer = build_rnn(kind, 9, 20, sets, generator=torch.Generator().manual_seed(0))
    x, first, states, *_ = arguments(kind, steps=7, rows=rows, inputs=9, units=20, sets=sets, dtype=torch.float32)
    found = {}
    for on in (False, True):
        with kernels_on(on):
            out, hidden_state = layer(x, first, dict(zip(("h", "c"), states, strict=False)))
            (out.square().sum() + sum(value.sum() for value in hidden_state.values())).backward()
        found[on] = [out.detach(), *hidden_state.values(), x.grad, *(s.grad for s in states)]
        found[on] += [p.grad for p in layer.parameters()]
        x.grad = None
        for s in states:
            s.grad = None
        layer.zero_grad(set_to_none=True)
    for eager, fused in zip(found[False], found[True], strict=True):
        torch.testing.assert_close(fused, eager, rtol=1e-4, atol=1e-4 * max(1e-3, float(eager.detach().abs().max())))


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_does_not_change_a_bit(kind, threads):
    given, found = arguments(kind, steps=6, rows=500, inputs=9, units=20, dtype=torch.float32), []
    for count in (1, 2, 3):
        with threads(count):
            outputs = operator(kind, *given)
            found.append([*outputs, *torch.autograd.grad(sum(x.square().sum() for x in outputs), flat(*given))])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_discards_even_a_non_finite_state(kind):
    x, first, states, weights, biases = arguments(kind, steps=2, rows=3, inputs=2, units=4)
    first = torch.tensor([[True, False, False], [False, False, True]])
    poisoned = [s.detach().clone() for s in states]
    for s in poisoned:
        s[0], s[1] = float("nan"), float("nan")
    out = operator(kind, x.detach(), first, poisoned, weights, biases)[0]
    clean = operator(kind, x.detach(), first, [s.detach() for s in states], weights, biases)[0]
    assert out.isnan().any(-1).tolist() == [[False, True, False]] * 2
    assert torch.equal(out[:, [0, 2]], clean[:, [0, 2]])


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_give_no_output_and_zero_gradients(kind):
    given = arguments(kind, steps=3, rows=0, inputs=2, units=4)
    outputs = operator(kind, *given)
    assert outputs[0].shape == (3, 0, 4)
    assert all(not grad.any() for grad in torch.autograd.grad(outputs[0].sum(), [*given[3], *given[4]]))


@pytest.mark.parametrize("kind", KINDS)
def test_other_shapes_have_no_kernel(kind):
    x, first, states, weights, biases = arguments(kind, steps=3, rows=4, inputs=2, units=5)
    run = kernels.gru if kind == "gru" else kernels.lstm

    def found(x, first, states):
        return run(x, first, states[0] if kind == "gru" else tuple(states), weights, *biases)

    assert found(x, first, states) is not None
    assert found(x[..., :1], first, states) is None
    assert found(x, first[:1], states) is None
    assert found(x, first, [state[:1] for state in states]) is None
