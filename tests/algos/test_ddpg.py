"""DDPG, MADDPG, TD3 and MATD3: losses in numbers, invariants, and probes with known solutions and negative controls."""

import copy
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe
from coterie.algos.ddpg import actor_loss, critic_loss
from coterie.nets.action_critics import current_actions_gradient, replayed_actions_gradient
from coterie.nets.joint_actions import JointAction
from learners import ddpg_learner as learner
from learners import run_policy

CPU = torch.device("cpu")
NUMBER = spaces.Box(-1.0, 1.0, (1,))


def update(algorithm, collector):
    """Collects a rollout and returns the metrics of its update."""
    (rollout,) = collector.advance(algorithm.rollout_length)[0].values()
    return algorithm.update(rollout, 0.0)


def batch_of(algorithm, collector):
    """Returns a batch from the replay buffer."""
    if algorithm.buffer.num_sequences == 0:
        (rollout,) = collector.advance(algorithm.rollout_length)[0].values()
        algorithm.buffer.add(rollout)
    return algorithm.make_batch(algorithm.buffer.sample(algorithm.config.batch_size))


def q_taken(algorithm, collector):
    """Returns Q of the actions taken [R, S, N], and the batch."""
    batch = batch_of(algorithm, collector)
    with torch.no_grad():
        return algorithm.q_taken(batch)[0], batch


def show_nothing(x, age):
    return torch.zeros(len(x), 1, 1)


def show_one(x, age):
    return torch.ones(len(x), 1, 1)


def show_x(x, age):
    return x.view(-1, 1, 1)


def pay_one(x, age, discrete, continuous):
    return torch.ones(len(x), 1)


# ------------------------------------------------------------------------------------------------------------- losses


def test_critic_loss_of_literal_numbers():
    """Errors of critic 0: 1, 2; of critic 1: 3, 0; with weights 1 and 0.5: (1 + 2) / 2 + 9 / 2. A masked NaN has no
    effect.
    """
    target = torch.tensor([[[1.0], [2.0], [float("nan")]]])
    q = [torch.tensor([[[2.0], [4.0], [0.0]]]), torch.tensor([[[4.0], [2.0], [0.0]]])]
    valid, weight = torch.tensor([[[True], [True], [False]]]), torch.tensor([1.0, 0.5, 1.0])
    assert critic_loss(q, target, valid, weight).item() == pytest.approx(1.5 + 4.5)
    assert critic_loss(q[:1], target, valid, weight).item() == pytest.approx(1.5)


def test_actor_loss_of_literal_numbers():
    """-(1 * 2 + 3 * 0.5) / 2 valid agents, plus 0.1 times the mean of the available squared logits 4 and 16."""
    gradient, action = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[[2.0, 0.5]]], requires_grad=True)
    settings = {"logits": [torch.tensor([[[[2.0, 4.0, 9.0]]]])], "available": [torch.tensor([[[[True, True, False]]]])]}
    valid = torch.ones(1, 1, 2, dtype=torch.bool)
    loss = actor_loss(gradient, action, valid, logit_penalty=0.1, **settings)
    assert loss.item() == pytest.approx(-3.5 / 2 + 0.1 * 10)
    loss.backward()
    torch.testing.assert_close(action.grad, -gradient / 2)
    assert actor_loss(gradient, action, valid, logit_penalty=0.0, **settings).item() == pytest.approx(-1.75)


# -------------------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize(("other_actions", "share_critic"), [("replay", True), ("current", False)])
def test_an_actors_loss_has_no_gradient_in_other_actors(other_actions, share_critic):
    """The gradient of actor 0's loss in actor 1's weights is 0. In the negative control, the action is not isolated."""
    world = Probe(show_one, pay_one, n=2, actions=spaces.Tuple([spaces.Discrete(3), NUMBER]))
    algorithm, collector = learner(
        world,
        critic="joint",
        share_params="none",
        other_actions=other_actions,
        share_critic=share_critic,
        logit_penalty=0.0,
    )
    batch = batch_of(algorithm, collector)
    batch = replace(batch, valid=batch.valid & torch.tensor([True, False]))
    loss, _ = algorithm.policy_loss(batch)
    weights = list(algorithm.policy.net.parameters())
    for found in torch.autograd.grad(loss, weights):
        assert found[0].abs().sum() > 0
        assert found[1].abs().sum() == 0
    _, actions = algorithm.sample_joint_action(batch)
    features = algorithm.critic_features(algorithm.critics[0], batch, slice(0, 1))
    for found in torch.autograd.grad(algorithm.critics[0].q_values(features, actions)[..., 0, 0].sum(), weights):
        assert found[1].abs().sum() > 0


@pytest.mark.parametrize(("common_reward", "share_critic"), [(False, True), (True, True), (False, False)])
def test_action_gradients_are_those_of_each_agents_own_q(common_reward, share_critic):
    """Compared with one backward pass per agent through the joint action that its critic reads."""
    world = Probe(show_nothing, pay_one, n=3, actions=spaces.Tuple([spaces.Discrete(3), NUMBER]))
    for others in ("replay", "current"):
        algorithm, collector = learner(
            world, critic="joint", other_actions=others, common_reward=common_reward, share_critic=share_critic
        )
        batch = batch_of(algorithm, collector)
        draw = torch.Generator().manual_seed(0)
        done, now = torch.rand(2, 1, 16, 12, generator=draw)
        alive = torch.rand(1, 16, 3, generator=draw) > 0.3
        features = algorithm.critic_features(algorithm.critics[0], batch, slice(0, 1))
        gradient = replayed_actions_gradient if others == "replay" else current_actions_gradient
        joint_action = JointAction(algorithm.team, CPU)
        found, total = gradient(algorithm.critics[0], features, now.clone(), done, alive, joint=joint_action)
        expected, sums = torch.zeros_like(now), 0.0
        for agent in range(3):
            own = slice(4 * agent, 4 * agent + 4)
            joint = (done if others == "replay" else now).clone()
            joint[..., own] = now[..., own]
            joint.requires_grad_()
            q = algorithm.critics[0].q_values(features, joint)[..., agent, 0]
            (gradient_own,) = torch.autograd.grad(torch.where(alive[..., agent], q, 0.0).sum(), joint)
            expected[..., own] = gradient_own[..., own]
            sums += torch.where(alive[..., agent], q, 0.0).sum().item()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
        assert total.item() == pytest.approx(sums, rel=1e-4)


def test_the_actors_loss_has_no_gradient_in_the_critics():
    algorithm, collector = learner(Everything("hybrid"), critic="joint")
    batch = batch_of(algorithm, collector)
    loss, _ = algorithm.policy_loss(batch)
    loss.backward()
    assert all(p.grad is None or not p.grad.any() for p in algorithm.critics.parameters())
    assert any(p.grad is not None and p.grad.any() for p in algorithm.policy.net.parameters())


def constant(critics, values):
    """Makes each critic constant."""
    for critic, value in zip(critics.children(), values, strict=True):
        for p in critic.parameters():
            p.data.zero_()
        for name, p in critic.named_parameters():
            if name.endswith("network.head.bias"):
                p.data.fill_(value)


def targets_of(algorithm, collector, *values):
    constant(algorithm.target_critics.module, values)
    batch = batch_of(algorithm, collector)
    with torch.no_grad():
        return algorithm.targets(batch), batch


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_targets_take_the_minimum_of_twin_critics(critic):
    world = Probe(show_nothing, pay_one, n=2, length=5, limit=True)
    for values, expected in (((3.0, 5.0), 3.7), ((5.0, 3.0), 3.7), ((5.0,), 5.5)):
        algorithm, collector = learner(world, twin_critics=len(values) == 2, gamma=0.9, critic=critic)
        target, batch = targets_of(algorithm, collector, *values)
        assert target.shape == batch.valid.shape == (1, 16, 2)
        torch.testing.assert_close(target, torch.full_like(target, expected))


def test_actors_and_targets_are_updated_every_policy_delay_steps():
    algorithm, collector = learner(Probe(show_x, pay_one, actions=NUMBER), policy_delay=3)
    moved = []
    for _ in range(6):
        parts = (algorithm.policy.net, algorithm.target_policy.module, algorithm.target_critics.module)
        before = [copy.deepcopy(list(part.parameters())) for part in parts]
        metrics = update(algorithm, collector)
        changed = [
            any(not torch.equal(b, p) for b, p in zip(old, part.parameters(), strict=True))
            for old, part in zip(before, parts, strict=True)
        ]
        assert changed in ([True] * 3, [False] * 3)
        assert ("loss/policy" in metrics) == changed[0]
        moved.append(changed[0])
    assert moved == [False, False, True, False, False, True]


def test_hard_updates_are_counted_in_gradient_steps_of_the_critic():
    algorithm, collector = learner(Probe(show_x, pay_one, actions=NUMBER), policy_delay=2, target_update_interval=3)
    equal = []
    for _ in range(6):
        update(algorithm, collector)
        pairs = zip(algorithm.critics.parameters(), algorithm.target_critics.module.parameters(), strict=True)
        equal.append(all(torch.equal(online, own) for online, own in pairs))
    assert equal == [False, False, True, False, False, True]


# ----------------------------------------------------------------------------------------------------------- exploring


@pytest.mark.parametrize("uniform", [True, False])
def test_masked_actions_are_never_taken(uniform):
    mask = torch.tensor([True, False, True, False, True])
    world = Probe(show_nothing, pay_one, n=2, actions=spaces.MultiDiscrete([3, 2]), mask=mask)
    algorithm, _ = learner(world)
    algorithm.policy.uniform = uniform
    for mode in ("greedy", "sample", "explore"):
        done, _, _ = run_policy(algorithm, world, mode)
        assert not (done[..., 0] == 1).any()
        assert (done[..., 1] == 1).all()
    free, _, _ = run_policy(
        algorithm, Probe(show_nothing, pay_one, n=2, actions=spaces.MultiDiscrete([3, 2])), "explore"
    )
    assert (free[..., 0] == 1).any()  # negative control
