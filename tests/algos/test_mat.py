"""MAT and MAT-Dec: ratios of the first minibatch, coordination by order, deaths, execution, refusals."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, observe_age, observe_ones, observe_zeros
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.tree import tree_map
from coterie.envs.worlds.world import Observation, Outcome, World
from coterie.nets.team_view import VIEW
from coterie.policies.autoregressive import PLACE
from learners import collect_rollout, mat_dec_learner, mat_learner, ppo_learner, run_policy, targets_of


def ratios(learner, rollout):
    """Returns pi / pi_old of all valid entries of a rollout before the first gradient step."""
    batch = targets_of(learner, rollout).batch
    with torch.no_grad():
        log_prob, _, _ = learner._evaluate(tree_map(lambda x: x.flatten(0, 1), batch), {})
    return (log_prob.unflatten(0, rollout.reward.shape[:2]) - batch.log_prob).exp()[batch.valid]


def spread_out(learner):
    """Draws the parameters of the policy at random, so that decisions depend on those before."""
    generator = torch.Generator().manual_seed(1)
    for parameter in learner.policy.actor.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)


@pytest.mark.parametrize(("kind", "order"), list(zip(Everything.KINDS, cycle(("fixed", "random")))))
def test_the_ratio_of_the_first_minibatch_is_one(kind, order):
    """With masks, deaths and roles of different spaces; the control takes another order than that of the rollout."""
    learner, collector = mat_learner(Everything(kind), agent_order=order)
    spread_out(learner)
    for _ in range(4):  # an order of two agents that may be the team's
        rollout = collect_rollout(learner, collector)
        assert not rollout.alive.all()
        found = ratios(learner, rollout)
        assert torch.allclose(found, torch.ones(()), atol=1e-4)
    swapped = torch.tensor([1, 0, 2]) if order == "fixed" else rollout.extras[PLACE][..., [1, 0, 2]]
    extras = rollout.extras | {PLACE: swapped.expand(rollout.reward.shape)}
    assert (ratios(learner, replace(rollout, extras=extras)) - 1).abs().max() > 0.01


def test_an_order_is_drawn_for_each_rollout_and_stored():
    world = Probe(observe_zeros, lambda x, age, d, c: x.view(-1, 1), n=4, length=3)
    learner, collector = mat_learner(world, agent_order="random")
    orders = []
    for _ in range(6):
        place = collect_rollout(learner, collector).extras[PLACE]
        assert (place == place[:1, :1]).all()
        assert sorted(place[0, 0].tolist()) == [0, 1, 2, 3]
        orders.append(tuple(place[0, 0].tolist()))
    assert len(set(orders)) > 1
    fixed, collector = mat_learner(world)
    assert PLACE not in collect_rollout(fixed, collector).extras


def test_agents_of_a_role_are_ordered_among_themselves():
    """So that the action space at a place is always the same. With one network for all, every order is possible."""
    noises = {}
    for share in ("role", "all"):
        learner, _ = mat_learner(Everything(equal_roles=True), agent_order="random", share_params=share)
        drawn = [learner.policy.draw_noise(1, 1, torch.Generator().manual_seed(seed))[0] for seed in range(30)]
        noises[share] = {tuple(noise["\0place"][0].tolist()) for noise in drawn}
    assert noises["role"] == {(0, 1, 2), (1, 0, 2)}
    assert len(noises["all"]) == 6


def different(x, age, d, c):
    """Rewards teams whose two agents choose differently."""
    return (d[:, :1] != d[:, 1:]).float()


@pytest.mark.slow
def test_agents_that_observe_the_same_choose_differently():
    """The second agent reads the choice of the first. Agents that act at once with the same network agree half of the
    time at best, whatever they learn (control).
    """
    world = Probe(observe_ones, different, n=2)
    quick = {"rollout_length": 8, "lr": 1e-2, "epochs": 8, "gamma": 0.9, "entropy_coef": 0.0, "obs_agent_id": False}
    rewards = {}
    for build in (mat_learner, mat_dec_learner):
        given = {"agent_order": "random"} if build is mat_learner else {}
        learner, collector = build(world, 64, **quick | given)
        for _ in range(30 if build is mat_learner else 10):
            learner.update(collect_rollout(learner, collector), 0.0)
        rewards[build] = run_policy(learner, world, "sample")[2].mean().item()
    assert rewards[mat_learner] > 0.95
    assert rewards[mat_dec_learner] < 0.7


class EarlyDeath(World):
    """The second of two agents dies after its first step; the group is rewarded with 1 in the third, its last one."""

    reset_noise_size = 1

    def __init__(self):
        role = RoleSpec("agent", "agent", ("a", "b"), spaces.Box(0, 9, (1,)), spaces.Discrete(2))
        self.spec = EnvSpec("early_death", (role,), {}, agents_can_die=True, has_group_reward=True)

    def reset(self, noise):
        return {"age": torch.zeros(len(noise))}

    def step(self, state, action, noise):
        age = state["age"]
        dies = torch.stack([age > 9, age == 0], 1)
        zero = torch.zeros(len(age), 2)
        reward = (age == 2).float().unsqueeze(-1)
        return {"age": age + 1}, Outcome(zero, group_reward=reward, terminated=age == 2, agent_terminated=dies)

    def observe(self, state):
        age = state["age"]
        alive = torch.stack([age >= 0, age == 0], 1)
        return Observation({"agent": age.view(-1, 1, 1) * alive.unsqueeze(-1)}, {}, {}, alive)

    def render(self, state, size):
        return np.zeros((size, size, 3), np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "settings"),
    [(mat_learner, {}), (ppo_learner, {"critic": "joint", "critic_network": "graph", "network": "mlp"})],
)
def test_values_are_those_of_the_team_after_a_death(build, settings):
    """The values of the dead agent, too, are the discounted reward of the group: 0.81, 0.9, 1."""
    learner, collector = build(EarlyDeath(), 32, gamma=0.9, lr=1e-2, epochs=8, value_clip_eps=None, **settings)
    for _ in range(16):
        learner.update(collect_rollout(learner, collector), 0.0)
    rollout = collect_rollout(learner, collector)
    mean, std = learner.value_scale()
    value = learner.critic(learner.policy.obs_of_rollout(rollout), None, None, {})[0][..., 0] * std + mean
    age = rollout.obs["agent"][:, :, 0, 0]
    for expected, at in ((0.81, 0), (0.9, 1), (1.0, 2)):
        found = value[(age == at) & rollout.acted].mean(0)
        assert found.tolist() == pytest.approx([expected] * 2, abs=0.05)


def test_actions_of_mat_dec_depend_on_own_observations_only():
    learner, collector = mat_dec_learner(Everything(dead=0.0), 8)
    rollout = collect_rollout(learner, collector)
    obs = learner.policy.obs_of_rollout(rollout)
    assert VIEW in obs  # for the critic
    state = learner._state(rollout.state)

    def log_prob(obs):
        return learner.policy.actor.evaluate(tree_map(lambda x: x[:-1], obs), {}, rollout.action, None, {})[0]

    other = obs | {"scout": obs["scout"] + 1}
    assert torch.equal(log_prob(obs)[..., :2], log_prob(other)[..., :2])
    values = [learner.critic(x, state, None, {})[0] for x in (obs, other)]
    assert not torch.equal(values[0][..., :2, :], values[1][..., :2, :])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rnn": "gru"}, r"^algo\.rnn=gru: MAT has no recurrent networks\. Omit it, or use algo=mat_dec\.$"),
        ({"share_params": "none"}, r"^algo\.share_params=none: the agents of MAT share encoder and decoder\."),
        ({"num_heads": 3}, r"^algo\.num_heads=3: does not divide algo\.embedding_size=16\. Change one of them\.$"),
        ({"critic_agent_id": True}, r"^algo\.critic_agent_id=true: has no effect"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(settings, message):
    with pytest.raises(UserError, match=message):
        mat_learner(Everything(), **settings)


def test_gradients_of_entropies_and_values_reach_the_encoder():
    learner, collector = mat_learner(Probe(observe_age, lambda x, age, d, c: x.view(-1, 1), n=2, length=3))
    batch = tree_map(lambda x: x.flatten(0, 1), targets_of(learner, collect_rollout(learner, collector)).batch)
    for found in learner._evaluate(batch, {})[1:]:
        learner.actor.zero_grad()
        found.sum().backward(retain_graph=True)
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learner.actor.encoder.parameters())


def test_large_teams_use_products_of_matrices():
    """Ten agents, more than are attended to by sums over pairs."""
    world = Probe(observe_zeros, lambda x, age, d, c: x.view(-1, 1), n=10, length=3, actions=spaces.Discrete(3))
    learner, collector = mat_learner(world, 4, num_heads=2, num_blocks=2)
    spread_out(learner)
    rollout = collect_rollout(learner, collector)
    batch = targets_of(learner, rollout, as_sequences=True).batch
    log_prob = learner._evaluate(tree_map(lambda x: x.flatten(0, 1), batch), {})[0]
    assert torch.allclose(log_prob.detach().unflatten(0, rollout.reward.shape[:2]), batch.log_prob, atol=1e-4)
