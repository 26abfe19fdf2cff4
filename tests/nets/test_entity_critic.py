"""MA-POCA's critic: permutations, masks, counts, hidden states."""

from dataclasses import replace

import pytest
import torch

from algo_worlds import Everything
from coterie.core.tree import tree_map
from coterie.core.types import Action
from coterie.nets.config import NetworkConfig
from coterie.nets.entity_critic import EntityCritic

SIZE, MEMBERS = 8, 3


def draw(seed=0):
    return torch.Generator().manual_seed(seed)


def critic(kind="discrete", rnn="none", signals=1, equal_roles=True, seed=0):
    """A critic of two guards and a scout."""
    (team,) = Everything(kind, equal_roles=equal_roles).spec.default_teams()
    config = NetworkConfig((16,), "tanh", rnn=rnn, rnn_size=8)
    return EntityCritic(team, signals, embedding_size=SIZE, config=config, generator=draw(seed))


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
    value, _ = net(obs, action, present, None, {})
    swapped = {**obs, "guard": obs["guard"].flip(1)}, {**action, "guard": Action(action["guard"].discrete.flip(1))}
    order = torch.tensor([1, 0, 2])
    other, _ = net(*swapped, present[:, order], None, {})
    torch.testing.assert_close(other[:, 0], value[:, 0])
    torch.testing.assert_close(other[:, 1:], value[:, 1 + order])
    assert not torch.allclose(value[:, 1], value[:, 2])  # there is something to permute


def test_a_baseline_depends_on_the_others_actions_only():
    net = critic()
    obs, action = scene()
    before, _ = net(obs, action, None, None, {})
    turned = {**action, "guard": Action((action["guard"].discrete + torch.tensor([[1], [0]])) % 3)}  # guard 0 alone
    after, _ = net(obs, turned, None, None, {})
    torch.testing.assert_close(after[:, :2], before[:, :2])  # V, and the baseline of guard 0
    assert ((after - before)[:, 2:].abs() > 1e-5).all()
    alone, _ = net(obs, None, None, None, {})
    torch.testing.assert_close(alone, before[:, :1])


def test_absent_members_change_only_the_count():
    net = critic()
    obs, action = scene()
    present = everyone(4)
    present[:, 1] = False
    expected, _ = net(obs, action, present, None, {})
    for fill in (float("nan"), 1e6):
        dirty = {**obs, "guard": obs["guard"].clone()}
        dirty["guard"][:, 1] = fill
        others = {**action, "guard": Action((action["guard"].discrete + torch.tensor([[0], [1]])) % 3)}
        found, _ = net(dirty, others, present, None, {})
        assert torch.equal(found, expected)
    # The same weights in a team that never had the second guard: what differs is the count, 2 of 3 against 2 of 2.
    alone = EntityCritic(pair(), 1, embedding_size=SIZE, config=net.config, generator=draw())
    alone.load_state_dict(net.state_dict())
    first = {"guard": obs["guard"][:, :1], "scout": obs["scout"]}
    fewer, _ = alone(first, {**action, "guard": Action(action["guard"].discrete[:, :1])}, None, None, {})
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
    value, _ = net(obs, action, present, None, {})
    value.sum().backward()
    assert value.isfinite().all()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    assert len(value[:, 0].unique()) == 8


@pytest.mark.parametrize("rnn", ["gru", "lstm"])
def test_each_context_has_a_hidden_state_that_is_reset_with_the_episode(rnn):
    net = critic(rnn=rnn)
    obs, action = scene(batch=2, lead=(3,))
    never = torch.zeros(3, 2, 1, dtype=torch.bool)
    whole, after = net(obs, action, None, never, net.initial_hidden_state(2, torch.device("cpu")))
    hidden_state, steps = net.initial_hidden_state(2, torch.device("cpu")), []
    for t in range(3):
        row = tree_map(lambda x, t=t: x[t : t + 1], (obs, action))
        value, hidden_state = net(*row, None, never[:1], hidden_state)
        steps.append(value)
    torch.testing.assert_close(torch.cat(steps), whole)
    torch.testing.assert_close(hidden_state, after)
    assert hidden_state["h"].shape == (2, 1 + MEMBERS, 8)
    only, _ = net(obs, None, None, never, {name: x[:, :1] * 0 for name, x in hidden_state.items()})
    torch.testing.assert_close(only, whole[:, :, :1])
    begins = never.clone()
    begins[2, 0] = True
    reset, _ = net(obs, action, None, begins, net.initial_hidden_state(2, torch.device("cpu")))
    fresh, _ = net(
        *tree_map(lambda x: x[2:], (obs, action)), None, begins[2:], net.initial_hidden_state(2, torch.device("cpu"))
    )
    torch.testing.assert_close(reset[2, 0], fresh[0, 0])
    torch.testing.assert_close(reset[2, 1], whole[2, 1])
    assert not torch.allclose(reset[2, 0], whole[2, 0])


def test_initial_weights_have_the_standard_deviation_of_the_source():
    net = EntityCritic(pair(), 1, embedding_size=64, config=NetworkConfig((64,), "tanh"), generator=draw())
    for weight in (net.attention.query_key_value.weight[:, :64], net.attention.out.weight, net.body.layers[0].weight):
        assert weight.std().item() == pytest.approx((0.125 / 64) ** 0.5, rel=0.05)
