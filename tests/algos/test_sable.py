"""Sable: acting and learning agree, memory of episodes, order of decisions, dead agents, and probes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, env_of, observe_ones
from coterie.algos.sable import Sable, SableConfig
from coterie.core.errors import UserError
from coterie.core.tree import tree_map
from coterie.nets.autoregressive import in_order, order_of
from coterie.nets.sable import CROSS, ENCODER, OWN, STEP, episode_starts, position_code, timesteps_since_start
from coterie.nets.team_view import VIEW
from learners import RAW, collect_rollout, learner_of, run_policy

SMALL = RAW | {"embedding_size": 8, "num_heads": 2, "rollout_length": 12, "decay_scale": 1.0}


def sable_learner(world, num_envs=8, **settings):
    return learner_of(Sable, SableConfig(**SMALL | settings), env_of(world, num_envs))


def shaken(learner):
    """Returns the learner with weights far from those of the start, by which actions hardly differ."""
    with torch.no_grad():
        for parameter in (*learner.actor.parameters(), *learner.critic.parameters()):
            parameter.add_(
                0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    return learner


def second_rollout(learner, collector):
    """Returns a rollout that begins in the middle of episodes."""
    collect_rollout(learner, collector)
    return tree_map(torch.clone, collect_rollout(learner, collector))


def errors(learner, rollout):
    """Largest differences of log-probabilities and values between collection, targets and the first gradient step."""
    learner._critic_state = {name: rollout.hidden_state[name] for name in (ENCODER, STEP) if rollout.hidden_state}
    samples, _ = learner._samples(rollout, 0.0)
    batch = samples.batch
    with torch.no_grad():
        log_prob, _, value = learner._evaluate(batch, samples.hidden_states)
    valid = torch.ones_like(log_prob, dtype=torch.bool) if batch.valid is None else batch.valid
    critic_valid = valid if batch.critic_valid is None else batch.critic_valid
    assert valid.any()
    return (
        (log_prob - batch.log_prob)[valid].abs().max().item(),
        (value - batch.value)[critic_valid].abs().max().item(),
    )


# ---------------------------------------------------------------------------------------------- acting and learning


@pytest.mark.parametrize(
    ("kind", "memory", "order"),
    [
        ("discrete", True, "fixed"),
        ("multi_discrete", False, "random"),
        ("continuous", True, "random"),
        ("hybrid", False, "fixed"),
        ("hybrid", True, "random"),
    ],
)
def test_the_ratio_of_the_first_gradient_step_is_one(kind, memory, order):
    """With roles of different spaces, masks, deaths, and episodes that start in the middle of rollouts. The rest is
    rounding, see the next test."""
    learner, collector = sable_learner(Everything(kind), memory=memory, agent_order=order, num_heads=1)
    log_prob, value = errors(learner, second_rollout(shaken(learner), collector))
    assert log_prob < 3e-5
    assert value < 1e-5


@pytest.mark.parametrize(("memory", "order"), [(True, "random"), (False, "fixed")])
def test_agent_by_agent_the_features_are_those_of_one_pass(memory, order):
    """In double precision, with two blocks, deaths and starts of episodes."""
    learner, collector = sable_learner(Everything(), memory=memory, agent_order=order, num_blocks=2)
    rollout = second_rollout(shaken(learner), collector)
    actor = learner.actor.double()

    def double(tree):
        return tree_map(lambda x: x.double() if x.is_floating_point() else x, tree)

    obs = double(tree_map(lambda x: x[:-1], learner.policy.obs_of_rollout(rollout)))
    order_, state = order_of(obs[VIEW].place), double(rollout.hidden_state)
    with torch.no_grad():
        expected, _, after = actor.decode(obs, double(rollout.action), rollout.first[:-1], state)
        tokens = actor.tokens_before(obs, double(rollout.action), order_)
        for t in range(len(expected)):
            now = tree_map(lambda x, t=t: x[t], obs)
            decoding = actor.start(now, rollout.first[t], state)
            features = [actor.step(decoding, place, tokens[t, :, place]) for place in range(3)]
            state = actor.finish(decoding)
            alive = in_order(now[VIEW].alive, order_of(now[VIEW].place))
            torch.testing.assert_close(torch.stack(features, 1)[alive], expected[t][alive], atol=1e-11, rtol=0)
    assert state.keys() == after.keys()
    for name, value in state.items():
        torch.testing.assert_close(value, after[name], atol=1e-11, rtol=0)


def test_minibatches_have_the_hidden_states_of_their_sequences():
    learner, collector = sable_learner(Everything(), agent_order="random", sequence_length=4, num_minibatches=4)
    rollout = second_rollout(shaken(learner), collector)
    learner._critic_state = {name: rollout.hidden_state[name] for name in (ENCODER, STEP)}
    samples, _ = learner._samples(rollout, 0.0)
    for batch, hidden_states in learner._minibatches(*samples):
        with torch.no_grad():
            log_prob, _, value = learner._evaluate(batch, hidden_states)
        assert batch.log_prob.shape[:2] == (4, 6)
        torch.testing.assert_close(log_prob[batch.valid], batch.log_prob[batch.valid], atol=1e-5, rtol=0)
        torch.testing.assert_close(value[batch.critic_valid], batch.value[batch.critic_valid], atol=1e-5, rtol=0)


def test_the_ratio_is_not_one_with_another_state_another_order_or_without_resets():
    learner, collector = sable_learner(Everything(), agent_order="random")
    rollout = second_rollout(shaken(learner), collector)
    forgotten = replace(rollout, hidden_state=tree_map(torch.zeros_like, rollout.hidden_state))
    places = rollout.extras["place"]
    flipped = replace(rollout, extras=rollout.extras | {"place": places[..., [1, 0, 2]]})
    never = replace(rollout, first=torch.zeros_like(rollout.first))
    for wrong in (forgotten, flipped, never):
        assert errors(learner, wrong)[0] > 1e-3


# ---------------------------------------------------------------------------------------------------------- memory


def features(learner, rollout, change=None):
    """Returns the features of decisions [T, B, N, F] of a rollout, with changed observations and actions."""
    obs = tree_map(lambda x: x[:-1], learner.policy.obs_of_rollout(rollout))
    action = rollout.action
    if change is not None:
        obs, action = change(tree_map(torch.clone, obs), tree_map(torch.clone, action))
    with torch.no_grad():
        return learner.actor.features(obs, action, rollout.first[:-1], rollout.hidden_state)


@pytest.mark.parametrize("memory", [True, False])
def test_agents_remember_their_episode_and_nothing_of_the_one_before_if_they_have_memory(memory):
    learner, collector = sable_learner(Everything(scouts=False), num_envs=16, memory=memory)
    assert bool(learner.policy.initial_hidden_state(3)) == memory
    rollout = second_rollout(shaken(learner), collector)
    starts = episode_starts(rollout.first[:-1], rollout.alive[:-1])
    assert starts[1:].any(0).all()

    def change(obs, action):
        obs["guard"][0] += 1.0
        return obs, action

    differs = (features(learner, rollout) != features(learner, rollout, change)).any(-1).any(-1)  # [T, B]
    started = starts.cumsum(0) - starts[0].long() > 0
    assert differs[0].all()
    assert not differs[started].any()
    assert differs[1:][~started[1:]].float().mean() > 0.9 if memory else not differs[1:].any()


def test_the_hidden_state_has_a_matrix_per_head_block_and_retention():
    learner, _ = sable_learner(Everything(), num_blocks=3, num_heads=4)
    shapes = {name: tuple(x.shape) for name, x in learner.policy.initial_hidden_state(5).items()}
    assert shapes == dict.fromkeys((ENCODER, OWN, CROSS), (5, 3, 4, 2, 2)) | {STEP: (5, 1)}


def test_an_episode_starts_where_all_agents_alive_are_new():
    first = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    alive = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)
    assert episode_starts(first, alive).tolist() == [True, True, False, False]
    assert episode_starts(torch.tensor([[True], [False]]), alive[:2]).tolist() == [True, False]


def test_timesteps_are_counted_from_the_start_of_the_episode():
    starts = torch.tensor([[False, False, True, False], [True, False, False, False]])
    number, following = timesteps_since_start(starts, torch.tensor([[5], [9]]))
    assert number.tolist() == [[5, 6, 0, 1], [0, 1, 2, 3]]
    assert following.tolist() == [[2], [4]]


def test_literal_position_codes():
    code = position_code(torch.tensor([[0, 3]]), 4)
    expected = torch.tensor([[0.0, 1, 0, 1], [0.14112, -0.98999, 0.029996, 0.99955]])
    torch.testing.assert_close(code[0], expected, atol=1e-5, rtol=0)


# -------------------------------------------------------------------------------------------------- order and death


@pytest.mark.parametrize("memory", [True, False])
def test_a_decision_depends_on_earlier_actions_of_the_timestep_only(memory):
    learner, collector = sable_learner(Everything(scouts=False), memory=memory)
    rollout = second_rollout(shaken(learner), collector)
    everyone = rollout.alive[:-1].all(-1)
    t, b = everyone.nonzero()[0].tolist()
    for agent in (0, 1):

        def change(obs, action, agent=agent):
            discrete = action["guard"].discrete
            discrete[t, b, agent] = (discrete[t, b, agent] + 1) % 3
            return obs, action

        differs = (features(learner, rollout) != features(learner, rollout, change)).any(-1)
        assert not differs[:t].any()
        assert differs[t, b].tolist() == [False, agent == 0]


@pytest.mark.parametrize("memory", [True, False])
def test_dead_agents_leave_nothing_in_the_memory_and_to_later_agents(memory):
    learner, collector = sable_learner(Everything(scouts=False), memory=memory, num_envs=32)
    rollout = second_rollout(shaken(learner), collector)
    alive = rollout.alive[:-1]
    assert (~alive).any()

    def change(obs, action):
        dead = ~alive.unsqueeze(-1)
        discrete = torch.where(dead, (action["guard"].discrete + 1) % 3, action["guard"].discrete)
        return obs | {"guard": torch.where(dead, 5.0, obs["guard"])}, {
            "guard": replace(action["guard"], discrete=discrete)
        }

    one, other = features(learner, rollout), features(learner, rollout, change)
    assert torch.equal(one[alive], other[alive])


def test_gradients_of_entropies_and_values_reach_the_encoder():
    learner, collector = sable_learner(Everything(scouts=False))
    samples, _ = learner._samples(second_rollout(shaken(learner), collector), 0.0)
    for found in learner._evaluate(samples.batch, samples.hidden_states)[1:]:
        learner.actor.zero_grad()
        found[samples.batch.valid].sum().backward(retain_graph=True)
        layers = learner.actor.encoder.layers
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layers.parameters())


def test_agents_that_come_later_do_not_start_an_episode():
    """Only the start of all agents resets the memory of the team."""
    learner, collector = sable_learner(Everything(scouts=False))
    rollout = second_rollout(shaken(learner), collector)
    obs = tree_map(lambda x: x[:2, :1], learner.policy.obs_of_rollout(rollout))
    obs[VIEW] = replace(obs[VIEW], alive=torch.tensor([[[True, False]], [[True, True]]]))
    action = tree_map(lambda x: x[:2, :1], rollout.action)
    state = tree_map(lambda x: x[:1], rollout.hidden_state)
    none, late, all_new = (
        learner.actor.features(obs, action, torch.tensor(first), state).detach()
        for first in ([[[False] * 2]] * 2, [[[False] * 2], [[False, True]]], [[[False] * 2], [[True, True]]])
    )
    assert torch.equal(none, late)
    assert not torch.equal(none[1], all_new[1])


# ---------------------------------------------------------------------------------------------------------- probes

QUICK = {"rollout_length": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "value_clip_eps": None, "gamma": 0.9}


def differ(x, age, discrete, continuous):
    """Rewards two agents that choose differently."""
    return (discrete[:, :1] != discrete[:, 1:2]).float()


@pytest.mark.slow
def test_agents_that_observe_the_same_choose_differently():
    """Without ids, agents that decide at once and share their network earn at most 0.5 by sampling."""
    world = Probe(observe_ones, differ, n=2)
    # With larger steps, a policy that always earns 1 is at times lost to the noise of normalized advantages.
    settings = QUICK | {"lr": 2e-3}
    learner, collector = sable_learner(world, num_envs=64, memory=True, obs_agent_id=False, **settings)
    for _ in range(6):
        learner.update(collect_rollout(learner, collector), 0.5)
    _, _, reward = run_policy(learner, world, steps=1)
    assert reward.mean().item() > 0.95
    rollout = collect_rollout(learner, collector)
    assert rollout.reward[rollout.acted[:-1]].mean().item() > 0.9


def remembered(x, age, discrete, continuous):
    """Rewards the choice of a number that was observed at the first of three timesteps, at the last."""
    return torch.where(age == 2, (discrete[:, 0] == x.long()).float(), 0.0).view(-1, 1)


def observe_x_first(x, age):
    return torch.where(age == 0, x, 0.5).view(-1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [True, False])
def test_only_memory_solves_a_task_that_needs_it(memory):
    world = Probe(observe_x_first, remembered, n=1, length=3)
    learner, collector = sable_learner(
        world, num_envs=64, memory=memory, **QUICK | {"gamma": 1.0, "rollout_length": 12, "lr": 3e-3}
    )
    for _ in range(12 if memory else 6):
        learner.update(collect_rollout(learner, collector), 0.5)
    rollouts = [collect_rollout(learner, collector) for _ in range(4)]
    ended = [r.reward[r.episode_terminated].mean().item() for r in rollouts]
    mean = sum(ended) / len(ended)
    assert mean > 0.95 if memory else mean < 0.65


@pytest.mark.slow
def test_continuous_actions_and_truncated_episodes_have_their_exact_values():
    """V = 1 / (1 - gamma) of a reward of 1 in every step of episodes that a limit ends."""

    def reward(x, age, discrete, continuous):
        return 1 - 0 * continuous[:, :1, 0]

    world = Probe(observe_ones, reward, n=2, length=4, limit=True, actions=spaces.Box(-1.0, 1.0, (1,)))
    settings = QUICK | {"value_time_left": False, "bootstrap_at_limit": True, "value_norm_decay": 0.9, "lr": 3e-3}
    learner, collector = sable_learner(world, num_envs=16, memory=True, **settings | {"gamma": 0.5})
    for _ in range(12):
        metrics = learner.update(collect_rollout(learner, collector), 0.5)
    assert metrics["value/estimate"] == pytest.approx(2.0, abs=0.1)


# -------------------------------------------------------------------------------------------------------- settings


def test_heads_divide_the_features():
    with pytest.raises(UserError, match=r"algo\.num_heads=3: does not divide algo\.embedding_size=8"):
        sable_learner(Everything(), num_heads=3)
