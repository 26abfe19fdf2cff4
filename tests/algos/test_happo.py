"""HAPPO and HAA2C: literal losses and factors, a game that simultaneous updates lose, and turns of agents."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, env_of, observe_ones, observe_x
from coterie.algos.happo import HAPPO, AgentBatch, effective_samples, happo_loss, joint_ratio
from coterie.algos.hatrpo import HATRPO
from coterie.algos.ppo import PPO
from coterie.core.errors import UserError
from learners import collect_rollout, learner_of

SMALL = {"hidden_sizes": (8,), "rnn_size": 4, "rollout_length": 8, "epochs": 2, "num_minibatches": 2}
REWARD = torch.tensor([[0.0, 2.0], [2.0, -1.0]])
"""Reward of both agents by the choice of each: they must differ. Source: Kuba et al. 2022, example 2."""


def batch_of(log_prob, advantage, factor, valid=None):
    column = [torch.tensor(x).unsqueeze(-1) for x in (log_prob, advantage, factor)]
    mask = None if valid is None else torch.tensor(valid).unsqueeze(-1)
    return AgentBatch({}, {}, {}, *column, valid=mask, first=None)


def learner(world=None, cls=HAPPO, num_envs=6, **settings):
    return learner_of(cls, cls.Config(**SMALL | settings), env_of(world or Everything("discrete"), num_envs))


def weights(algorithm):
    return [p.clone() for p in (*algorithm.policy.actor.parameters(), *algorithm.critic.parameters())]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_loss_multiplies_advantages_with_the_factor_and_clips_only_the_own_ratio():
    # ratios 1.5, 0.5, 1.1, and one that does not count
    log_prob = torch.tensor([1.5, 0.5, 1.1, 9.0]).log().unsqueeze(-1)
    batch = batch_of([0.0, 0.0, 0.0, 0.0], [1.0, -1.0, 2.0, 5.0], [3.0, 2.0, 0.5, 7.0], [True, True, True, False])
    terms = happo_loss(log_prob, torch.tensor([[1.0], [2.0], [3.0], [9.0]]), batch, clip_eps=0.2)
    # -(3 min(1.5, 1.2) + 2 min(-0.5, -0.8) + 0.5 min(2.2, 2.2)) / 3
    assert terms.policy.item() == pytest.approx(-(3.6 - 1.6 + 1.1) / 3, abs=1e-6)
    assert terms.entropy.item() == 2.0
    assert terms.clip_fraction.item() == pytest.approx(2 / 3)
    kl = (0.5 - math.log(1.5) + -0.5 - math.log(0.5) + 0.1 - math.log(1.1)) / 3
    assert terms.kl.item() == pytest.approx(kl, abs=1e-6)


def test_the_gradient_of_a_single_step_is_that_of_actor_critic():
    """HAA2C: -mean M A d log pi."""
    log_prob = torch.tensor([[-0.5], [-1.0]], requires_grad=True)
    batch = batch_of([-0.5, -1.0], [2.0, -3.0], [1.5, 4.0])
    happo_loss(log_prob, torch.zeros(2, 1), batch, clip_eps=0.2).policy.backward()
    assert log_prob.grad.flatten().tolist() == [-1.5, 6.0]


def test_the_factor_is_the_product_of_ratios_and_dead_agents_have_ratio_one():
    factor, valid = torch.tensor([[1.5], [2.0], [3.0]]), torch.tensor([[True], [True], [False]])
    new, old = torch.tensor([[0.5], [0.25], [0.1]]).log(), torch.tensor([[0.25], [0.5], [0.9]]).log()
    torch.testing.assert_close(joint_ratio(factor, new, old, valid), torch.tensor([[3.0], [1.0], [3.0]]))


def test_the_effective_sample_size_of_literal_factors():
    factor, valid = torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False])
    assert effective_samples(factor, valid).item() == 0.8  # 2^2 / 5
    assert effective_samples(torch.full((4,), 0.7), torch.ones(4) > 0).item() == pytest.approx(1.0)


# ------------------------------------------------------------------------------------------------------------- a game


def expected_reward(p, q):
    """Returns the mean reward if the agents take choice 1 with probabilities p and q."""
    return float(torch.tensor([1 - p, p]) @ REWARD @ torch.tensor([1 - q, q]))


def best_response(agent, p, factor_of=None):
    """Returns the probability of choice 1, a multiple of 1/64, that minimizes an agent's loss with a clip range of 0.5.

    All 64 samples of the joint policy with probability p = 3/8 are in the batch, so that means are exact. `factor_of`
    are the ratios of the other agent by its choice.
    """
    counts = {(0, 0): 25, (0, 1): 15, (1, 0): 15, (1, 1): 9}
    joint = torch.tensor([choices for choices, count in counts.items() for _ in range(count)])
    own, other = joint[:, agent], joint[:, 1 - agent]
    advantage = REWARD[joint[:, 0], joint[:, 1]] - expected_reward(p, p)
    old = torch.tensor([1 - p, p]).log()[own]
    factor = torch.ones(64) if factor_of is None else torch.tensor(factor_of)[other]
    batch = AgentBatch({}, {}, {}, old[:, None], advantage[:, None], factor[:, None], valid=None, first=None)
    grid = torch.arange(1, 64) / 64
    losses = [
        happo_loss(torch.stack([1 - x, x]).log()[own][:, None], torch.zeros(64, 1), batch, clip_eps=0.5).policy
        for x in grid
    ]
    return float(grid[torch.stack(losses).argmin()])


def test_simultaneous_updates_lose_a_game_that_sequential_ones_win():
    p = 3 / 8
    assert expected_reward(p, p) == 0.796875
    first = best_response(0, p)
    assert (first, best_response(1, p)) == (0.5625, 0.5625)  # each alone is right to choose 1 more often
    assert expected_reward(first, p) == 0.8203125
    assert expected_reward(first, first) == 0.66796875  # both together are not
    second = best_response(1, p, factor_of=[(1 - first) / (1 - p), first / p])
    assert second == 0.1875
    assert expected_reward(first, second) == 0.97265625


def test_the_joint_improvement_is_the_sum_of_the_surrogates_in_sequence():
    p, first, second = 3 / 8, 0.5625, 0.1875
    old, new_first, new_second = (torch.tensor([1 - x, x]) for x in (p, first, second))
    advantage = REWARD - expected_reward(p, p)
    joint = old[:, None] * old[None]
    factor = joint_ratio(torch.ones(2, 1), new_first.log()[:, None], old.log()[:, None], torch.ones(2, 1) > 0)
    gain_first = (joint * factor * advantage).sum()
    gain_second = (joint * factor * (new_second / old - 1) * advantage).sum()
    assert float(gain_first) == pytest.approx(0.8203125 - 0.796875, abs=1e-6)
    assert float(gain_first + gain_second) == pytest.approx(0.97265625 - 0.796875, abs=1e-6)


def played(cls, seed):
    """Returns the mean reward after one update of agents that choose 1 with probability 3/8, of the exact policy."""

    def reward(x, age, d, c):
        return REWARD[d[:, 0], d[:, 1]].view(-1, 1)

    world = Probe(observe_ones, reward, n=2)
    settings = {"share_params": "none", "critic": "joint", "entropy_coef": 0.0, "lr": 0.02, "clip_eps": 0.5}
    quick = SMALL | settings | {"normalize_obs": False, "epochs": 30, "num_minibatches": 1}
    algorithm, collector = learner_of(cls, cls.Config(**quick), env_of(world, 128), seed=seed)
    head = algorithm.policy.net.networks["agent"].network.head
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.625, 0.375]).log().expand_as(head.bias))
    rollout = collect_rollout(algorithm, collector)
    algorithm.update(rollout, 0.0)
    logits, _ = algorithm.policy.net({"agent": torch.ones(1, 2, 1)}, None, {})
    p, q = logits["agent"][0].softmax(-1)[:, 1].tolist()
    return expected_reward(p, q)


def test_an_update_of_mappo_loses_this_game_and_one_of_happo_wins_it():
    assert max(played(PPO, seed) for seed in range(3)) < 0.75 < 0.796875
    assert min(played(HAPPO, seed) for seed in range(3)) > 0.85


# ------------------------------------------------------------------------------------------------------------ updates


@pytest.mark.parametrize(("rnn", "actions"), [("none", spaces.Discrete(3)), ("gru", spaces.Box(-1.0, 1.0, (2,)))])
def test_with_one_agent_happo_is_ppo_to_the_bit(rnn, actions):
    def reward(x, age, d, c):
        return x.view(-1, 1) * (d if c is None else c[..., 0])

    settings = {"share_params": "none", "critic": "joint", "rnn": rnn}
    settings |= {} if rnn == "none" else {"sequence_length": 4}
    found = []
    for cls in (PPO, HAPPO):
        world = Probe(observe_x, reward, actions=actions, length=3)
        algorithm, collector = learner(world, cls, **settings)
        metrics = [algorithm.update(collect_rollout(algorithm, collector), 0.5) for _ in range(2)]
        found.append((weights(algorithm), metrics))
    assert equal(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert one == {name: value for name, value in other.items() if name != "policy/effective_samples"}


def test_the_factor_stays_one_while_agents_do_not_change():
    algorithm, collector = learner(lr=1e-30, rnn="gru")
    assert algorithm.update(collect_rollout(algorithm, collector), 0.0)["policy/effective_samples"] == 1.0
    algorithm, collector = learner(lr=1e-2)
    assert algorithm.update(collect_rollout(algorithm, collector), 0.0)["policy/effective_samples"] < 1.0


def test_every_agent_sees_the_ratios_of_those_before_it_and_their_order_changes():
    seen = []

    class Recording(HAPPO):
        def _improve(self, agent, batch, hidden_state, candidates, coefficients):
            found = super()._improve(agent, batch, hidden_state, candidates, coefficients)
            inputs = (batch.obs, batch.action_mask, batch.action)
            log_prob = agent.actor.module.evaluate(*inputs, first=None, hidden_state={})[0].detach()
            ratio = (log_prob - batch.log_prob).exp()
            seen.append((agent.index, batch.factor, torch.where(batch.valid, ratio, 1.0)))
            return found

    algorithm, collector = learner(cls=Recording, lr=1e-2)
    orders = set()
    for _ in range(8):
        seen.clear()
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
        orders.add(tuple(index for index, _, _ in seen))
        product = torch.ones_like(seen[0][1])
        for _, factor, ratio in seen:
            torch.testing.assert_close(factor, product, rtol=1e-4, atol=1e-5)
            product = product * ratio
    assert len(orders) > 2
    assert all(sorted(order) == [0, 1, 2] for order in orders)


def test_every_agent_reads_its_own_hidden_states_and_the_starts_of_its_own_lives():
    """The team's actor has the same probabilities, so that ratios are 1. The control has the starts of other lives."""
    for same in (True, False):
        algorithm, collector = learner(Everything("discrete", 0.0), rnn="gru", sequence_length=4, lr=1e-30)
        actor = algorithm.policy.actor
        with torch.no_grad():
            for network in actor.net.networks.values():
                network.network.head.weight *= 100  # so that probabilities depend on hidden states
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
        rollout = collect_rollout(algorithm, collector)  # starts within episodes
        first = rollout.first.clone()
        for agent in range(3):
            first[2 + 2 * agent, :, agent] = True
        obs, masks = algorithm.policy.obs_normalizer.of_rollout(rollout), rollout.action_mask
        inputs = [{name: x[:-1] for name, x in part.items()} for part in (obs, masks)]
        starts = first if same else first.roll(1, -1)
        with torch.no_grad():
            log_prob, _ = actor.evaluate(*inputs, rollout.action, first=starts[:-1], hidden_state=rollout.hidden_state)
        metrics = algorithm.update(replace(rollout, first=first, extras={"log_prob": log_prob}), 0.0)
        assert (abs(metrics["policy/kl"]) < 1e-6) == same


@pytest.mark.parametrize("cls", [HAPPO, HATRPO])
def test_an_agent_that_never_acts_keeps_its_policy(cls):
    algorithm, collector = learner(cls=cls, rollout_length=4)
    before = [p.clone() for p in algorithm.policy.actor.net.networks["guard"].parameters()]
    rollout = collect_rollout(algorithm, collector)
    alive, reward = rollout.alive.clone(), rollout.reward.clone()
    alive[..., 1] = False
    algorithm.update(replace(rollout, alive=alive, reward=reward), 0.0)
    after = algorithm.policy.actor.net.networks["guard"].parameters()
    changed = torch.stack([(p != q).flatten(1).any(1) for p, q in zip(before, after, strict=True)]).any(0)
    assert changed.tolist() == [True, False]


# ----------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share_params": "role"}, "algo.share_params=role: sequential updates need a network for each agent"),
        ({"network": "commnet"}, "algo.network=commnet: agents share its parameters"),
    ],
)
def test_settings_that_contradict_networks_of_their_own_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        learner(**settings)


def test_an_override_without_effect_is_refused():
    class Own(HAPPO):
        def loss_terms(self, log_prob, entropy, value, batch):
            return super().loss_terms(log_prob, entropy, value, batch)

    with pytest.raises(UserError, match="loss_terms: has no effect in a class derived from HAPPO"):
        learner(cls=Own)


def test_advantages_are_normalized_for_each_agent():
    algorithm, _ = learner()
    advantage = torch.tensor([[[1.0, 10.0, 0.0]], [[3.0, 30.0, 0.0]], [[9.0, 50.0, 5.0]]])
    valid = torch.tensor([[[True, True, True]], [[True, True, True]], [[False, True, False]]])
    found = algorithm.normalized(advantage, valid)
    torch.testing.assert_close(found[:2, 0, 0], torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(found[:, 0, 1], torch.tensor([-1.0, 0.0, 1.0]) * math.sqrt(1.5))
