"""What mixers promise: Q_tot grows with every agent's Q, and the best for the team is everyone's best."""

import itertools

import pytest
import torch

from coterie.nets.mixers import Duplex, Monotonic, Sum, Unrestricted

AGENTS, CHOICES, STATE = 3, 4, 6


def mixer(kind, seed=0):
    g = torch.Generator().manual_seed(seed)
    if kind == "sum":
        return Sum()
    if kind == "monotonic":
        return Monotonic(AGENTS, STATE, 8, 16, g)
    if kind == "duplex":
        return Duplex(AGENTS, STATE, AGENTS * CHOICES, 8, 16, g)
    return Unrestricted(AGENTS, STATE, 16, g)


def total(net, q, picks, state, alive=None):
    """Q_tot of `picks` [M, N] with agents' q [N, A] in one state [S]."""
    chosen = q.gather(-1, picks.T).T
    joint = torch.nn.functional.one_hot(picks, CHOICES).flatten(-2).float()
    alive = torch.ones_like(picks, dtype=torch.bool) if alive is None else alive
    best = torch.where(alive, q.amax(-1).expand_as(chosen), 0.0)
    return net(torch.where(alive, chosen, 0.0), best, state.expand(len(picks), -1), joint, alive)


@pytest.mark.parametrize("kind", ["sum", "monotonic"])
def test_the_team_gains_what_an_agent_gains(kind):
    g = torch.Generator().manual_seed(1)
    for seed in range(5):
        q = torch.randn(64, AGENTS, generator=g, requires_grad=True)
        state = torch.randn(64, STATE, generator=g) * 3
        mixer(kind, seed)(q, q, state, state, torch.ones(64, AGENTS, dtype=torch.bool)).sum().backward()
        assert (q.grad >= 0).all()
        assert (q.grad > 0).any()


def test_a_mixer_without_restriction_does_not_promise_that():
    q = torch.randn(64, AGENTS, generator=torch.Generator().manual_seed(1), requires_grad=True)
    mixer("plain")(q, q, torch.zeros(64, STATE), q, torch.ones(64, AGENTS, dtype=torch.bool)).sum().backward()
    assert (q.grad < 0).any()


@pytest.mark.parametrize("kind", ["sum", "monotonic", "duplex"])
def test_the_teams_best_is_the_tuple_of_everyones_best(kind):
    every = torch.tensor(list(itertools.product(range(CHOICES), repeat=AGENTS)))
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for seed in range(10):
            q, state = torch.randn(AGENTS, CHOICES, generator=g) * 2, torch.randn(STATE, generator=g)
            values = total(mixer(kind, seed), q, every, state)
            assert every[values.argmax()].tolist() == q.argmax(-1).tolist()


def test_a_mixer_without_restriction_breaks_that():
    every = torch.tensor(list(itertools.product(range(CHOICES), repeat=AGENTS)))
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        agree = []
        for seed in range(10):
            q, state = torch.randn(AGENTS, CHOICES, generator=g) * 2, torch.randn(STATE, generator=g)
            values = total(mixer("plain", seed), q, every, state)
            agree.append(every[values.argmax()].tolist() == q.argmax(-1).tolist())
        assert not all(agree)


@pytest.mark.parametrize("kind", ["sum", "monotonic", "duplex"])
def test_a_dead_agents_q_moves_nothing(kind):
    net, state = mixer(kind), torch.ones(STATE)
    picks = torch.tensor([[1, 2, 3]])
    alive = torch.tensor([[True, False, True]])
    q = torch.randn(AGENTS, CHOICES, generator=torch.Generator().manual_seed(3))
    other = q.clone()
    other[1] = 1e6
    assert torch.equal(total(net, q, picks, state, alive), total(net, other, picks, state, alive))
    other[0] += 1
    assert not torch.equal(total(net, q, picks, state, alive), total(net, other, picks, state, alive))


def test_duplex_can_say_what_a_monotonic_mixer_cannot():
    """With equal advantages of the agents, the importance of an advantage depends on what all do together."""
    net = mixer("duplex")
    q = torch.tensor([[0.0, -1, -1, -1]] * AGENTS)
    picks = torch.tensor([[1, 0, 0], [2, 0, 0]])
    with torch.no_grad():
        one, other = total(net, q, picks, torch.ones(STATE))
        flat = total(mixer("monotonic"), q, picks, torch.ones(STATE))
    assert abs(one - other) > 1e-4
    assert flat[0] == flat[1]
