"""Attention over the members of a team: exact values, masks, contexts, gradients."""

import pytest
import torch

from coterie.nets.entity_critic import HEADS, ResidualAttention

SIZE, MEMBERS = 8, 3


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def attention(size=SIZE):
    return ResidualAttention(size, draw())


def normalized(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()


def reference(net, x, present):
    """Pooled attention of one sample x [S, E], written with loops."""
    x = normalized(x)
    q, k, v = (x @ net.query_key_value.weight + net.query_key_value.bias).split(x.shape[-1], -1)
    width, total = x.shape[-1] // HEADS, torch.zeros(x.shape[-1])
    present_indices = [i for i in range(len(x)) if present[i]]
    for i in present_indices:
        heads = []
        for h in range(HEADS):
            part = slice(h * width, (h + 1) * width)
            score = torch.stack([q[i, part] @ k[j, part] for j in present_indices]) / x.shape[-1] ** 0.5
            heads.append(sum(w * v[j, part] for w, j in zip(score.softmax(0), present_indices, strict=True)))
        total += normalized(x[i] + torch.cat(heads) @ net.out.weight + net.out.bias)
    return total / max(len(present_indices), 1)


def test_attention_matches_its_formula():
    net, x = attention(), torch.randn(5, MEMBERS, SIZE, generator=draw(1))
    present = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]]).bool()
    expected = torch.stack([reference(net, row, here) for row, here in zip(x, present, strict=True)])
    torch.testing.assert_close(net(x, present)[:, 0], expected)
    torch.testing.assert_close(net(x)[:1, 0], expected[:1])


def test_a_context_is_the_attention_of_its_members():
    net, x = attention(), torch.randn(4, 6, SIZE, generator=draw(1))
    present = torch.rand(4, 6, generator=draw(2)) < 0.7
    contexts = torch.tensor([[0, 1, 2], [3, 1, 5], [4, 0, 2]])
    found = net(x, present, contexts)
    assert found.shape == (4, 3, SIZE)
    for c, members in enumerate(contexts):
        torch.testing.assert_close(found[:, c], net(x[:, members], present[:, members])[:, 0])
    everyone = net(x, None, contexts)
    torch.testing.assert_close(everyone, net(x, torch.ones_like(present), contexts))


def test_absent_entities_change_neither_output_nor_gradient():
    net, x = attention(), torch.randn(2, MEMBERS, SIZE, generator=draw(1))
    present = torch.tensor([[True, True, False], [True, False, True]])
    results = []
    for fill in (0.0, 1e6):
        entities = torch.where(present.unsqueeze(-1), x, fill).requires_grad_()
        net.zero_grad()
        out = net(entities, present)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
        assert entities.grad[~present].abs().sum() == 0
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    shown = net(torch.where(present.unsqueeze(-1), x, 1.0), torch.ones_like(present))
    assert not torch.allclose(shown, results[0][0])  # negative control: they are present


def test_without_entities_the_output_is_zero_without_gradient():
    net, x = attention(), torch.randn(2, MEMBERS, SIZE, generator=draw(1)).requires_grad_()
    out = net(x, torch.zeros(2, MEMBERS, dtype=torch.bool))
    out.sum().backward()
    assert torch.equal(out, torch.zeros(2, 1, SIZE))
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.slow
@pytest.mark.parametrize("present", [None, [[True, True, False, True], [True] * 4]])
def test_attention_gradients_match_finite_differences(present):
    net = attention().double()
    x = torch.randn(2, 4, SIZE, generator=draw(1), dtype=torch.float64, requires_grad=True)
    present = None if present is None else torch.tensor(present)
    contexts = torch.tensor([[0, 1], [2, 1], [3, 0]])

    def read(x, *weights):
        named = dict(zip(dict(net.named_parameters()), weights, strict=True))
        return torch.func.functional_call(net, named, (x, present, contexts))

    assert torch.autograd.gradcheck(read, (x, *net.parameters()))
