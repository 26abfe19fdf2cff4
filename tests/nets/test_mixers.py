"""Mixers: monotonicity, and the consistency of team and agent greedy actions."""

import itertools

import pytest
import torch

from coterie.core.types import Action
from coterie.kernels import switch
from coterie.nets import layers, mixers
from coterie.nets.config import CentralInputs, NetworkConfig
from coterie.nets.joint_actions import JointAction
from coterie.nets.mixers import (
    Mixer,
    QFIXMixer,
    QMIXMixer,
    QPLEXMixer,
    TeamQNetwork,
    UnrestrictedMixer,
    VDNMixer,
    build_mixer,
    greedy_actions,
    taken_actions,
)
from coterie.nets.team import CentralEncoder, TeamNetwork
from policy_cases import CPU, draw, make_team

AGENTS, CHOICES, STATE = 3, 4, 6
QFIX = [f"qfix_{kind}{form}" for kind in ("sum", "mono", "lin") for form in ("", ", additive")]


def mixer(kind, seed=0):
    g = torch.Generator().manual_seed(seed)
    if kind == "vdn":
        return VDNMixer()
    if kind == "qmix":
        return QMIXMixer(AGENTS, STATE, 8, 16, g)
    if kind == "qmix, single layers":
        return QMIXMixer(AGENTS, STATE, 8, None, g)
    if kind == "qplex":
        return QPLEXMixer(AGENTS, STATE, AGENTS * CHOICES, 8, 16, g)
    if kind.startswith("qfix"):
        fixee = QMIXMixer(AGENTS, STATE, 8, 16, g) if "mono" in kind else VDNMixer()
        form = {"per_agent": "lin" in kind, "additive": "additive" in kind}
        return QFIXMixer(fixee, AGENTS, STATE, AGENTS * CHOICES, 16, g, **form)
    return UnrestrictedMixer(AGENTS, STATE, 16, g)


def total(net, q, actions, state, alive=None):
    """Q_tot of `actions` [M, N] with agents' q [N, A] in one state [S]."""
    chosen = q.gather(-1, actions.T).T
    joint = torch.nn.functional.one_hot(actions, CHOICES).flatten(-2).float()
    alive = torch.ones_like(actions, dtype=torch.bool) if alive is None else alive
    best = torch.where(alive, q.amax(-1).expand_as(chosen), 0.0)
    return net(torch.where(alive, chosen, 0.0), best, state.expand(len(actions), -1), joint, alive)


def test_hypernetworks_of_one_layer_are_linear_in_the_state():
    net = QMIXMixer(2, 2, 1, None, torch.Generator().manual_seed(0))
    numbers = {"first": [[1.0, -2.0], [0.5, 0.0]], "second": [[-3.0], [0.0]], "direct": [[4.0, 5.0], [0.0, 0.0]]}
    numbers["value"] = [[0.5]]
    with torch.no_grad():
        for name, weight in numbers.items():
            getattr(net, name).weight.copy_(torch.tensor(weight))
            getattr(net, name).bias.zero_()
    q, state = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])
    # W1 = |(1 + 1, -2)|, b = 4, w2 = |-3|, V = 0.5 relu(5): elu(2 + 4 + 4) 3 + 2.5
    assert net(q, q, state, state, torch.ones(1, 2, dtype=torch.bool)).tolist() == [32.5]


@pytest.mark.parametrize("kind", ["vdn", "qmix", "qmix, single layers"])
def test_q_tot_is_monotonic_in_every_agents_q(kind):
    g = torch.Generator().manual_seed(1)
    for seed in range(5):
        q = torch.randn(64, AGENTS, generator=g, requires_grad=True)
        state = torch.randn(64, STATE, generator=g) * 3
        mixer(kind, seed)(q, q, state, state, torch.ones(64, AGENTS, dtype=torch.bool)).sum().backward()
        assert (q.grad >= 0).all()
        assert (q.grad > 0).any()


@pytest.mark.parametrize("kind", ["qmix", "qmix, single layers", "qplex", *QFIX[1::2]])
def test_agents_learn_in_a_state_of_zeros(kind):
    """Normalized observations that are constant are zeros."""
    q = torch.randn(AGENTS, CHOICES, generator=torch.Generator().manual_seed(1), requires_grad=True)
    total(mixer(kind), q, torch.zeros(1, AGENTS, dtype=torch.long), torch.zeros(STATE)).sum().backward()
    assert q.grad is not None
    assert (q.grad[:, 0] > 0).all()


@pytest.mark.parametrize("kind", ["vdn", "qmix", "qplex", *QFIX])
def test_greedy_joint_action_consists_of_greedy_actions(kind):
    every = torch.tensor(list(itertools.product(range(CHOICES), repeat=AGENTS)))
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for seed in range(10):
            q, state = torch.randn(AGENTS, CHOICES, generator=g) * 2, torch.randn(STATE, generator=g)
            values = total(mixer(kind, seed), q, every, state)
            assert every[values.argmax()].tolist() == q.argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["vdn", "qmix", "qplex", *QFIX])
def test_q_of_dead_agents_does_not_matter(kind):
    net, state = mixer(kind), torch.ones(STATE)
    actions = torch.tensor([[1, 2, 3]])
    alive = torch.tensor([[True, False, True]])
    q = torch.randn(AGENTS, CHOICES, generator=torch.Generator().manual_seed(3))
    other = q.clone()
    other[1] = 1e6
    assert torch.equal(total(net, q, actions, state, alive), total(net, other, actions, state, alive))
    other[0, 1] -= 1
    assert not torch.equal(total(net, q, actions, state, alive), total(net, other, actions, state, alive))


def test_agents_of_qplex_learn_as_in_a_weighted_sum():
    """The importance of an advantage is learned from it, but does not scale the gradient of the agents."""
    g = torch.Generator().manual_seed(4)
    net, state, joint = mixer("qplex"), torch.randn(5, STATE, generator=g), torch.zeros(5, AGENTS * CHOICES)
    chosen, best = (torch.randn(5, AGENTS, generator=g, requires_grad=True) for _ in range(2))
    net(chosen, best, state, joint, torch.ones(5, AGENTS, dtype=torch.bool)).sum().backward()
    weight = torch.nn.functional.softplus(net.heads(net.weights(state)).chunk(2, -1)[0])
    torch.testing.assert_close(chosen.grad, weight)
    assert best.grad is None
    assert net.importance.weight.grad.any()


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


@pytest.mark.parametrize("kind", QFIX)
def test_qfix_represents_a_game_that_is_not_monotonic_exactly(kind):
    """A hidden unit of w per joint action makes it a table: w = (payoff - 8) / A, and b = 8 - f(V) or 8.

    QMIX cannot: where Q_tot never decreases with an agent's Q, one action of the first agent is at least as good as
    the other whatever the second does, but action 0 is 20 better against 0 and 12 worse against 1.
    """
    payoff = torch.tensor([[8.0, -12, -12], [-12, 0, 0], [-12, 0, 0]])
    g = torch.Generator().manual_seed(0)
    fixee = QMIXMixer(2, 1, 8, 16, g) if "mono" in kind else VDNMixer()
    form = {"per_agent": "lin" in kind, "additive": "additive" in kind}
    net = QFIXMixer(fixee, 2, 1, 6, 9, g, **form)
    actions = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    joint = torch.nn.functional.one_hot(actions, 3).flatten(1).float()
    chosen, best = torch.tensor([0.0, -1, -1])[actions], torch.zeros(9, 2)
    state, alive = torch.ones(9, 1), torch.ones(9, 2, dtype=torch.bool)
    with torch.no_grad():
        top = fixee(best, best, state, joint, alive)
        advantage = fixee(chosen, chosen, state, joint, alive) - top
        weight = torch.where(advantage < 0, (payoff.flatten() - 8) / advantage, 1.0)
        assert (weight > 0).all()
        hidden = net.weigh.layers[0]
        hidden.weight.copy_(torch.cat([torch.zeros(1, 9), joint.T]))  # relu(1 + 1 - 1) for the joint action, else 0
        hidden.bias.fill_(-1)
        net.weight.weight.copy_(weight.expm1().log().nan_to_num(posinf=20).unsqueeze(1).expand_as(net.weight.weight))
        net.weight.bias.zero_()
        net.bias.weight.zero_()
        net.bias.bias.fill_(8 - top[0] if form["additive"] else 8)
        torch.testing.assert_close(net(chosen, best, state, joint, alive).view(3, 3), payoff, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", QFIX)
def test_q_tot_of_qfix_is_that_of_its_formula(kind):
    net = mixer(kind)
    chosen, top, state, joint, alive = batch()
    with torch.no_grad():
        found = net(chosen, top, state, joint, alive)
        assert found.shape == (2, 5)
        total, value = (net.fixee(x, x, state, joint, alive) for x in (chosen, top))
        for place in itertools.product(range(2), range(5)):
            s, u = state[place], joint[place]
            weight = positive(affine(net.weight, affine(net.weigh.layers[0], torch.cat([s, u])).clamp(min=0)))
            bias = affine(net.bias, affine(net.value.layers[0], s).clamp(min=0))[0]
            advantage = (chosen - top)[place] if "lin" in kind else (total - value)[place]
            expected = (weight * advantage).sum() + bias + (value[place] if "additive" in kind else 0)
            torch.testing.assert_close(found[place], expected)
    assert net.reads_joint_action


@pytest.mark.slow
@pytest.mark.parametrize("kind", QFIX[::2])
def test_qfix_fits_that_game_once_agents_prefer_its_optimum(kind):
    """By gradient steps on all joint actions. Where agents prefer other actions, 32 is the least squared error."""
    payoff = torch.tensor([8.0, -12, -12, -12, 0, 0, -12, 0, 0])
    sizes = {"agents": 2, "state_size": 1, "joint_size": 6, "embed_dim": 8, "hidden": 16}
    net = build_mixer(kind, **sizes, generator=torch.Generator().manual_seed(0))
    actions = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    joint = torch.nn.functional.one_hot(actions, 3).flatten(1).float()
    q = torch.nn.Parameter(torch.tensor([[1.0, 0.1, 0], [1.0, 0, 0.1]]))
    optimizer = torch.optim.Adam([q, *net.parameters()], lr=2e-2)
    error = payoff
    for _ in range(400):
        chosen, best = q.gather(1, actions.T).T, q.amax(1).expand(9, 2)
        total = net(chosen, best, torch.ones(9, 1), joint, torch.ones(9, 2, dtype=torch.bool))
        error = total - payoff
        optimizer.zero_grad()
        error.square().sum().backward()
        optimizer.step()
    assert error.square().sum() < 0.01


@pytest.mark.parametrize("kind", QFIX)
def test_in_the_additive_form_agents_learn_from_the_fixed_mixer_alone(kind):
    net, (chosen, top, state, joint, alive) = mixer(kind), batch()
    with torch.no_grad():
        net.weight.bias.fill_(2.0)
    chosen.requires_grad_()
    (of_qfix,) = torch.autograd.grad(net(chosen, top, state, joint, alive).sum(), chosen)
    (of_fixee,) = torch.autograd.grad(net.fixee(chosen, top, state, joint, alive).sum(), chosen)
    assert torch.allclose(of_qfix, of_fixee) == ("additive" in kind)


def batch(seed=4):
    """Inputs of a mixer for two timesteps of five environments; agent 1 of the first environment is dead."""
    g = torch.Generator().manual_seed(seed)
    alive = torch.ones(2, 5, AGENTS, dtype=torch.bool)
    alive[0, 0, 1] = False
    chosen = torch.randn(2, 5, AGENTS, generator=g) * alive
    top = (chosen + torch.rand(2, 5, AGENTS, generator=g)) * alive
    return chosen, top, torch.randn(2, 5, STATE, generator=g), torch.rand(2, 5, AGENTS * CHOICES, generator=g), alive


def affine(layer, x):
    return x @ layer.weight + layer.bias


def positive(x):
    return torch.log(1 + torch.exp(x))


def test_q_tot_of_qmix_is_that_of_its_formula():
    """Q_tot = elu(Q |W1(s)| + b1(s)) |w2(s)| + V(s), one environment at a time."""
    net = mixer("qmix")
    chosen, top, state, joint, alive = batch()
    with torch.no_grad():
        found = net(chosen, top, state, joint, alive)
        assert found.shape == (2, 5)
        for place in itertools.product(range(2), range(5)):
            s = state[place]
            hidden, direct = affine(net.hidden, s).clamp(min=0), affine(net.direct, s)
            w1 = affine(net.first, hidden[:16]).abs().view(AGENTS, 8)
            w2 = affine(net.second, hidden[16:]).abs()
            x = chosen[place] @ w1 + direct[:8]
            x = torch.where(x > 0, x, x.exp() - 1)
            expected = x @ w2 + affine(net.value, direct[8:].clamp(min=0))[0]
            torch.testing.assert_close(found[place], expected)
    assert (net.hidden.weight.shape, net.direct.weight.shape) == ((STATE, 32), (STATE, 16))
    gain = torch.linalg.svdvals(net.hidden.weight)
    torch.testing.assert_close(gain, torch.full_like(gain, 2**0.5))
    for layer, expected in ((net.first, 0.1), (net.second, 0.1), (net.direct, 1.0), (net.value, 1.0)):
        gain = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(gain, torch.full_like(gain, expected))


def test_qmix_begins_near_the_sum_of_the_agents_values():
    """Within a factor of two, whatever the state: weights of the mixing layer are near 1 / sqrt(its width)."""
    net = mixer("qmix")
    _, top, state, joint, alive = batch()
    with torch.no_grad():
        net.direct.weight.zero_()  # no bias of the state
        ones = torch.ones_like(top)
        total = net(ones, ones, state, joint, alive)
    assert ((total / AGENTS > 0.5) & (total / AGENTS < 2)).all()


@pytest.mark.parametrize(
    ("on", "supported", "replaced"), [(False, True, False), (True, False, False), (True, True, True)]
)
def test_a_kernel_replaces_qmix_where_kernels_are_on_and_have_one(on, supported, replaced, monkeypatch):
    net, given, fused = mixer("qmix"), batch(), torch.full((2, 5), 7.0)
    monkeypatch.setattr(switch, "on", False)
    plain = net(*given)
    monkeypatch.setattr(switch, "on", on)
    monkeypatch.setattr(mixers, "qmix", lambda *args: fused if supported else None)
    monkeypatch.setattr(layers, "mlp", lambda *args, **options: None)
    assert net(*given).equal(fused if replaced else plain)


def test_q_tot_of_qplex_is_that_of_its_formula():
    """sum_i (w_i V_i + b_i) + sum_i lambda_i w_i (Q_i - V_i) over living agents, one environment at a time."""
    net = mixer("qplex")
    chosen, top, state, joint, alive = batch()
    with torch.no_grad():
        found = net(chosen, top, state, joint, alive)
        assert found.shape == (2, 5)
        for place in itertools.product(range(2), range(5)):
            s, u, here = state[place], joint[place], alive[place].float()
            heads = affine(net.heads, affine(net.weights.layers[0], s).clamp(min=0))
            weight, offset = positive(heads[:AGENTS]), heads[AGENTS:]
            x = torch.cat([s, u])
            for layer in net.attend.layers:
                x = affine(layer, x).clamp(min=0)
            importance = positive(affine(net.importance, x))
            value, advantage = top[place], chosen[place] - top[place]
            expected = (weight * value + offset * here + importance * weight * advantage * here).sum()
            torch.testing.assert_close(found[place], expected)
    assert net.reads_joint_action
    for layer in (net.heads, net.importance):
        gain = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(gain, torch.ones_like(gain))


def test_q_tot_of_an_unrestricted_mixer_is_a_network_of_all_inputs():
    net = mixer("plain")
    chosen, top, state, joint, alive = batch()
    with torch.no_grad():
        found = net(chosen, top, state, joint, alive)
        x = torch.cat([chosen, state], -1)
        for layer in net.body.layers:
            x = affine(layer, x).clamp(min=0)
        torch.testing.assert_close(found, affine(net.head, x).squeeze(-1))
    gain = torch.linalg.svdvals(net.head.weight)
    torch.testing.assert_close(gain, torch.ones_like(gain))
    assert not net.reads_joint_action


def test_vdn_sums_the_agents_q():
    chosen, top, state, joint, alive = batch()
    torch.testing.assert_close(mixer("vdn")(chosen, top, state, joint, alive), chosen.sum(2))
    assert not mixer("vdn").reads_joint_action


@pytest.mark.parametrize(
    ("kind", "cls"),
    [("vdn", VDNMixer), ("qmix", QMIXMixer), ("qplex", QPLEXMixer), *((kind, QFIXMixer) for kind in QFIX[::2])],
)
def test_mixers_are_chosen_by_name(kind, cls):
    sizes = {"agents": AGENTS, "state_size": STATE, "joint_size": AGENTS * CHOICES, "embed_dim": 8, "hidden": 16}
    net = build_mixer("".join(list(kind)), **sizes, generator=torch.Generator().manual_seed(0))
    assert type(net) is cls
    assert [p.shape for p in net.parameters()] == [p.shape for p in mixer(kind).parameters()]
    assert build_mixer("none", **sizes, generator=torch.Generator()) is None


class Recorder(Mixer):
    """Returns the sum of the chosen Q, and keeps its inputs."""

    def __init__(self, reads_joint_action):
        super().__init__()
        self.reads_joint_action = reads_joint_action

    def forward(self, chosen, best, state, joint, alive):
        self.given = {"chosen": chosen, "best": best, "state": state, "joint": joint, "alive": alive}
        return chosen.sum(-1)


def team_q(mixer, encoder=None):
    """Q-networks of two guards and a scout with four choices each."""
    team = make_team("discrete")
    net = TeamNetwork(team, {"guard": 4, "scout": 4}, NetworkConfig((8,), "tanh"), draw())
    return TeamQNetwork(net, mixer, encoder, JointAction(team, CPU))


def team_batch():
    """Q, actions, masks and flags of five timesteps of three environments."""
    q = {name: torch.randn(5, 3, n, 4, generator=draw(n)) for name, n in (("guard", 2), ("scout", 1))}
    actions = {name: torch.randint(4, (5, 3, n, 1), generator=draw(n)) for name, n in (("guard", 2), ("scout", 1))}
    masks = {"guard": torch.rand(5, 3, 2, 4, generator=draw(7)) < 0.6, "scout": None}
    masks["guard"][..., 0] = True
    return q, actions, masks, torch.rand(5, 3, 3, generator=draw(8)) < 0.7


@pytest.mark.parametrize("reads_joint_action", [False, True])
def test_a_mixer_gets_the_q_of_living_agents_and_the_joint_action(reads_joint_action):
    recorder, (q, actions, masks, alive) = Recorder(reads_joint_action), team_batch()
    team, state = make_team("discrete"), torch.randn(5, 3, 6)
    given = {"masks": masks, "alive": alive, "obs": {}}
    net = team_q(recorder, CentralEncoder(team, CentralInputs(False, 6), draw()))
    total_q = net.evaluate(q, actions, **given, state=state)
    independent = team_q(None).evaluate(q, actions, **given, state=None)
    found = recorder.given
    assert found["state"].equal(state)
    assert found["alive"] is alive
    assert total_q.equal(found["chosen"].sum(-1))
    for t, b, i in itertools.product(range(5), range(3), range(3)):
        name, k = ("guard", i) if i < 2 else ("scout", 0)
        own, choice, here = q[name][t, b, k].tolist(), int(actions[name][t, b, k]), bool(alive[t, b, i])
        assert independent[t, b, i].item() == own[choice]
        assert found["chosen"][t, b, i].item() == own[choice] * here
        if reads_joint_action:
            mask = [True] * 4 if name == "scout" else masks["guard"][t, b, k].tolist()
            top = max(value for value, available in zip(own, mask, strict=True) if available)
            assert found["best"][t, b, i].item() == top * here
            one_hot = [float(a == choice and here) for a in range(4)]
            assert found["joint"][t, b, 4 * i : 4 * i + 4].tolist() == one_hot
    team_q(recorder).evaluate(q, actions, **given, state=None)
    assert recorder.given["state"].equal(recorder.given["chosen"]), "a mixer without an input of its own"


def test_actions_of_agents_are_chosen_and_compared_by_block():
    net, (q, actions, masks, _) = team_q(None), team_batch()
    greedy = greedy_actions(net.net, q, masks)
    assert greedy["scout"].equal(q["scout"].argmax(-1, keepdim=True))
    assert greedy["guard"].equal(torch.where(masks["guard"], q["guard"], -1e9).argmax(-1, keepdim=True))
    by_role = {name: Action(action) for name, action in actions.items()}
    assert all(taken_actions(net.net, by_role)[name].equal(action) for name, action in actions.items())
    several = {name: torch.cat([action, action * 0], -1) for name, action in actions.items()}
    other = {name: action.clone() for name, action in several.items()}
    other["guard"][1, 2, 1, 1] = 3
    other["scout"][4, 0, 0, 0] -= 1
    same = net.same_actions(several, other)
    assert same.shape == (5, 3, 3)
    assert (~same).nonzero().tolist() == [[1, 2, 1], [4, 0, 2]]
