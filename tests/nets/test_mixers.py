"""Mixers: monotonicity, and the consistency of team and agent greedy actions."""

import itertools

import pytest
import torch

from coterie.nets.mixer_variants import QPLEXMixer, UnrestrictedMixer
from coterie.nets.mixers import QMIXMixer, VDNMixer

AGENTS, CHOICES, STATE = 3, 4, 6


def mixer(kind, seed=0):
    g = torch.Generator().manual_seed(seed)
    if kind == "vdn":
        return VDNMixer()
    if kind == "qmix":
        return QMIXMixer(AGENTS, STATE, 8, 16, g)
    if kind == "qplex":
        return QPLEXMixer(AGENTS, STATE, AGENTS * CHOICES, 8, 16, g)
    return UnrestrictedMixer(AGENTS, STATE, 16, g)


def total(net, q, actions, state, alive=None):
    """Q_tot of `actions` [M, N] with agents' q [N, A] in one state [S]."""
    chosen = q.gather(-1, actions.T).T
    joint = torch.nn.functional.one_hot(actions, CHOICES).flatten(-2).float()
    alive = torch.ones_like(actions, dtype=torch.bool) if alive is None else alive
    best = torch.where(alive, q.amax(-1).expand_as(chosen), 0.0)
    return net(torch.where(alive, chosen, 0.0), best, state.expand(len(actions), -1), joint, alive)


@pytest.mark.parametrize("kind", ["vdn", "qmix"])
def test_q_tot_is_monotonic_in_every_agents_q(kind):
    g = torch.Generator().manual_seed(1)
    for seed in range(5):
        q = torch.randn(64, AGENTS, generator=g, requires_grad=True)
        state = torch.randn(64, STATE, generator=g) * 3
        mixer(kind, seed)(q, q, state, state, torch.ones(64, AGENTS, dtype=torch.bool)).sum().backward()
        assert (q.grad >= 0).all()
        assert (q.grad > 0).any()


def test_an_unrestricted_mixer_is_not_monotonic():
    q = torch.randn(64, AGENTS, generator=torch.Generator().manual_seed(1), requires_grad=True)
    mixer("plain")(q, q, torch.zeros(64, STATE), q, torch.ones(64, AGENTS, dtype=torch.bool)).sum().backward()
    assert (q.grad < 0).any()


@pytest.mark.parametrize("kind", ["vdn", "qmix", "qplex"])
def test_greedy_joint_action_consists_of_greedy_actions(kind):
    every = torch.tensor(list(itertools.product(range(CHOICES), repeat=AGENTS)))
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for seed in range(10):
            q, state = torch.randn(AGENTS, CHOICES, generator=g) * 2, torch.randn(STATE, generator=g)
            values = total(mixer(kind, seed), q, every, state)
            assert every[values.argmax()].tolist() == q.argmax(-1).tolist()


def test_an_unrestricted_mixer_violates_that():
    every = torch.tensor(list(itertools.product(range(CHOICES), repeat=AGENTS)))
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        agree = []
        for seed in range(10):
            q, state = torch.randn(AGENTS, CHOICES, generator=g) * 2, torch.randn(STATE, generator=g)
            values = total(mixer("plain", seed), q, every, state)
            agree.append(every[values.argmax()].tolist() == q.argmax(-1).tolist())
        assert not all(agree)


@pytest.mark.parametrize("kind", ["vdn", "qmix", "qplex"])
def test_q_of_dead_agents_does_not_matter(kind):
    net, state = mixer(kind), torch.ones(STATE)
    actions = torch.tensor([[1, 2, 3]])
    alive = torch.tensor([[True, False, True]])
    q = torch.randn(AGENTS, CHOICES, generator=torch.Generator().manual_seed(3))
    other = q.clone()
    other[1] = 1e6
    assert torch.equal(total(net, q, actions, state, alive), total(net, other, actions, state, alive))
    other[0] += 1
    assert not torch.equal(total(net, q, actions, state, alive), total(net, other, actions, state, alive))


def test_qplex_represents_what_qmix_cannot():
    """With equal advantages of the agents, the importance of an advantage depends on what all do together."""
    net = mixer("qplex")
    q = torch.tensor([[0.0, -1, -1, -1]] * AGENTS)
    actions = torch.tensor([[1, 0, 0], [2, 0, 0]])
    with torch.no_grad():
        one, other = total(net, q, actions, torch.ones(STATE))
        flat = total(mixer("qmix"), q, actions, torch.ones(STATE))
    assert abs(one - other) > 1e-4
    assert flat[0] == flat[1]
