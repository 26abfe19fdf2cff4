"""HASAC: literal bonuses and targets, turns of agents, a game that simultaneous updates lose, and equality with SAC."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, observe_ones, observe_x
from coterie.algos.hasac import HASAC, team_entropy_bonus
from coterie.algos.sac import SAC
from coterie.core.errors import UserError
from coterie.core.tree import tree_leaves, tree_map
from learners import collect_rollout
from learners import hasac_learner as learner

BOX = spaces.Box(-1.0, 1.0, (2,))
HYBRID = spaces.Tuple([spaces.Discrete(3), BOX])
REWARD = torch.tensor([[0.0, 2.0], [2.0, -1.0]])
"""Reward of both agents by the choice of each: they must differ. Source: Kuba et al. 2022, example 2."""


def weights(algorithm):
    state = algorithm.state_dict()
    parts = [state[name] for name in ("policy", "critic", "target", "temperature")]
    return [x.clone() for x in tree_leaves(parts) if isinstance(x, torch.Tensor)]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def pay_one(x, age, d, c):
    return torch.ones(len(x), 1)


# ------------------------------------------------------------------------------------------------------------ targets


def test_the_bonus_of_a_team_is_the_sum_of_entropies_by_temperature():
    entropy, temperature = torch.tensor([[1.0, 2.0], [0.5, 0.0]]), torch.tensor([0.5, 0.25])
    assert team_entropy_bonus(entropy, temperature).tolist() == [[1.0, 1.0], [0.25, 0.25]]


def test_targets_contain_the_entropies_of_all_agents():
    """Reward 1, Q 2: y = 1 + 0.9 (2 + 0.5 H_0 + 0.25 H_1), H = log 3 of uniform choices; no bonus after the end."""
    world = Probe(observe_ones, pay_one, n=2, actions=spaces.Discrete(3), length=2)
    algorithm, collector = learner(world, gamma=0.9)
    for part in algorithm.policy.net.networks["agent"].network.head.parameters():
        part.data.zero_()
    for critic in (algorithm.nets.target.module.first_critic, algorithm.nets.target.module.second_critic):
        for p in critic.parameters():
            p.data.zero_()
        critic.heads["agent"].head.bias.data.fill_(2.0)
    rollout = collect_rollout(algorithm, collector)
    target = algorithm.targets(rollout, algorithm.sample_actions(rollout), torch.tensor([0.5, 0.25]))
    wanted = 1 + 0.9 * (2 + 0.75 * torch.tensor(3.0).log())
    torch.testing.assert_close(target[0], wanted.expand(16, 2))
    assert torch.equal(target[1], torch.ones(16, 2))  # the last step of an episode


# -------------------------------------------------------------------------------------------------------------- turns


def recorded(algorithm, collector):
    """Returns the agents in order, and the actions that the critics read in each turn, of one gradient step."""
    turns, of_agent = [], algorithm.nets.critics.of_agent

    def recording(agent, features, action, alive):
        turns.append((agent, tree_map(torch.clone, action)))
        return of_agent(agent, features, action, alive)

    algorithm.nets.critics.of_agent = recording
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    return turns


def test_agents_read_the_newest_actions_of_those_before_them_and_old_ones_of_those_after():
    world = Probe(observe_x, lambda x, age, d, c: c.sum(-1), n=3, actions=BOX, length=4)
    algorithm, collector = learner(world, lr=0.1, gradient_steps=1)
    orders = set()
    for _ in range(8):
        turns = recorded(algorithm, collector)
        order = [agent for agent, _ in turns]
        assert sorted(order) == [0, 1, 2]
        orders.add(tuple(order))
        numbers = [action["agent"].continuous for _, action in turns]
        for place, agent in enumerate(order):
            # Until its turn, an agent has the action of its old policy, which its turn starts from; afterwards another.
            old, new = numbers[: place + 1], numbers[place + 1 :]
            assert all(torch.equal(x[..., agent, :], old[0][..., agent, :]) for x in old)
            assert all(not torch.equal(x[..., agent, :], old[0][..., agent, :]) for x in new)
            assert all(torch.equal(x[..., agent, :], new[0][..., agent, :]) for x in new)
        # Only the agent whose turn it is can have a gradient.
        assert all(x.requires_grad for x in numbers)
    assert len(orders) > 2


def test_a_new_action_is_that_of_the_new_policy_with_the_same_noise():
    """With a learning rate of 0, actions of old and new policies are equal."""
    world = Probe(observe_x, lambda x, age, d, c: c.sum(-1), n=2, actions=BOX)
    algorithm, collector = learner(world, lr=1e-30, gradient_steps=1)
    (_, first), (_, second) = recorded(algorithm, collector)
    torch.testing.assert_close(first["agent"].continuous, second["agent"].continuous)


@pytest.mark.parametrize(("rnn", "kind"), list(zip(("none", "gru") * 2, Everything.KINDS, strict=True)))
def test_the_step_of_an_agent_leaves_the_policies_of_others(kind, rnn):
    """One that never acts in the buffer has no gradient, although the others learn."""
    algorithm, collector = learner(Everything(kind), rnn=rnn, sequence_length=4)
    before = [p.clone() for p in algorithm.policy.net.networks["guard"].parameters()]
    rollout = collect_rollout(algorithm, collector)
    alive = rollout.alive.clone()
    alive[..., 1] = False
    metrics = algorithm.update(replace(rollout, alive=alive), 0.0)
    assert all(abs(x) < 1e6 for x in metrics.values())
    after = algorithm.policy.net.networks["guard"].parameters()
    changed = torch.stack([(p != q).flatten(1).any(1) for p, q in zip(before, after, strict=True)]).any(0)
    assert changed.tolist() == [True, False]


@pytest.mark.parametrize("kind", Everything.KINDS)
def test_agents_learn_with_their_own_temperatures_and_do_not_read_what_dead_agents_would_do(kind):
    """Other actions of dead agents change no Q of an agent that is alive."""
    algorithm, collector = learner(Everything(kind), lr=1e-30)
    rollout, loss, turns = collect_rollout(algorithm, collector), algorithm.agent_loss, []
    assert not rollout.alive.all()

    def recording(q, proposal, temperature, valid):
        turns.append((q.detach()[valid], temperature.item()))
        return loss(q, proposal, temperature, valid)

    algorithm.agent_loss = recording
    draw, lr = algorithm.sample_actions(rollout), {"policy": 1e-30, "temperature": 1e-30}
    state, temperature = algorithm._order.get_state(), torch.tensor([1.0, 2.0, 3.0])
    algorithm._update_actor(rollout, draw, temperature, lr)
    dead = {"guard": ~rollout.alive[..., :2, None], "scout": ~rollout.alive[..., 2:, None]}

    def other(x, dead):
        return torch.where(dead, 1 - x.clamp(0, 1), x)

    action = {role: tree_map(lambda x, role=role: other(x, dead[role]), own) for role, own in draw.action.items()}
    algorithm._order.set_state(state)
    algorithm._update_actor(rollout, replace(draw, action=action), temperature, lr)
    assert sorted(temperature for _, temperature in turns[:3]) == [1.0, 2.0, 3.0]
    for (one, own), (two, same) in zip(turns[:3], turns[3:], strict=True):
        assert own == same
        assert torch.equal(one, two)


def test_every_agent_has_a_temperature():
    """That of an agent with a target above its entropy rises, whatever its role."""
    world = Probe(observe_ones, pay_one, n=2, actions=spaces.Discrete(2))
    algorithm, collector = learner(world, temperature=1.0, temperature_lr=0.1, target_entropy_scale=0.5, lr=1e-30)
    head = algorithm.policy.net.networks["agent"].network.head
    with torch.no_grad():
        head.bias[0] = torch.tensor([0.0, 9.0])
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    sure, uniform = algorithm.log_temperature().tolist()
    assert sure > 0.05
    assert uniform < -0.05


def test_the_critics_do_not_change_in_the_turns_of_agents():
    algorithm, collector = learner(Everything("hybrid"), lr=1e-2, critic_lr=1e-12)
    before = [p.clone() for p in algorithm.nets.critics.parameters()]
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    for one, other in zip(before, algorithm.nets.critics.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
        assert other.requires_grad


# ------------------------------------------------------------------------------------------------------------- a game


def played(cls, seed):
    """Returns the exact mean reward after one gradient step of agents that choose 1 with probability 1/4.

    The critics know the rewards. Both agents are right to choose 1 as long as the other does not.
    """
    world = Probe(observe_ones, lambda x, age, d, c: REWARD[d[:, 0], d[:, 1]].view(-1, 1), n=2)
    quick = {"hidden_sizes": (8,), "rollout_length": 8, "batch_size": 512, "gradient_steps": 1, "lr": 0.9}
    quick |= {"critic_lr": 1e-12, "temperature": 1e-6, "learn_temperature": False}
    algorithm, collector = learner(world, 128, cls, **quick)
    algorithm.generator.manual_seed(seed)
    policy_head = algorithm.policy.net.networks["agent"].network.head
    with torch.no_grad():
        policy_head.weight.zero_()
        policy_head.bias.copy_(torch.tensor([0.75, 0.25]).log().expand_as(policy_head.bias))
        for critic in (algorithm.nets.critics.first_critic, algorithm.nets.critics.second_critic):
            for p in critic.parameters():
                p.zero_()
            head = critic.heads["agent"]
            head.body.layers[0].weight[-4:, :4] = torch.eye(4)  # the joint action, in which its own entries are zero
            head.head.weight[:4] = torch.cat([REWARD, REWARD])
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    logits, _ = algorithm.policy.net({"agent": torch.ones(1, 2, 1)}, None, {})
    one, other = logits["agent"][0].softmax(-1)
    return (one @ REWARD @ other).item()


def test_simultaneous_updates_lose_a_game_that_sequential_ones_win():
    """Before, agents earn 2 * 2 * 3/16 - 1/16. Two that change at the same time both choose 1."""
    before = 0.6875
    assert max(played(SAC, seed) for seed in range(3)) < -0.5 < before
    assert min(played(HASAC, seed) for seed in range(3)) > 1.5


@pytest.mark.slow
def test_probe_policies_are_the_quantal_response_equilibrium():
    """Each is the softmax of the expected rewards of its choices, divided by the temperature 2, given the other's."""
    world = Probe(observe_ones, lambda x, age, d, c: REWARD[d[:, 0], d[:, 1]].view(-1, 1), n=2)
    quick = {"rollout_length": 8, "batch_size": 128, "gradient_steps": 30, "lr": 1e-2}
    algorithm, collector = learner(world, 64, temperature=2.0, learn_temperature=False, **quick)
    for _ in range(4):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
    expected = torch.tensor([0.5, 0.5])
    for _ in range(100):
        expected = (0.5 * expected + 0.5 * (REWARD @ expected / 2.0).softmax(-1)).detach()
    logits, _ = algorithm.policy.net({"agent": torch.ones(1, 2, 1)}, None, {})
    torch.testing.assert_close(logits["agent"][0].softmax(-1), expected.expand(2, 2), atol=0.02, rtol=0)


# --------------------------------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize(
    ("rnn", "actions"),
    [("none", spaces.Discrete(3)), ("gru", spaces.MultiDiscrete([2, 3])), ("none", BOX), ("gru", HYBRID)],
)
def test_with_one_agent_hasac_is_sac_to_the_bit(rnn, actions):
    def reward(x, age, d, c):
        return x.view(-1, 1) * (d if c is None else c[..., 0])

    settings = {"rnn": rnn, "n_step": 2, "priority_alpha": 0.5, "lr": 1e-2}
    settings |= {} if rnn == "none" else {"sequence_length": 4, "burn_in": 1}
    found = []
    for cls in (SAC, HASAC):
        algorithm, collector = learner(Probe(observe_x, reward, actions=actions, length=3), 16, cls, **settings)
        metrics = [algorithm.update(collect_rollout(algorithm, collector), 0.5) for _ in range(3)]
        found.append((weights(algorithm), metrics))
    assert equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


# ----------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share_params": "role"}, "algo.share_params=role: .* Omit it, or use algo=masac"),
        ({"network": "commnet"}, "algo.network=commnet: agents share its parameters.* or use algo=masac"),
    ],
)
def test_settings_that_contradict_networks_of_their_own_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        learner(Everything("discrete"), **settings)


@pytest.mark.parametrize("network", ["commnet", "mlp"])
def test_the_critics_of_a_role_share_their_parameters(network):
    world = Everything("discrete", equal_roles=True)
    algorithm, collector = learner(world, critic_network=network)
    assert algorithm.nets.critics.first_critic.heads["guard"].sets is None
    before = weights(algorithm)
    algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert not equal(before, weights(algorithm))


def test_an_override_without_effect_is_refused():
    class Own(HASAC):
        def actor_losses(self, rollout, draw, temperature):
            return super().actor_losses(rollout, draw, temperature)

    with pytest.raises(UserError, match=r"actor_losses: has no effect in a class derived from HASAC"):
        learner(Everything("discrete"), cls=Own)
