"""Global critics: exact answers in games of two teams, masks, targets, and what other teams are left with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, env_of
from coterie.algos.algorithm import AlgorithmContext
from coterie.algos.coma import COMA, COMAConfig
from coterie.algos.ddpg import DDPG, DDPGConfig
from coterie.algos.hasac import HASAC, HASACConfig
from coterie.algos.mappo_original import MAPPOOriginal, MAPPOOriginalConfig
from coterie.algos.other_teams import next_action_policy
from coterie.algos.ppo import PPO, PPOConfig
from coterie.algos.sac import SAC, SACConfig
from coterie.algos.scripted import Random, RandomConfig
from coterie.core.tree import tree_leaves, tree_map
from coterie.training.collector import Collector
from coterie.training.rollout_builder import concatenate_rollouts, rollout_from_dict, rollout_to_dict
from two_teams import CPU, Hidden, TwoSides, against_random

SMALL = {"hidden_sizes": (16,), "critic_hidden_sizes": (16,), "rollout_length": 8, "gamma": 0.9}
REPLAY = SMALL | {"batch_size": 32, "learning_starts": 0, "buffer_size": 2000, "gradient_steps": 4, "lr": 0.01}
LEARNERS = {
    "ppo": (PPO, PPOConfig, SMALL | {"lr": 0.01, "epochs": 4, "normalize_value": False, "value_clip_eps": None}),
    "mappo_original": (MAPPOOriginal, MAPPOOriginalConfig, SMALL | {"lr": 0.01, "normalize_value": False}),
    "coma": (COMA, COMAConfig, SMALL | {"lr": 0.01, "critic_time_chunks": 1}),
    "ddpg": (DDPG, DDPGConfig, REPLAY),
    "ddpg, other actions of now": (DDPG, DDPGConfig, REPLAY | {"other_actions": "current"}),
    "ddpg, one output": (DDPG, DDPGConfig, REPLAY | {"other_actions": "current", "common_reward": True}),
    "sac": (SAC, SACConfig, REPLAY),
    "sac, other actions of now": (SAC, SACConfig, REPLAY | {"other_actions": "current"}),
    "hasac": (HASAC, HASACConfig, REPLAY),
}
VALUES = [name for name in LEARNERS if name in ("ppo", "mappo_original")]
"""Learners whose critics read observations, but no actions."""


def make(name: str, critic: str, world, **settings):
    cls, config, values = LEARNERS[name]
    return against_random(cls, config(critic=critic, **values | settings), world)


def collect(learner, collector):
    rollouts, _ = collector.advance(learner.rollout_length)
    return rollouts[learner.policy.team.name]


def train(learner, collector, updates: int) -> dict[str, float]:
    metrics = {}
    for _ in range(updates):
        metrics = learner.update(collect(learner, collector), 0.0)
    return metrics


@pytest.mark.parametrize("name", ["coma", "ddpg", "sac"])
def test_a_global_critic_learns_what_depends_on_the_other_teams_observation_and_action(name: str):
    """The exact Q is the reward itself, -2, 0 or 2. The team's own observations and actions say nothing about it."""
    found = {}
    for critic in ("global", "joint"):
        learner, collector = make(name, critic, Hidden())
        found[critic] = train(learner, collector, 80 if critic == "global" else 10)["value/td_error_abs"]
    assert found["global"] < 0.15
    assert found["joint"] > 0.7  # the mean of |r| is 1


@pytest.mark.parametrize("name", VALUES)
def test_a_global_value_is_exact_up_to_the_other_teams_choice(name: str):
    """V = 2 x - 1, the mean over the choice that follows; a critic of the own team has one value for both x."""
    learner, collector = make(name, "global", Hidden())
    train(learner, collector, 60)
    rollout = collect(learner, collector)
    ppo = getattr(learner, "ppo", learner)
    with torch.no_grad():
        value = ppo.critic(rollout.obs | learner.others.obs(rollout.others), None, None, {})[0][..., 0]
    x = rollout.others.obs["far"][..., 0]
    torch.testing.assert_close(value, (2 * x - 1).expand_as(value), atol=0.35, rtol=0)
    joint, joint_collector = make(name, "joint", Hidden())
    train(joint, joint_collector, 4)
    with torch.no_grad():
        blind = getattr(joint, "ppo", joint).critic(rollout.obs, None, None, {})[0]
    assert blind.flatten(0, 1).std(0).max() < 1e-5


@pytest.mark.parametrize("name", LEARNERS)
def test_in_a_game_of_one_team_global_is_joint(name: str):
    """The same bits: metrics of two updates, and all weights."""
    cls, config, values = LEARNERS[name]
    world = Everything()
    found = []
    for critic in ("joint", "global"):
        env = env_of(world, 8)
        (team,) = env.spec.default_teams()
        context = AlgorithmContext(team=team, num_envs=8, seed=0, device=CPU)
        learner = cls(config(critic=critic, **values), context)
        collector = Collector(env, {team.name: learner.policy}, seed=0)
        metrics = train(learner, collector, 2)
        state = learner.state_dict()
        assert "other_teams" not in state
        weights = tree_leaves(state["critic"])
        weights += [x for network in learner.policy.networks for x in network.parameters()]
        found.append((metrics, weights))
    assert found[0][0] == found[1][0]
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("name", ["ppo", "mappo_original", "coma", "ddpg", "sac", "hasac"])
def test_updates_are_finite_though_dead_agents_of_other_teams_observe_nan(name: str):
    for normalize_obs in (False, True):
        learner, collector = make(name, "global", TwoSides(), normalize_obs=normalize_obs)
        metrics = train(learner, collector, 2)
        assert all(abs(value) < float("inf") for value in metrics.values())
        assert "other_teams" in learner.state_dict()


def test_a_rollout_has_the_other_teams_in_order_and_zeros_for_their_dead():
    _, collector = make("ppo", "global", TwoSides())
    rollouts, _ = collector.advance(8)
    others, far = rollouts["guard"].others, rollouts["scout"]
    assert far.others is None  # nobody reads the guards
    assert others is not None
    assert others.obs["scout"].shape == (9, 16, 1, 3)
    assert others.action["scout"].discrete.shape == (9, 16, 1, 1)
    assert others.action_mask["scout"].shape == (9, 16, 1, 4)
    assert others.alive.equal(far.alive)
    assert others.obs["scout"].equal(far.obs["scout"])
    assert others.action["scout"].discrete[:-1].equal(far.action["scout"].discrete)
    assert (~others.alive).any()
    assert not others.obs["scout"][~others.alive].any()
    chosen = others.action["scout"].discrete[-1]  # not taken yet, but available
    assert others.action_mask["scout"][-1].gather(-1, chosen).all()


def test_the_actions_that_are_taken_replace_those_chosen_for_the_last_timestep():
    learner, collector = make("ddpg", "global", TwoSides())
    first, second = (collector.advance(8)[0] for _ in range(2))
    both = concatenate_rollouts([first["guard"], second["guard"]])
    taken = torch.cat([rollouts["scout"].action["scout"].discrete for rollouts in (first, second)])
    assert both.others.action["scout"].discrete[:-1].equal(taken)
    guessed = first["guard"].others.action["scout"].discrete[-1]
    assert not guessed.equal(taken[8])  # another draw of the same policy
    learner.buffer.add(first["guard"])
    assert learner.buffer.storage.timesteps["others"]["action"]["scout"]["discrete"][8].equal(guessed.byte())
    learner.buffer.add(second["guard"])
    stored = learner.buffer.storage.timesteps["others"]["action"]["scout"]["discrete"]
    assert stored[:16].equal(taken.byte())
    sample = learner.buffer.sample(64).rollout
    assert sample.others.action["scout"].discrete.dtype == torch.int64
    assert sample.others.obs["scout"].shape == (2, 64, 1, 3)


def test_a_rollout_with_other_teams_survives_a_checkpoint():
    learner, collector = make("ddpg", "global", TwoSides("hybrid"))
    rollout = collect(learner, collector)
    loaded = rollout_from_dict(rollout_to_dict(rollout), CPU)
    assert loaded.others is not None
    for one, other in zip(tree_leaves(rollout.others), tree_leaves(loaded.others), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert "others" not in rollout_to_dict(replace(rollout, others=None))


def test_only_global_critics_make_replay_buffers_larger():
    for critic, stored in (("joint", False), ("global", True)):
        learner, collector = make("ddpg", critic, TwoSides("hybrid"))
        expected = learner.buffer.nbytes
        learner.update(collect(learner, collector), 0.0)
        assert ("others" in learner.buffer.storage.timesteps) is stored
        assert learner.buffer.nbytes == expected


@pytest.mark.parametrize("name", LEARNERS)
def test_numbers_of_dead_agents_of_other_teams_change_nothing(name: str):
    found = []
    for junk in (0.0, 5.0):
        learner, collector = make(name, "global", TwoSides())
        rollout = collect(learner, collector)
        others = rollout.others
        dead = ~others.alive
        action = tree_map(lambda x, d=dead, j=junk: torch.where(d.unsqueeze(-1), int(j) % 4, x), others.action)
        found.append(learner.update(replace(rollout, others=replace(others, action=action)), 0.0))
        assert dead.any()
    assert found[0] == found[1]


def two_ddpg(**settings):
    """Returns both teams' MADDPG on continuous actions, and a collector."""
    world = Hidden(spaces.Box(-1.0, 1.0, (2,)))
    far = replace(world.spec.roles[1], action_space=spaces.Box(-1.0, 1.0, (1,)))
    world.spec = replace(world.spec, roles=(world.spec.roles[0], far))
    env = env_of(world, 4)
    learners = {}
    for team in env.spec.default_teams():
        context = AlgorithmContext(team=team, num_envs=4, seed=3, device=CPU)
        learners[team.name] = DDPG(DDPGConfig(critic="global", **REPLAY | settings), context)
    return learners["near"], learners["far"], env


def others_of(env, learners):
    """Other teams as `near` reads them at two timesteps of four environments."""
    from coterie.core.types import Action, OtherTeams

    obs = torch.rand(2, 4, 1, 1, generator=torch.Generator().manual_seed(0))
    return OtherTeams({"far": obs}, {}, torch.ones(2, 4, 1, dtype=torch.bool), {"far": Action(None, obs * 0 + 0.5)})


@pytest.mark.parametrize(("choice", "net"), [("target", "target_policy"), ("online", "policy")])
def test_next_actions_in_targets_are_those_of_the_other_teams_target_policy(choice: str, net: str):
    """mu'_j(o_j) of Lowe et al. 2017, section 4.1; `next_action_policy=online` takes mu_j(o_j)."""
    near, far, env = two_ddpg(next_action_policy=choice, noise="ornstein_uhlenbeck")
    for x in far.target_policy.module.parameters():
        x.add_(0.3)  # so that both differ
    near.others.connect([far])
    others = others_of(env, (near, far))
    found = near.others.next_actions(others)["far"].continuous
    network = far.target_policy.module if net == "target_policy" else far.policy.net
    expected = torch.tanh(network(others.obs, None, {})[0]["far"])
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert near.others.actions(others)["far"].continuous.eq(0.5).all()  # those taken stay those of the rollout


def test_without_policies_next_actions_are_those_of_the_rollout():
    near, far, env = two_ddpg()
    others = others_of(env, (near, far))
    assert near.others.next_actions(others)["far"].continuous.eq(0.5).all()


def test_policies_without_learning_or_with_a_hidden_state_are_not_evaluated_again():
    near, _, env = two_ddpg()
    recurrent, _, _ = two_ddpg(rnn="gru")
    team = env.spec.default_teams()[1]
    fixed = Random(RandomConfig(), AlgorithmContext(team=team, num_envs=4, seed=0, device=CPU))
    assert next_action_policy(near, target=True) is not None
    assert next_action_policy(recurrent, target=True) is None
    assert next_action_policy(fixed, target=True) is None


@pytest.mark.parametrize("cls", [DDPG, SAC])
def test_an_update_leaves_other_teams_without_gradients_and_changes(cls):
    near, far, env = two_ddpg()
    if cls is SAC:
        context = AlgorithmContext(team=near.team, num_envs=4, seed=3, device=CPU)
        near = SAC(SACConfig(critic="global", **REPLAY), context)
    near.others.connect([far])
    collector = Collector(env, {"near": near.policy, "far": far.policy}, seed=0, readers=["near"])
    networks = (far.policy.net, far.target_policy.module, far.critics)
    weights = [x for network in networks for x in network.parameters()]
    before = [x.detach().clone() for x in weights]
    for _ in range(3):
        metrics = near.update(collector.advance(8)[0]["near"], 0.0)
    assert metrics["loss/critic"] > 0
    for x, old in zip(weights, before, strict=True):
        assert x.equal(old)
        assert x.grad is None or not x.grad.any()


def test_the_gradient_of_an_actor_is_that_of_its_own_actions_only():
    """The entries of other teams in the joint action have no gradient, whichever origin the others' actions have."""
    for origin in ("replay", "current"):
        near, far, env = two_ddpg(other_actions=origin)
        collector = Collector(env, {"near": near.policy, "far": far.policy}, seed=0, readers=["near"])
        near.buffer.add(collector.advance(8)[0]["near"])
        batch = near.make_batch(near.buffer.sample(8))
        _, action = near.sample_joint_action(batch)
        assert action.shape == (1, 8, 5)  # two agents of two numbers, and one of one
        with torch.no_grad():
            features = near.critic_features(near.critics[0], batch, batch.learned)
        taken = near._joint.join(tree_map(lambda x, b=batch: x[b.learned], batch.taken))
        assert action[..., 4].equal(taken[..., 4])
        gradient, _ = near._action_gradient(features, action.detach(), taken, batch.valid)
        assert gradient[..., :4].any()
        assert not gradient[..., 4].any()
