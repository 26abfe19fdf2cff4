"""Memory networks: their own backward pass, resets, sets of parameters."""

import pytest
import torch

from coterie.nets.memory import Memory


def made(kind, sets, inputs=5, size=4, dtype=torch.double):
    return Memory(kind, inputs, size, sets, torch.Generator().manual_seed(0)).to(dtype)


def random_inputs(memory, sets, steps=6, rows=3, inputs=5, ends=0.3):
    generator = torch.Generator().manual_seed(1)
    lead = () if sets is None else (sets,)
    x = torch.randn(steps, *lead, rows, inputs, dtype=torch.double, generator=generator)
    first = torch.rand(steps, *lead, rows, generator=generator) < ends
    carry = {
        name: torch.randn(*lead, rows, memory.size, dtype=torch.double, generator=generator) for name in memory.names
    }
    return x, first, carry


@pytest.mark.parametrize("sets", [None, 2])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_backward_pass_is_the_numerical_gradient(kind, sets):
    memory = made(kind, sets)
    x, first, carry = random_inputs(memory, sets)

    def unrolled(x, *rest):
        out, last = memory(x, first, dict(zip(memory.names, rest[: len(memory.names)], strict=True)))
        return out, *last.values()

    leaves = [x, *carry.values()]
    for leaf in leaves:
        leaf.requires_grad_()
    assert torch.autograd.gradcheck(unrolled, (*leaves, *memory.parameters()))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_without_resets_it_is_the_layer_of_torch(kind):
    memory = made(kind, None)
    x, _, _ = random_inputs(memory, None)
    reference = (torch.nn.GRU if kind == "gru" else torch.nn.LSTM)(5, 4).double()

    def in_order(weight):  # torch's LSTM keeps its gates as i, f, g, o
        parts = weight.T.chunk(3 if kind == "gru" else 4) if weight.ndim == 2 else weight.chunk(4)
        return weight.T if kind == "gru" else torch.cat([parts[0], parts[1], parts[3], parts[2]])

    with torch.no_grad():
        reference.weight_ih_l0.copy_(in_order(memory.input_weight))
        reference.weight_hh_l0.copy_(in_order(memory.weight))
        reference.bias_ih_l0.copy_(memory.bias if kind == "gru" else in_order(memory.bias))
        reference.bias_hh_l0.zero_()
    start = {name: torch.zeros(3, 4, dtype=torch.double) for name in memory.names}
    out, _ = memory(x, torch.zeros(6, 3, dtype=torch.bool), start)
    torch.testing.assert_close(out, reference(x)[0])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_life_remembers_nothing_of_the_one_before(kind):
    memory = made(kind, None)
    x, first, carry = random_inputs(memory, None, ends=0.0)
    first[3] = True
    out, _ = memory(x, first, carry)
    fresh = {name: torch.zeros_like(value) for name, value in carry.items()}
    alone, _ = memory(x[3:], first[3:], fresh)
    torch.testing.assert_close(out[3:], alone)
    unreset, _ = memory(x, torch.zeros_like(first), carry)
    assert not torch.allclose(out[3:], unreset[3:])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_step_by_step_is_the_whole_sequence(kind):
    memory = made(kind, None)
    x, first, carry = random_inputs(memory, None)
    whole, last = memory(x, first, carry)
    steps = []
    for t in range(len(x)):
        out, carry = memory(x[t : t + 1], first[t : t + 1], carry)
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(carry, last)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_sets_are_separate_layers_in_one_product(kind):
    memory = made(kind, 2)
    x, first, carry = random_inputs(memory, 2)
    out, _ = memory(x, first, carry)
    for k in range(2):
        single = made(kind, None)
        single.load_state_dict(
            {
                name: p[k] if p[k].shape == single.state_dict()[name].shape else p[k, 0]
                for name, p in memory.state_dict().items()
            }
        )
        alone, _ = single(x[:, k], first[:, k], {name: value[k] for name, value in carry.items()})
        torch.testing.assert_close(out[:, k], alone)
