"""GRU and LSTM: hand-written backward pass, resets, parameter sets."""

import pytest
import torch

from coterie.core import precision
from coterie.kernels import switch
from coterie.nets import recurrent
from coterie.nets.recurrent import GRU, build_rnn, unroll, unroll_with_burn_in, vmapped, zero_hidden_state


def build(kind, sets, inputs=5, size=4, dtype=torch.double):
    return build_rnn(kind, inputs, size, sets, torch.Generator().manual_seed(0)).to(dtype)


def state_names(rnn):
    return ("h",) if isinstance(rnn, GRU) else ("h", "c")


def random_inputs(rnn, sets, steps=6, batch=3, inputs=5, reset_prob=0.3):
    generator = torch.Generator().manual_seed(1)
    lead = () if sets is None else (sets,)
    x = torch.randn(steps, *lead, batch, inputs, dtype=torch.double, generator=generator)
    first = torch.rand(steps, *lead, batch, generator=generator) < reset_prob
    hidden_state = {
        name: torch.randn(*lead, batch, rnn.size, dtype=torch.double, generator=generator) for name in state_names(rnn)
    }
    return x, first, hidden_state


@pytest.mark.slow
@pytest.mark.parametrize("sets", [None, 2])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_backward_pass_matches_numerical_gradients(kind, sets):
    rnn = build(kind, sets)
    x, first, hidden_state = random_inputs(rnn, sets)

    def unrolled(x, *rest):
        out, last = rnn(x, first, dict(zip(state_names(rnn), rest[: len(state_names(rnn))], strict=True)))
        return out, *last.values()

    leaves = [x, *hidden_state.values()]
    for leaf in leaves:
        leaf.requires_grad_()
    assert torch.autograd.gradcheck(unrolled, (*leaves, *rnn.parameters()))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_without_resets_it_matches_torch(kind):
    rnn = build(kind, None)
    x, _, _ = random_inputs(rnn, None)
    reference = (torch.nn.GRU if kind == "gru" else torch.nn.LSTM)(5, 4).double()

    def in_order(weight):  # the gates of torch's LSTM are in the order i, f, g, o
        parts = weight.T.chunk(3 if kind == "gru" else 4) if weight.ndim == 2 else weight.chunk(4)
        return weight.T if kind == "gru" else torch.cat([parts[0], parts[1], parts[3], parts[2]])

    with torch.no_grad():
        reference.weight_ih_l0.copy_(in_order(rnn.input_weight))
        reference.weight_hh_l0.copy_(in_order(rnn.weight))
        reference.bias_ih_l0.copy_(rnn.bias if kind == "gru" else in_order(rnn.bias))
        reference.bias_hh_l0.zero_()
    start = {name: torch.zeros(3, 4, dtype=torch.double) for name in state_names(rnn)}
    out, _ = rnn(x, torch.zeros(6, 3, dtype=torch.bool), start)
    expected = reference(x)[0]
    torch.testing.assert_close(out, expected)
    scale = torch.linspace(-1, 2, out.numel(), dtype=torch.double).view(out.shape)
    (out * scale).sum().backward()
    (expected * scale).sum().backward()
    torch.testing.assert_close(in_order(rnn.input_weight.grad), reference.weight_ih_l0.grad)
    torch.testing.assert_close(in_order(rnn.weight.grad), reference.weight_hh_l0.grad)
    torch.testing.assert_close(rnn.bias.grad if kind == "gru" else in_order(rnn.bias.grad), reference.bias_ih_l0.grad)
    if kind == "gru":
        torch.testing.assert_close(rnn.recurrent_bias.grad, reference.bias_hh_l0.grad[8:])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_reset_clears_the_hidden_state(kind):
    rnn = build(kind, None)
    x, first, hidden_state = random_inputs(rnn, None, reset_prob=0.0)
    first[3] = True
    out, _ = rnn(x, first, hidden_state)
    fresh = {name: torch.zeros_like(value) for name, value in hidden_state.items()}
    alone, _ = rnn(x[3:], first[3:], fresh)
    torch.testing.assert_close(out[3:], alone)
    unreset, _ = rnn(x, torch.zeros_like(first), hidden_state)
    assert not torch.allclose(out[3:], unreset[3:])


@pytest.mark.parametrize("steps", [6, 1])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_of_parameter_sets_are_those_of_separate_layers(kind, steps, monkeypatch):
    """Of a sequence and of one timestep, without kernels."""
    monkeypatch.setattr(switch, "on", False)
    rnn = build(kind, 2)
    x, first, hidden_state = random_inputs(rnn, 2, steps=steps)
    weight = torch.linspace(-1, 2, 4, dtype=torch.double)
    found = torch.autograd.grad(
        (rnn(x.requires_grad_(), first, hidden_state)[0] * weight).sum(), [x, *rnn.parameters()]
    )
    for k in range(2):
        single = build(kind, None)
        shapes = {name: p.shape for name, p in single.state_dict().items()}
        single.load_state_dict({name: p[k].reshape(shapes[name]) for name, p in rnn.state_dict().items()})
        own = x[:, k].detach().requires_grad_()
        out, _ = single(own, first[:, k], {name: value[k] for name, value in hidden_state.items()})
        alone = torch.autograd.grad((out * weight).sum(), [own, *single.parameters()])
        torch.testing.assert_close(found[0][:, k], alone[0])
        for one, other in zip(found[1:], alone[1:], strict=True):
            torch.testing.assert_close(one[k].reshape(other.shape), other)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_after_a_burn_in_are_those_of_a_sequence_that_starts_with_its_hidden_state(kind):
    """The control is the gradient of the whole sequence; all three have the same outputs."""
    rnn = build(kind, None)
    x, first, hidden_state = random_inputs(rnn, None)
    with torch.no_grad():
        _, warm = rnn(x[:2], first[:2], hidden_state)
    outputs = [
        unroll_with_burn_in(rnn, x, first, hidden_state, burn_in=2)[2:],
        rnn(x[2:], first[2:], warm)[0],
        unroll_with_burn_in(rnn, x, first, hidden_state, burn_in=0)[2:],
    ]
    for output in outputs:
        torch.testing.assert_close(output, outputs[0])
    weights = list(rnn.parameters())
    found, expected, whole = (torch.autograd.grad(y.square().sum(), weights) for y in outputs)
    torch.testing.assert_close(found, expected)
    assert all((a - b).abs().max() > 1e-6 for a, b in zip(found, whole, strict=True))


@pytest.mark.parametrize("sets", [None, 2])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_outputs_without_gradients_are_the_same(kind, sets):
    """Of a whole sequence and of one timestep, for which a GRU has a faster way."""
    rnn = build(kind, sets)
    with torch.no_grad():  # zero biases would hide where they are added
        for bias in (p for name, p in rnn.named_parameters() if name.endswith("bias")):
            bias.copy_(torch.linspace(-1, 1, bias.numel()).view(bias.shape))
    x, first, hidden_state = random_inputs(rnn, sets)
    for steps in (6, 1):
        with_gradients = rnn(x[:steps], first[:steps], hidden_state)
        with torch.no_grad():
            torch.testing.assert_close(rnn(x[:steps], first[:steps], hidden_state), with_gradients)
            token = vmapped.set(True)
            torch.testing.assert_close(rnn(x[:steps], first[:steps], hidden_state), with_gradients)
            vmapped.reset(token)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_one_timestep_in_bfloat16_is_that_of_a_sequence(kind, monkeypatch):
    """Acting rounds products like learning does; with float32, the outputs are others."""
    monkeypatch.setattr(switch, "on", False)
    rnn = build(kind, None, dtype=torch.float32)
    x, first, hidden_state = random_inputs(rnn, None, steps=2)
    x, hidden_state = x.float(), {name: h.float() for name, h in hidden_state.items()}
    with torch.no_grad():
        exact, _ = rnn(x[:1], first[:1], hidden_state)
        monkeypatch.setattr(precision, "reduced", True)
        whole, _ = rnn(x, first, hidden_state)
        one, last = rnn(x[:1], first[:1], hidden_state)
    torch.testing.assert_close(one[0], whole[0])
    assert last["h"].equal(one[0])
    assert (one - exact).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_kernel_replaces_a_layer_where_kernels_are_on_and_have_one(kind, monkeypatch):
    rnn = build(kind, None)
    x, first, hidden_state = random_inputs(rnn, None)
    fused, cell = torch.arange(6 * 3 * 4.0).view(6, 3, 4), torch.full((3, 4), 9.0)
    monkeypatch.setattr(switch, "on", False)
    plain = rnn(x, first, hidden_state)
    for on, answer, replaced in ((False, fused, False), (True, None, False), (True, fused, True)):
        monkeypatch.setattr(switch, "on", on)
        given = answer if kind == "gru" or answer is None else (answer, cell)
        monkeypatch.setattr(recurrent.kernels, kind, lambda *args, given=given: given)
        expected = {"h": fused[-1]} | ({} if kind == "gru" else {"c": cell})
        torch.testing.assert_close(rnn(x, first, hidden_state), (fused, expected) if replaced else plain)


@pytest.mark.parametrize("sets", [None, 2])
def test_gradients_of_a_sequence_in_chunks_are_those_of_the_whole(sets, monkeypatch):
    """Chunks of seven timesteps, of two, and of one; the backward pass starts with the last."""
    rnn = build("gru", sets)
    x, first, hidden_state = random_inputs(rnn, sets, steps=7)
    weight = torch.linspace(-1, 1, 7).view(7, *[1] * (x.ndim - 1))
    leaves = [x.requires_grad_(), hidden_state["h"].requires_grad_(), *rnn.parameters()]
    elements = hidden_state["h"].numel()
    found, lengths, derivatives = [], [], recurrent._gru_derivatives

    def spy(previous, *rest, **named):
        lengths.append(len(previous))
        derivatives(previous, *rest, **named)

    monkeypatch.setattr(recurrent, "_gru_derivatives", spy)
    monkeypatch.setattr(switch, "on", False)
    for chunk in (1 << 17, 2 * elements, 1):
        monkeypatch.setattr(recurrent, "_CHUNK_ELEMENTS", chunk)
        found.append(torch.autograd.grad((rnn(x, first, hidden_state)[0].square() * weight).sum(), leaves))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    assert lengths == [7, *[2, 2, 2, 1], *[1] * 7]


@pytest.mark.parametrize(("kind", "gates", "bias"), [("gru", 3, [0.0] * 12), ("lstm", 4, [0] * 4 + [1] * 4 + [0] * 8)])
def test_initial_gates_are_orthogonal_and_only_the_forget_gate_has_a_bias(kind, gates, bias):
    for sets in (None, 2):
        rnn = build(kind, sets)
        weights = [rnn.weight] if sets is None else [*rnn.weight]
        for weight in weights:
            for gate in weight.split(4, -1):
                torch.testing.assert_close(gate.T @ gate, torch.eye(4, dtype=torch.double), atol=1e-6, rtol=0)
        assert rnn.input_weight.shape[-2:] == (5, 4 * gates)
        assert rnn.bias.flatten().tolist() == bias * (sets or 1)
        if kind == "gru":
            assert rnn.recurrent_bias.flatten().tolist() == [0] * 4 * (sets or 1)


def test_initial_hidden_states_are_zeros_by_name():
    states = {kind: zero_hidden_state(kind, (2, 3), torch.device("cpu")) for kind in ("none", "gru", "lstm")}
    assert {kind: set(state) for kind, state in states.items()} == {"none": set(), "gru": {"h"}, "lstm": {"h", "c"}}
    assert all(x.equal(torch.zeros(2, 3)) for state in states.values() for x in state.values())


@pytest.mark.parametrize("sets", [None, 3])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_agents_of_a_sequence_are_unrolled_separately(kind, sets):
    """Six timesteps of two environments with three agents, and the first timestep alone."""
    rnn, draw = build(kind, sets), torch.Generator().manual_seed(2)
    features = torch.randn(6, 2, 3, 5, dtype=torch.double, generator=draw)
    first = torch.rand(6, 2, 3, generator=draw) < 0.3
    start = {name: torch.randn(2, 3, 4, dtype=torch.double, generator=draw) for name in state_names(rnn)}

    def flat(x):
        return x.flatten(0, -2) if sets is None else x.flatten(0, -3).transpose(0, 1)

    out, after = unroll(rnn, flat(features), first, start)
    one, after_one = unroll(rnn, flat(features[0]), first[0], start)
    out = (out if sets is None else out.transpose(0, 1)).reshape(6, 2, 3, 4)
    torch.testing.assert_close((one if sets is None else one.transpose(0, 1)).reshape(2, 3, 4), out[0])
    for b, i in ((b, i) for b in range(2) for i in range(3)):
        own = rnn
        if sets is not None:
            own = build(kind, None)
            own.load_state_dict({k: v[i].view(own.state_dict()[k].shape) for k, v in rnn.state_dict().items()})
        state = {name: x[b, i].unsqueeze(0) for name, x in start.items()}
        alone, last = own(features[:, b, i : i + 1], first[:, b, i : i + 1], state)
        torch.testing.assert_close(out[:, b, i], alone[:, 0])
        for name in start:
            assert after[name].shape == (2, 3, 4)
            torch.testing.assert_close(after[name][b, i], last[name][0])
    torch.testing.assert_close(after_one["h"], out[0])
