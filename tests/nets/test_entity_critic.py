"""MA-POCA's critic: permutations, masks, counts, hidden states."""

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything
from coterie.core.tree import tree_map
from coterie.core.types import Action
from coterie.nets.config import NetworkConfig
from coterie.nets.entity_critic import HEADS, EntityCritic, ResidualAttention

SIZE, MEMBERS = 8, 3


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


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def critic(kind="discrete", rnn="none", signals=1, equal_roles=True, seed=0, state_size=0):
    """A critic of two guards and a scout."""
    (team,) = Everything(kind, equal_roles=equal_roles).spec.default_teams()
    config = NetworkConfig((16,), "tanh", rnn=rnn, rnn_size=8)
    return EntityCritic(team, signals, embedding_size=SIZE, config=config, generator=draw(seed), state_size=state_size)


def scene(batch=4, lead=(), seed=1):
    """Observations and actions of two guards and a scout with discrete actions."""
    g = draw(seed)
    shape = (*lead, batch)
    obs = {"guard": torch.randn(*shape, 2, 5, generator=g), "scout": torch.randn(*shape, 1, 5, generator=g)}
    action = {
        name: Action(torch.randint(0, 3, (*shape, n, 1), generator=g)) for name, n in (("guard", 2), ("scout", 1))
    }
    return obs, action


def everyone(*shape):
    return torch.ones(*shape, MEMBERS, dtype=torch.bool)


def test_permuting_members_permutes_baselines_and_keeps_the_value():
    net = critic(signals=2)
    obs, action = scene()
    present = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]]).bool()
    value, _ = net(obs, None, action, present, None, {})
    swapped = {**obs, "guard": obs["guard"].flip(1)}, {**action, "guard": Action(action["guard"].discrete.flip(1))}
    order = torch.tensor([1, 0, 2])
    other, _ = net(swapped[0], None, swapped[1], present[:, order], None, {})
    torch.testing.assert_close(other[:, 0], value[:, 0])
    torch.testing.assert_close(other[:, 1:], value[:, 1 + order])
    assert not torch.allclose(value[:, 1], value[:, 2])  # there is something to permute


def test_a_baseline_depends_on_the_others_actions_only():
    net = critic()
    obs, action = scene()
    before, _ = net(obs, None, action, None, None, {})
    turned = {**action, "guard": Action((action["guard"].discrete + torch.tensor([[1], [0]])) % 3)}  # guard 0 alone
    after, _ = net(obs, None, turned, None, None, {})
    torch.testing.assert_close(after[:, :2], before[:, :2])  # V, and the baseline of guard 0
    assert ((after - before)[:, 2:].abs() > 1e-5).all()
    alone, _ = net(obs, None, None, None, None, {})
    torch.testing.assert_close(alone, before[:, :1])


def test_absent_members_change_only_the_count():
    net = critic()
    obs, action = scene()
    present = everyone(4)
    present[:, 1] = False
    expected, _ = net(obs, None, action, present, None, {})
    for fill in (float("nan"), 1e6):
        dirty = {**obs, "guard": obs["guard"].clone()}
        dirty["guard"][:, 1] = fill
        others = {**action, "guard": Action((action["guard"].discrete + torch.tensor([[0], [1]])) % 3)}
        found, _ = net(dirty, None, others, present, None, {})
        assert torch.equal(found, expected)
    # The same weights in a team that never had the second guard: what differs is the count, 2 of 3 against 2 of 2.
    alone = EntityCritic(pair(), 1, embedding_size=SIZE, config=net.config, generator=draw())
    alone.load_state_dict(net.state_dict())
    first = {"guard": obs["guard"][:, :1], "scout": obs["scout"]}
    fewer, _ = alone(first, None, {**action, "guard": Action(action["guard"].discrete[:, :1])}, None, None, {})
    torch.testing.assert_close(expected[:, [0, 1, 3]], fewer + net.head.weight[-1] * (1 / 3 - 1))


def pair():
    """A team of one guard and a scout."""
    (team,) = Everything("discrete", equal_roles=True).spec.default_teams()
    guard, scout = team.roles
    return replace(team, roles=(replace(guard, agents=guard.agents[:1]), scout), stop=2)


def test_any_number_of_members_may_be_present():
    net = critic()
    obs, action = scene(batch=8)
    present = torch.tensor([[i >> k & 1 for k in range(MEMBERS)] for i in range(8)]).bool()
    value, _ = net(obs, None, action, present, None, {})
    value.sum().backward()
    assert value.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    assert len(value[:, 0].unique()) == 8


def test_a_state_is_added_to_the_observation_of_every_member():
    """Values and baselines are those of a critic without a state whose observations have two more entries."""
    net, (obs, action), state = critic(state_size=2), scene(), torch.randn(4, 2, generator=draw(2))
    (team,) = Everything("discrete", equal_roles=True).spec.default_teams()
    box = spaces.Box(-9, 9, (5 + 2,))
    team = replace(team, roles=tuple(replace(role, observation_space=box) for role in team.roles))
    wide = EntityCritic(team, 1, embedding_size=SIZE, config=net.config, generator=draw(5))
    wide.load_state_dict(net.state_dict())
    joined = {name: torch.cat([x, state.unsqueeze(1).expand(-1, x.shape[1], -1)], -1) for name, x in obs.items()}
    present = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]]).bool()
    found, _ = net(obs, state, action, present, None, {})
    torch.testing.assert_close(found, wide(joined, None, action, present, None, {})[0])
    other, _ = net(obs, state + 1, action, present, None, {})
    assert ((other - found).abs() > 1e-6).all()


@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_each_context_has_a_hidden_state_that_is_reset_with_the_episode(rnn):
    net = critic(rnn=rnn)
    obs, action = scene(batch=2, lead=(3,))
    never = torch.zeros(3, 2, 1, dtype=torch.bool)
    whole, after = net(obs, None, action, None, never, net.initial_hidden_state(2, torch.device("cpu")))
    hidden_state, steps = net.initial_hidden_state(2, torch.device("cpu")), []
    for t in range(3):
        part, taken = tree_map(lambda x, t=t: x[t : t + 1], (obs, action))
        value, hidden_state = net(part, None, taken, None, never[:1], hidden_state)
        steps.append(value)
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(hidden_state, after)
    assert hidden_state["h"].shape == (2, 1 + MEMBERS, 8)
    only, _ = net(obs, None, None, None, never, {name: x[:, :1] * 0 for name, x in hidden_state.items()})
    torch.testing.assert_close(only, whole[:, :, :1])
    begins = never.clone()
    begins[2, 0] = True
    reset, _ = net(obs, None, action, None, begins, net.initial_hidden_state(2, torch.device("cpu")))
    part, taken = tree_map(lambda x: x[2:], (obs, action))
    fresh, _ = net(part, None, taken, None, begins[2:], net.initial_hidden_state(2, torch.device("cpu")))
    torch.testing.assert_close(reset[2, 0], fresh[0, 0])
    torch.testing.assert_close(reset[2, 1], whole[2, 1])
    assert not torch.allclose(reset[2, 0], whole[2, 0])


def test_initial_weights_have_the_standard_deviation_of_the_source():
    net = EntityCritic(pair(), 1, embedding_size=64, config=NetworkConfig((64,), "tanh"), generator=draw())
    for weight in (net.attention.query_key_value.weight[:, :64], net.attention.out.weight, net.body.layers[0].weight):
        assert weight.std().item() == pytest.approx((0.125 / 64) ** 0.5, rel=0.05)
