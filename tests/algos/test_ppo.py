"""PPO, IPPO and MAPPO: invariants, and probe environments with expected solutions and negative controls."""

import itertools

import pytest
import torch

from algo_worlds import Everything, Probe, observe_x, observe_zeros
from coterie.algos.algorithm import group_membership
from coterie.core.tree import tree_leaves
from coterie.functional.returns import agent_rewards, bootstrap_masks
from learners import collect_rollout, mean_reward, targets_of
from learners import ppo_learner as learner


def train(world, updates, num_envs=64, **settings):
    """Returns a learner after some updates, its collector, and the last metrics."""
    quick = {"rollout_length": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "gamma": 0.9, "value_clip_eps": None}
    algorithm, collector = learner(world, num_envs, **quick | settings)
    metrics = {}
    for _ in range(updates):
        rollout = collect_rollout(algorithm, collector)
        metrics = algorithm.update(rollout, 0.0)
    return algorithm, collector, metrics


def values(algorithm, collector):
    """Returns the values [T, B, N] of a new rollout, and the rollout."""
    rollout = collect_rollout(algorithm, collector)
    with torch.no_grad():
        batch = targets_of(algorithm, rollout).batch
        mean, scale = algorithm.value_scale()
    return batch.value[..., 0] * scale + mean, rollout


# -------------------------------------------------------------------------------------------------------- invariants

CRITICS = ("own", "joint", "state", "joint_state")


@pytest.mark.parametrize(
    ("kind", "rnn", "critic"), list(zip(Everything.KINDS, itertools.cycle(("none", "gru", "lstm")), CRITICS))
)
def test_the_ratio_is_one_in_the_first_epoch(kind, rnn, critic):
    """With all critics. For all action spaces and recurrent layers see test_answers.py."""
    algorithm, collector = learner(
        Everything(kind), rnn=rnn, rnn_size=8, sequence_length=4 if rnn != "none" else None, critic=critic,
        epochs=1, normalize_obs=True,
    )  # fmt: skip
    for _ in range(3):  # the hidden state continues between rollouts
        rollout = collect_rollout(algorithm, collector)
        metrics = algorithm.update(rollout, 0.0)
        assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["policy/clip_fraction"] == 0
        assert all(abs(value) < 1e9 for value in metrics.values())


@pytest.mark.parametrize(("share", "rnn"), [("role", "gru"), ("all", "none"), ("none", "gru")])
def test_the_ratio_is_one_for_all_kinds_of_parameter_sharing(share, rnn):
    world = Everything("multi_discrete", equal_roles=True)
    algorithm, collector = learner(world, share_params=share, rnn=rnn, rnn_size=8, epochs=1, state_dependent_std=True)
    rollout = collect_rollout(algorithm, collector)
    metrics = algorithm.update(rollout, 0.0)
    assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/grad_norm"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("critic", "rnn"), list(zip(CRITICS, itertools.cycle(("none", "gru")))))
def test_observations_and_rewards_of_dead_agents_do_not_change_weights(critic, rnn):
    """NaN and 1e6 result in the same bits, which are finite."""
    weights = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            Everything("hybrid", dead), critic=critic, rnn=rnn, rnn_size=8, epochs=2, normalize_obs=True
        )
        for _ in range(2):
            rollout = collect_rollout(algorithm, collector)
            assert not rollout.alive.all()
            algorithm.update(rollout, 0.0)
        weights.append(tree_leaves({**algorithm.state_dict()["policy"]["module"], **algorithm.critic.state_dict()}))
    for one, other in zip(*weights, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def test_agents_without_shared_parameters_have_separate_gradients():
    algorithm, collector = learner(
        Probe(observation=observe_x, reward=lambda x, age, d, c: d.float(), n=2), share_params="none"
    )
    rollout = collect_rollout(algorithm, collector)
    with torch.no_grad():
        batch = targets_of(algorithm, rollout).batch
    log_prob, _ = algorithm.policy.actor.evaluate(
        {"agent": batch.obs["agent"].flatten(0, 1)},
        {},
        {"agent": type(batch.action["agent"])(batch.action["agent"].discrete.flatten(0, 1))},
        None,
        {},
    )
    algorithm.policy.actor.zero_grad()
    log_prob[..., 0].sum().backward()
    for p in algorithm.policy.actor.parameters():
        assert p.grad is not None
        assert p.grad[0].abs().sum() > 0
        assert p.grad[1].abs().sum() == 0


def test_a_centralized_critic_is_evaluated_once_per_environment():
    algorithm, _ = learner(Everything("discrete", equal_roles=True), critic="joint")
    shapes = []
    algorithm.critic.network.register_forward_pre_hook(lambda module, args: shapes.append(args[0].shape))
    obs = {"guard": torch.zeros(7, 2, 5), "scout": torch.zeros(7, 1, 5)}
    value, _ = algorithm.critic(obs, torch.zeros(7, 1), None, {})
    assert shapes == [(7, 1, 15 + 1)]
    assert value.shape == (7, 3, 1)


def test_epochs_stop_at_the_target_kl():
    world = Probe(observation=observe_x, reward=lambda x, age, d, c: d.float())
    _, _, unlimited = train(world, 1, lr=0.1, epochs=20)
    _, _, stopped = train(world, 1, lr=0.1, epochs=20, target_kl=0.01)
    assert unlimited["policy/epochs"] == 20
    assert stopped["policy/epochs"] < 20


@pytest.mark.slow
def test_values_converge_while_their_normalization_is_learned():
    """Advantages are computed from denormalized values: see test_answers.py."""
    world = Probe(observation=observe_x, reward=lambda x, age, d, c: torch.full((len(x), 1), 50.0))
    algorithm, collector, _ = train(world, 40)
    value, rollout = values(algorithm, collector)
    torch.testing.assert_close(
        value[rollout.acted[:-1]], torch.full_like(value[rollout.acted[:-1]], 50.0), atol=1, rtol=0
    )


def test_agents_receive_group_rewards_once_and_common_rewards_are_the_mean():
    algorithm, collector = learner(Everything(equal_roles=True, dead=0.0))
    rollout = collect_rollout(algorithm, collector)
    membership = group_membership(algorithm.team)
    own = agent_rewards(rollout, membership, True, False)
    torch.testing.assert_close(own, rollout.reward + rollout.group_reward)
    shared = agent_rewards(rollout, membership, True, True)
    torch.testing.assert_close(shared, own.mean(-1, keepdim=True).expand_as(own))


def test_returns_of_centralized_learners_continue_after_an_agents_death():
    """The return of an independent learner ends with its agent, that of a team with the last member."""
    _, collector = learner(Everything(equal_roles=True))
    (rollout,) = collector.advance(40)[0].values()
    independent, _ = bootstrap_masks(rollout, centralized=False, agents_can_die=True)
    centralized, boundary = bootstrap_masks(rollout, centralized=True, agents_can_die=True)
    died_early = rollout.terminated & ~rollout.episode_terminated[..., None] & rollout.alive[1:].any(-1, keepdim=True)
    assert died_early.any()
    assert independent[died_early].all()
    assert not centralized[died_early].any()
    last = rollout.terminated.any(-1) & ~rollout.alive[1:].any(-1)
    assert centralized[last].all()
    assert boundary[~rollout.acted[:-1]].all()


# ------------------------------------------------------------------------------------------------------------ probes


@pytest.mark.slow
@pytest.mark.parametrize(("share", "agent_id"), [("all", True), ("none", False), ("role", False)])
def test_probe_agents_with_equal_observations_are_distinguished(share, agent_id):
    """Agent i should choose i, which shared parameters without ids cannot represent."""
    world = Probe(observe_zeros, lambda x, age, d, c: (d == torch.tensor([0, 1])).float(), n=2)
    algorithm, collector, _ = train(world, 30, share_params=share, obs_agent_id=agent_id)
    found = mean_reward(algorithm, collector)
    assert found > 0.95 if share != "role" else found < 0.7
