"""Bodies that see the team: numbers of one agent computed by hand, naive loops over agents, death, order, numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.nets.config import NetworkConfig
from coterie.nets.team_bodies import (
    KEY_SIZE,
    CommNet,
    Graph,
    IC3Net,
    TarMAC,
    TeamAttention,
    TeamBody,
    TransformerLayer,
    build_team_body,
    heard_agents,
)

KINDS = ("commnet", "ic3net", "tarmac", "graph", "attention")


def make(kind: str, *, rounds: int | None = None, size: int = 8, width: int = 8) -> TeamBody:
    config = NetworkConfig((width,), "tanh", body=kind, heads=2, rounds=rounds)  # pyright: ignore[reportArgumentType]
    body = build_team_body(size, config, torch.Generator().manual_seed(3))
    with torch.no_grad():  # biases are zero at the start, which hides errors
        for parameter in body.parameters():
            parameter.add_(
                0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    return body


def team(agents: int = 5, samples: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, agents that are alive, and edges that are not symmetric."""
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(samples, agents, 8, generator=draw)
    alive = torch.rand(samples, agents, generator=draw) < 0.7
    edges = torch.rand(samples, agents, agents, generator=draw) < 0.5
    return x, alive, edges


# ---------------------------------------------------------------------------------------------------- loops over agents


def linear(layer: torch.nn.Module, x: Tensor) -> Tensor:
    return x @ layer.weight + layer.bias  # pyright: ignore


def naive_mean(body: CommNet, h: list[Tensor], hears: list[list[int]]) -> list[Tensor]:
    (layers,) = body.rounds
    zero = torch.zeros_like(h[0])
    messages = [
        torch.stack([h[j] for j in heard if j != i]).mean(0) if set(heard) - {i} else zero
        for i, heard in enumerate(hears)
    ]
    return [torch.tanh(linear(layers.update, torch.cat([own, c]))) for own, c in zip(h, messages, strict=True)]  # pyright: ignore


def naive_gated(body: IC3Net, h: list[Tensor], hears: list[list[int]]) -> list[Tensor]:
    (layers,) = body.rounds
    sent = [own if linear(layers.gate, own).item() > 0 else torch.zeros_like(own) for own in h]  # pyright: ignore
    messages = []
    for i, heard in enumerate(hears):
        others = [sent[j] for j in heard if j != i]
        messages.append(torch.stack(others).mean(0) if others else torch.zeros_like(h[0]))
    update = layers.mean.update  # pyright: ignore
    return [torch.tanh(linear(update, torch.cat([own, c]))) for own, c in zip(h, messages, strict=True)]


def naive_targeted(body: TarMAC, h: list[Tensor], hears: list[list[int]]) -> list[Tensor]:
    for layers in body.rounds:
        sent = [linear(layers.send, own) for own in h]  # pyright: ignore
        after = []
        for i, heard in enumerate(hears):
            query, message = sent[i][:KEY_SIZE], torch.zeros(32)
            if heard:
                weight = torch.stack([query @ sent[j][KEY_SIZE : 2 * KEY_SIZE] / 4 for j in heard]).softmax(0)
                message = torch.stack([w * sent[j][2 * KEY_SIZE :] for w, j in zip(weight, heard, strict=True)]).sum(0)
            after.append(torch.tanh(linear(layers.update, torch.cat([h[i], message]))))  # pyright: ignore
        h = after
    return h


def naive_graph(body: Graph, h: list[Tensor], hears: list[list[int]]) -> list[Tensor]:
    (layers,) = body.rounds
    found = []
    for i, heard in enumerate(hears):
        sent = {j: linear(layers.send, h[j]).chunk(2) for j in {i, *heard}}  # pyright: ignore
        heads = []
        for k in range(2):
            score = layers.score[:, k]  # pyright: ignore
            listened = [j for j in heard if j != i]
            message = torch.zeros(4)
            if listened:
                e = [torch.cat([sent[i][k], sent[j][k]]) @ score.flatten() for j in listened]
                weight = torch.stack([x if x > 0 else 0.2 * x for x in e]).softmax(0)
                message = torch.stack([w * sent[j][k] for w, j in zip(weight, listened, strict=True)]).sum(0)
            heads.append(message)
        found.append(torch.tanh(linear(layers.own, h[i]) + torch.cat(heads)))  # pyright: ignore
    return found


def normal(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() * norm.weight + norm.bias  # pyright: ignore


def naive_attention(body: TeamAttention, h: list[Tensor], hears: list[list[int]]) -> list[Tensor]:
    (layers,) = body.rounds
    layer: TransformerLayer = layers.layer  # pyright: ignore
    tokens, found = [normal(x, layer.first_norm) for x in h], []
    for i, heard in enumerate(hears):
        mixed = []
        for k in range(2):
            head = slice(4 * k, 4 * k + 4)
            value = torch.zeros(4)
            if heard:
                query = linear(layer.query, tokens[i])[head]
                pairs = [linear(layer.key_value, tokens[j]).split(8) for j in heard]
                weight = torch.stack([query @ key[head] / 2 for key, _ in pairs]).softmax(0)
                value = torch.stack([w * v[head] for w, (_, v) in zip(weight, pairs, strict=True)]).sum(0)
            mixed.append(value)
        y = h[i] + linear(layer.out, torch.cat(mixed))
        found.append(y + linear(layer.last, linear(layer.hidden, normal(y, layer.second_norm)).relu()))
    return found


NAIVE: dict[str, Callable[..., list[Tensor]]] = {
    "commnet": naive_mean,
    "ic3net": naive_gated,
    "tarmac": naive_targeted,
    "graph": naive_graph,
    "attention": naive_attention,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True], ids=["full", "edges"])
def test_a_body_equals_a_loop_over_agents(kind: str, given: bool) -> None:
    body, (x, alive, edges) = make(kind), team()
    found = body(x, alive, edges if given else None)
    for sample in range(len(x)):
        h = [torch.tanh(linear(body.encoder.layers[0], row)) for row in x[sample]]
        hears = [
            [
                j
                for j in range(5)
                if alive[sample, i] and alive[sample, j] and (not given or bool(edges[sample, i, j]) or i == j)
            ]
            for i in range(5)
        ]
        torch.testing.assert_close(found[sample], torch.stack(NAIVE[kind](body, h, hears)))


def test_gates_are_open_at_first_close_below_zero_and_learn_by_the_gradient_of_the_sigmoid() -> None:
    body = build_team_body(8, NetworkConfig((8,), "tanh", body="ic3net"), torch.Generator().manual_seed(3))
    (layers,), (x, alive, _) = body.rounds, team()
    h = torch.tanh(linear(body.encoder.layers[0], x))
    torch.testing.assert_close(layers(h, alive, None), layers.mean(h, alive, None))  # pyright: ignore
    with torch.no_grad():
        layers.gate.weight.copy_(torch.randn(8, 1, generator=torch.Generator().manual_seed(1)))  # pyright: ignore
        layers.gate.bias.zero_()  # pyright: ignore
    sends = (linear(layers.gate, h) > 0).float()  # pyright: ignore
    assert 0 < sends.mean() < 1
    out = layers(h, alive, None)
    torch.testing.assert_close(out, layers.mean(h, alive, None, sent=sends * h))  # pyright: ignore
    likely = torch.sigmoid(linear(layers.gate, h.detach()))  # pyright: ignore
    gates = sends.clone().requires_grad_()
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (wanted,) = torch.autograd.grad(
        (layers.mean(h.detach(), alive, None, sent=gates * h.detach()) * weight).sum(), gates
    )  # pyright: ignore
    (found,) = torch.autograd.grad((layers(h.detach(), alive, None) * weight).sum(), layers.gate.bias)  # pyright: ignore
    torch.testing.assert_close(found, (wanted * likely * (1 - likely)).sum().detach().reshape(1))


def test_agents_hear_those_alive_along_edges() -> None:
    alive = torch.tensor([[True, True, False]])
    edges = torch.tensor([[[0, 0, 1], [1, 0, 1], [1, 1, 1]]], dtype=torch.bool)
    assert heard_agents(alive, edges, self_loops=False)[0].tolist() == [[False] * 3, [True, False, False], [False] * 3]
    assert heard_agents(alive, None, self_loops=True)[0].tolist() == [[True, True, False]] * 2 + [[False] * 3]


# --------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_agents_does_not_matter(kind: str) -> None:
    body, (x, alive, edges) = make(kind), team()
    order = torch.tensor([3, 0, 4, 1, 2])
    swapped = body(x[:, order], alive[:, order], edges[:, order][:, :, order])
    torch.testing.assert_close(swapped, body(x, alive, edges)[:, order])


@pytest.mark.parametrize("kind", KINDS)
def test_dead_agents_change_neither_values_nor_gradients_of_others(kind: str) -> None:
    body, (x, alive, _) = make(kind, rounds=2), team()
    other = torch.where(alive.unsqueeze(-1), x, 1e3 * torch.randn_like(x)).requires_grad_()
    found = []
    for given in (x, other):
        out = torch.where(alive.unsqueeze(-1), body(given, alive, None), 0.0)
        found.append((out, torch.autograd.grad(out.square().sum(), [*body.parameters()], retain_graph=True)))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(found[1][0].sum(), other)
    assert not gradient[~alive].any()
    assert gradient[alive].abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_that_hears_nobody_is_the_same_in_any_team(kind: str) -> None:
    body, (x, _, _) = make(kind, rounds=2), team()
    alone = body(x[:, :1], torch.ones(3, 1, dtype=torch.bool), None)
    others_dead = torch.tensor([True, False, False, False, False]).expand(3, -1)
    no_edges = torch.zeros(3, 5, 5, dtype=torch.bool)
    torch.testing.assert_close(body(x, others_dead, None)[:, :1], alone)
    torch.testing.assert_close(body(x, torch.ones_like(others_dead), no_edges)[:, :1], alone)
    everyone_dead = x.clone().requires_grad_()
    out = body(everyone_dead, torch.zeros_like(others_dead), None)
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in body.parameters())


def test_heads_divide_the_units() -> None:
    with pytest.raises(UserError, match="network_heads=2: does not divide the 9 units of the last hidden layer"):
        make("graph", width=9)
