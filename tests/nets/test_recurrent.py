"""GRU and LSTM: hand-written backward pass, resets, parameter sets."""

import pytest
import torch

from coterie.nets.recurrent import GRU, build_rnn, unroll_with_burn_in


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
    torch.testing.assert_close(out, reference(x)[0])


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


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_single_steps_match_the_whole_sequence(kind):
    rnn = build(kind, None)
    x, first, hidden_state = random_inputs(rnn, None)
    whole, last = rnn(x, first, hidden_state)
    steps = []
    for t in range(len(x)):
        out, hidden_state = rnn(x[t : t + 1], first[t : t + 1], hidden_state)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(hidden_state, last)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_parameter_sets_are_separate_layers(kind):
    rnn = build(kind, 2)
    x, first, hidden_state = random_inputs(rnn, 2)
    out, _ = rnn(x, first, hidden_state)
    for k in range(2):
        single = build(kind, None)
        single.load_state_dict(
            {
                name: p[k] if p[k].shape == single.state_dict()[name].shape else p[k, 0]
                for name, p in rnn.state_dict().items()
            }
        )
        alone, _ = single(x[:, k], first[:, k], {name: value[k] for name, value in hidden_state.items()})
        torch.testing.assert_close(out[:, k], alone)


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
