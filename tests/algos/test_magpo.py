"""MAGPO: literal numbers of the loss, acting and learning agree, who sees what, coordination that agents can follow."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, env_of, observe_ones, observe_x, zero_reward
from coterie.algos.magpo import MAGPO, Decisions, MAGPOConfig, MAGPOLoss, magpo_loss
from coterie.core.errors import UserError
from coterie.core.tree import tree_map
from coterie.nets.sable import CROSS, ENCODER, OWN, STEP
from coterie.policies.network_policy import CloningOptions, DemonstrationBatch
from coterie.policies.stochastic import StochasticPolicy
from learners import collect_rollout, magpo_learner, run_policy

# ------------------------------------------------------------------------------------------------------------ the loss

LOG2 = math.log(2.0)


def decisions(guider, learner):
    """Decisions of one agent with gradients, with entropies 0.5 and 0.7 and divergences of 3."""
    mu, pi = (torch.tensor(x).unsqueeze(-1).requires_grad_() for x in (guider, learner))
    ones = torch.ones_like(mu)
    return Decisions(mu, pi, 0.5 * ones, 0.7 * ones, 3 * ones + mu - mu.detach(), 3 * ones + pi - pi.detach())


def batch_of(advantage, old, valid=None):
    """A batch of one agent whose values and targets are zero."""
    rows = {name: torch.tensor(x).unsqueeze(-1) for name, x in (("advantage", advantage), ("log_prob", old))}
    zeros = torch.zeros(len(advantage), 1, 1)
    valid = None if valid is None else torch.tensor(valid).unsqueeze(-1)
    return SimpleNamespace(**rows, value=zeros, target=zeros, valid=valid, critic_valid=valid)


def loss_of(found, batch: Any, delta=1.5, clip_eps=0.2):
    value = torch.zeros_like(batch.value).requires_grad_()
    return magpo_loss(found, value, batch, delta=delta, clip_eps=clip_eps, value_clip_eps=None, huber_delta=None)


def test_literal_terms_of_the_loss():
    """Entry by entry: near, too likely with both signs of the advantage, too unlikely.

    rho   = 1.1, 2, 2, 0.5;   mu / pi = 1.1, 2, 2, 0.5;   pi / mu_old = 1
    rho'  = 1.1, 1.5 -> 1.2 clipped, the same, 0.667 -> 0.8 clipped
    """
    found = decisions([math.log(0.55), 0.0, 0.0, -2 * LOG2], [-LOG2] * 4)
    terms = loss_of(found, batch_of([1.0, 1.0, -1.0, 1.0], [-LOG2] * 4))
    assert terms.policy.item() == pytest.approx(-(1.1 + 1.2 - 2.0 + 0.5) / 4)
    assert terms.pulled_back.item() == 0.75
    assert terms.constraint.item() == pytest.approx(3 * 0.75)
    assert terms.divergence.item() == pytest.approx(3.0)
    assert terms.learner.item() == pytest.approx(-(1 + 1 - 1 + 1) / 4)
    assert terms.entropy.item() == pytest.approx(0.5)
    assert terms.learner_entropy.item() == pytest.approx(0.7)
    assert terms.clip_fraction.item() == 0.75
    assert terms.kl.item() == pytest.approx((0.1 - math.log(1.1) + 2 * (1 - LOG2) + LOG2 - 0.5) / 4)


def test_the_ratio_is_clipped_around_the_learner_where_that_is_the_smaller_range():
    """mu / mu_old = 1.15 is within 1 + eps, and mu / pi = 1.265 beyond delta = 1.1: rho' = 1.1 pi / mu_old = 1."""
    found = decisions([math.log(1.15)], [-math.log(1.1)])
    terms = loss_of(found, batch_of([1.0], [0.0]), delta=1.1)
    assert terms.policy.item() == pytest.approx(-1.0)
    terms.policy.backward()
    assert found.guider.grad is not None
    assert found.guider.grad.item() == 0  # no longer rewarded for more


def test_entries_that_are_not_valid_are_in_no_term():
    guider, learner = [-0.6, -0.8], [-0.65, -0.75]
    alone = loss_of(decisions(guider, learner), batch_of([1.0, -2.0], [-0.7, -0.7]))
    more = decisions([*guider, float("inf")], [*learner, float("nan")])
    masked = loss_of(more, batch_of([1.0, -2.0, float("nan")], [-0.7, -0.7, 1e9], [True, True, False]))
    assert [x.item() for x in masked] == [pytest.approx(x.item()) for x in alone]


def test_a_gradient_step_is_one_of_each_loss_at_the_same_parameters():
    """The gradient of the sum is that of the guider's loss and that of the learner's, each of its own networks."""
    learner, collector = magpo_learner(Everything(), 8, num_minibatches=1, delta=1.0001, lr=1e-2)
    learner.update(collect_rollout(learner, collector), 0.0)
    samples, _ = learner._samples(collect_rollout(learner, collector), 0.0)
    ((batch, hidden_state),) = learner._minibatches(*samples)
    networks = learner._trained_modules()

    def gradients(loss, name):
        found = torch.autograd.grad(loss, list(networks[name].parameters()), allow_unused=True, retain_graph=True)
        return [x for x in found if x is not None]

    terms = learner.magpo_terms(*learner._evaluate_both(batch, hidden_state), batch)
    guider = terms.policy + terms.constraint - 0.01 * terms.entropy + terms.value
    assert terms.pulled_back > 0.5
    assert gradients(guider, "learner") == []
    assert gradients(terms.learner + terms.divergence, "policy") == []
    assert gradients(terms.learner + terms.divergence, "value") == []
    assert all(gradients(guider, name) for name in ("policy", "value"))
    assert not terms.learner_entropy.requires_grad


def test_the_two_losses_are_weighted_and_the_entropy_of_the_guider_is_a_bonus():
    """1 + 32 - 0.5 * 2 + 0.25 * 4 + 0.125 * 8 + 16, with the terms policy, constraint, entropy, value, learner and
    divergence.
    """
    learner, collector = magpo_learner(Everything(), 4, value_coef=0.25, learner_coef=0.125)
    samples, _ = learner._samples(collect_rollout(learner, collector), 0.0)
    ((batch, hidden_state),) = learner._minibatches(*samples)
    numbers = {"policy": 1.0, "entropy": 2.0, "value": 4.0, "learner": 8.0, "divergence": 16.0, "constraint": 32.0}
    terms = MAGPOLoss(*(torch.tensor(numbers.get(name, 0.0)) for name in MAGPOLoss._fields))
    learner.magpo_terms = lambda *inputs: terms
    losses = []

    def step(loss, coefficients):
        losses.append(loss.item())
        return torch.zeros(3)

    learner.optimizer.step = step
    learner._step(batch, hidden_state, {"entropy": 0.5})
    assert losses == [50.0]


# ---------------------------------------------------------------------------------------------- acting and learning


def shaken(learner):
    """Returns the learner with weights far from those of the start, by which actions hardly differ."""
    with torch.no_grad():
        for module in learner._trained_modules().values():
            for parameter in module.parameters():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
                parameter.add_(0.3 * noise)
    return learner


def second_rollout(learner, collector):
    """Returns a rollout that begins in the middle of episodes."""
    collect_rollout(learner, collector)
    return tree_map(torch.clone, collect_rollout(learner, collector))


def evaluated(learner, rollout):
    """Returns the batch of a rollout and what guider and learner say of it before the first gradient step."""
    learner._critic_state = {name: rollout.hidden_state[name] for name in learner.start_value_estimation(1)}
    samples, _ = learner._samples(rollout, 0.0)
    with torch.no_grad():
        found, value = learner._evaluate_both(samples.batch, samples.hidden_states)
    return samples.batch, found, value


@pytest.mark.parametrize(
    ("kind", "guider", "rnn", "order"),
    [  # every pair of two of them but kinds
        ("discrete", "mat", "none", "fixed"),
        ("multi_discrete", "sable", "none", "random"),
        ("continuous", "mat", "gru", "random"),
        ("hybrid", "sable", "gru", "fixed"),
    ],
)
def test_the_guiders_ratio_of_the_first_gradient_step_is_one(kind, guider, rnn, order):
    """With roles of different spaces, masks, deaths, and episodes that start in the middle of rollouts."""
    learner, collector = magpo_learner(Everything(kind), 8, guider=guider, rnn=rnn, agent_order=order, embedding_size=8)
    batch, found, value = evaluated(learner, second_rollout(shaken(learner), collector))
    assert (found.guider - batch.log_prob)[batch.valid].abs().max() < 3e-5
    assert (value - batch.value)[batch.critic_valid].abs().max() < 1e-5
    assert all(x[batch.valid].isfinite().all() for x in found)
    assert (found.learner - found.guider)[batch.valid].abs().max() > 0.1


@pytest.mark.parametrize("guider", ["mat", "sable"])
def test_divergences_are_of_the_learner_from_the_guider_over_available_choices(guider):
    """sum_a mu(a) log(mu(a) / pi(a)) of probabilities that the policies state when they act. That of the guider from
    the learner is another number (control).
    """
    world = Probe(observe_x, zero_reward, actions=spaces.Discrete(3), mask=torch.tensor([True, False, True]))
    learner, collector = magpo_learner(world, 8, guider=guider)
    shaken(learner)
    timestep = collector.env.reset()
    mu, pi = (
        policy.action_distribution(timestep, {}, "sample")["agent"].probability[..., [0, 2]].double()
        for policy in (learner.guider, learner.policy)
    )
    expected, other = ((p * (p / q).log()).sum(-1) for p, q in ((mu, pi), (pi, mu)))
    batch, found, _ = evaluated(learner, collect_rollout(learner, collector))
    for x in (0.0, 1.0):
        env = (timestep.obs["agent"][:, 0, 0] == x).nonzero()[0]
        assert (expected - other)[env].abs() > 1e-3
        for kl in (found.guider_kl, found.learner_kl):
            same = kl[batch.obs["agent"][..., 0] == x].double()
            torch.testing.assert_close(same, expected[env, 0].expand_as(same), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("guider", "sequence_length"), [("mat", None), ("sable", 4)])
def test_a_recurrent_learner_says_in_updates_what_it_would_say_along_the_guiders_trajectory(guider, sequence_length):
    """Timestep by timestep, acting gives the distributions that one pass over the rollout gives, also of sequences that
    start in the middle of it. Without the hidden state of its start they differ (control)."""
    learner, collector = magpo_learner(Everything(), 8, guider=guider, rnn="gru", sequence_length=sequence_length)
    rollout = second_rollout(shaken(learner), collector)
    policy, state = learner.policy, {name: rollout.hidden_state[name] for name in ("h",)}
    said = []
    with torch.no_grad():
        for t in range(rollout.rollout_length):
            obs = policy.obs_normalizer(tree_map(lambda x, t=t: x[t], rollout.obs), rollout.alive[t])
            parts = [
                {role: tree_map(lambda x, t=t: x[t], tree) for role, tree in of.items()}
                for of in (rollout.action_mask, rollout.action)
            ]
            said.append(policy.actor.evaluate(obs, *parts, first=rollout.first[t], hidden_state=state)[0])
            _, state = policy.net(obs, rollout.first[t], state)
    expected, valid = torch.stack(said), rollout.alive[:-1] & rollout.acted[:-1].unsqueeze(-1)
    length = sequence_length or rollout.rollout_length

    def largest_error(rollout):
        _, found, _ = evaluated(learner, rollout)
        by_time = found.learner.unflatten(1, (-1, 8)).transpose(0, 1).flatten(0, 1)
        assert len(by_time) == len(expected) == length * (len(expected) // length)
        return (by_time - expected)[valid].abs().max().item()

    assert largest_error(rollout) < 1e-5
    forgotten = rollout.hidden_state | {"h": torch.zeros_like(rollout.hidden_state["h"])}
    assert largest_error(replace(rollout, hidden_state=forgotten)) > 1e-3


def test_hidden_states_are_of_both_policies_and_evaluation_has_the_learners():
    learner, _ = magpo_learner(Everything(), 8, rnn="lstm", rnn_size=4)
    assert set(learner.behavior_policy.initial_hidden_state(2)) == {ENCODER, OWN, CROSS, STEP, "h", "c"}
    assert {name: x.shape for name, x in learner.policy.initial_hidden_state(2).items()} == dict.fromkeys(
        ("h", "c"), (2, 3, 4)
    )
    plain, _ = magpo_learner(Everything(), 8)
    assert plain.behavior_policy.initial_hidden_state(2) == {}


# ------------------------------------------------------------------------------------------------------- who sees what


def test_the_guider_sees_the_team_and_the_learner_its_own_observation():
    learner, collector = magpo_learner(Everything(dead=0.0), 8)
    shaken(learner)
    timestep = collector.env.reset()
    obs = tree_map(torch.clone, timestep.obs)
    obs["guard"][:, 0] += 2.0
    changed = replace(timestep, obs=obs)
    behavior, policy = learner.behavior_policy, learner.policy
    assert isinstance(policy, StochasticPolicy)
    assert not policy.communicates
    assert not learner.capabilities.centralized_execution
    assert behavior.communicates

    def differs(distribution):
        one, other = distribution(timestep), distribution(changed)
        return {
            role: (one[role].probability != other[role].probability).any(-1).any(0).tolist()
            for role in ("guard", "scout")
        }

    with torch.no_grad():
        assert differs(lambda x: policy.action_distribution(x, {}, "sample")) == {
            "guard": [True, False],
            "scout": [False],
        }
        assert differs(lambda x: behavior.guider.action_distribution(x, {}, "sample")) == {
            "guard": [True, True],
            "scout": [True],
        }


def test_values_need_the_guiders_encoder_which_comes_with_the_critic():
    learner, collector = magpo_learner(Everything(), 8, value_time_left=False)
    learner.update(collect_rollout(learner, collector), 0.5)
    timestep = collector.env.reset()
    other, _ = magpo_learner(Everything(), 8, seed=1, value_time_left=False)
    state = learner.state_dict()
    other.policy.load_state_dict(state["policy"])
    other.load_critic(state)
    with torch.no_grad():
        found, expected = (x.estimate_value(timestep, x.start_value_estimation(8))[0] for x in (other, learner))
    assert torch.equal(found, expected)


def test_cloning_trains_both_policies():
    """Otherwise the learner would follow a guider that knows nothing of the demonstrations."""
    learner, collector = magpo_learner(Everything(dead=0.0, scouts=False), 8)
    rollout = collect_rollout(learner, collector)
    valid = rollout.alive[:-1] & rollout.acted[:-1].unsqueeze(-1)
    demonstrated = {
        "guard": replace(rollout.action["guard"], discrete=torch.full_like(rollout.action["guard"].discrete, 2))
    }
    obs, mask = (
        {name: x[:-1].flatten(0, 1).unsqueeze(0) for name, x in of.items()} for of in (rollout.obs, rollout.action_mask)
    )
    batch = DemonstrationBatch(
        obs=obs,
        action_mask=mask,
        action=tree_map(lambda x: x.flatten(0, 1).unsqueeze(0), demonstrated),
        last_action={},
        valid=valid.flatten(0, 1).unsqueeze(0),
        first=rollout.first[:-1].flatten(0, 1).unsqueeze(0),
    )
    optimizer, options = learner.cloning_optimizer(), CloningOptions()
    for _ in range(40):
        losses, _ = learner.cloning_loss(batch, options)
        optimizer.step(losses[batch.valid].mean(), 1e-2)
    with torch.no_grad():
        both = [policy.cloning_loss(batch, options) for policy in (learner.policy, learner.guider)]
    assert all(matches[batch.valid].float().mean() > 0.99 for _, matches in both)
    assert all(loss[batch.valid].mean() < 0.1 for loss, _ in both)


# ---------------------------------------------------------------------------------------------------------- probes

QUICK = {"rollout_length": 8, "epochs": 8, "lr": 3e-3, "gamma": 0.9, "entropy_coef": 0.15}
FREE = {"delta": 1e5, "learner_coef": 0.0}
"""Imitation of a guider that is not held back."""


def different(x, age, discrete, continuous):
    """Rewards two agents that choose differently."""
    return (discrete[:, :1] != discrete[:, 1:2]).float()


def earned(updates, **settings):
    """Returns the mean rewards of guider and learner, whose two agents observe the same and are to choose differently,
    over the last two rollouts."""
    world = Probe(observe_ones, different, n=2)
    learner, collector = magpo_learner(world, 64, **QUICK | settings)
    guider, alone = 0.0, 0.0
    for update in range(updates):
        rollout = collect_rollout(learner, collector)
        learner.update(rollout, 0.0)
        if update >= updates - 2:
            guider += rollout.reward[rollout.acted[:-1]].mean().item() / 2
            alone += run_policy(learner, world, "sample")[2].mean().item() / 2
    return guider, alone


@pytest.mark.slow
def test_a_guider_that_is_held_back_coordinates_so_that_agents_can_follow():
    """There are two ways to choose differently, and agents with ids can take one of them. A guider with an entropy
    bonus prefers to mix them, and the agents that imitate a mixture choose by coin. The constraint makes it take one:
    where the second agent cannot follow the first, the first has to be foreseeable."""
    guider, alone = earned(16, guider="mat", learner_coef=1.0)
    assert guider > 0.95
    assert alone > 0.95


@pytest.mark.slow
def test_agents_that_imitate_a_free_guider_do_not_coordinate():
    """The control of the test before."""
    guider, alone = earned(12, **FREE)
    assert guider > 0.95
    assert alone < 0.9


@pytest.mark.slow
def test_a_guider_is_held_within_delta_of_agents_that_cannot_follow():
    """Without ids, both agents are the same policy, and choose by coin at best. The probability of the second agent to
    choose differently, given the choice of the first, is then at most delta / 2 = 0.75 but for sampling. A free guider
    earns 1, which its agents cannot."""
    guider, alone = earned(12, obs_agent_id=False)
    assert 0.6 < guider < 0.8
    assert 0.4 < alone < 0.6
    guider, alone = earned(12, obs_agent_id=False, **FREE)
    assert guider > 0.95
    assert 0.4 < alone < 0.6


def remembered(x, age, discrete, continuous):
    """Rewards the choice of a number that was observed at the first of three timesteps, at the last."""
    return torch.where(age == 2, (discrete[:, 0] == x.long()).float(), 0.0).view(-1, 1)


def observe_x_first(x, age):
    return torch.where(age == 0, x, 0.5).view(-1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("guider", "rnn"), [(None, "gru"), ("mat", "gru")])
def test_only_a_recurrent_learner_whose_guider_remembers_solves_a_task_that_needs_memory(guider, rnn):
    world = Probe(observe_x_first, remembered, n=1, length=3)
    settings = QUICK | {"gamma": 1.0, "rollout_length": 12, "entropy_coef": 0.0, "lr": 1e-2}
    learner, collector = magpo_learner(world, 64, guider=guider, rnn=rnn, **settings)
    for _ in range(16 if guider is None else 6):
        learner.update(collect_rollout(learner, collector), 0.5)
    rewards = run_policy(learner, world, "sample", steps=40)[2]
    mean = 3 * rewards.mean().item()  # one reward in three steps
    assert mean > 0.95 if (guider, rnn) == (None, "gru") else mean < 0.7


# -------------------------------------------------------------------------------------------------------- settings


def test_a_recurrent_learner_has_a_guider_with_a_memory_by_default():
    for guider, rnn in product((None, "mat", "sable"), ("none", "gru")):
        learner, _ = magpo_learner(Everything(), 4, guider=guider, rnn=rnn)
        assert bool(learner.guider.initial_hidden_state(1)) == (guider != "mat" and rnn == "gru")


def test_a_guider_begins_with_agents_that_hardly_read_each_other():
    """The initial output layers of retentions are small, as those of attention are."""
    for guider in ("mat", "sable"):
        learner, collector = magpo_learner(Everything(dead=0.0), 8, guider=guider, value_time_left=False)
        timestep = collector.env.reset()
        obs = learner.policy.obs_normalizer(timestep.obs, timestep.alive)
        changed = obs | {"guard": obs["guard"] + torch.tensor([[5.0], [0.0]])}
        with torch.no_grad():
            one, other = (learner.critic(x, None, None, {})[0] for x in (obs, changed))
        relative = (one - other).abs().mean(0).squeeze(-1)
        assert relative[0] > 20 * relative[1:].max()


@pytest.mark.parametrize("share", ["role", "none"])
def test_the_learner_reads_ids_where_its_agents_share_parameters(share):
    learner, _ = magpo_learner(Everything(), 4, share_params=share)
    assert (learner.policy.net.networks["guard"].ids is not None) == (share == "role")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 3}, r"algo\.num_heads=3: does not divide algo\.embedding_size=16"),
        ({"network": "commnet"}, r"algo\.network=commnet: the agents of the learner act by their own observations\."),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        magpo_learner(Everything(), 4, **settings)


def test_a_subclass_with_the_loss_of_ppo_is_told_which_to_override():
    class Own(MAGPO):
        def loss_terms(self, log_prob, entropy, value, batch):
            raise AssertionError

    env = env_of(Everything(), 4)
    with pytest.raises(UserError, match=r"Own\.loss_terms: has no effect .* Override magpo_terms\."):
        Own(MAGPOConfig(), SimpleNamespace(team=env.spec.default_teams()[0]))
