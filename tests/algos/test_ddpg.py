"""DDPG, MADDPG, TD3 and MATD3: losses in numbers, invariants, and probes with known solutions and negative controls."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, env_of
from coterie.algos.ddpg import actor_loss, critic_loss
from coterie.core.errors import NonFiniteError, UserError
from coterie.core.metrics import undeclared
from coterie.core.tree import tree_leaves
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

CRITICS = ("own", "joint", "state", "joint_state")
RNNS = ("none", "gru", "lstm")


@pytest.mark.parametrize(("kind", "rnn", "critic"), list(zip(Everything.KINDS, itertools.cycle(RNNS), CRITICS)))
def test_all_action_spaces_networks_and_critics_learn(kind, rnn, critic):
    """With different roles, masks, deaths, group rewards, twin critics, priorities, n-step targets and burn-in
    together.
    """
    recurrent = {"burn_in": 2, "sequence_length": 5} if rnn != "none" else {}
    algorithm, collector = learner(
        Everything(kind), rnn=rnn, critic=critic, noise="ornstein_uhlenbeck", n_step=2, twin_critics=True,
        priority_alpha=0.5, policy_delay=2, target_noise=0.2, gradient_steps=2, batch_size=8, normalize_obs=True,
        **recurrent,
    )  # fmt: skip
    before = copy.deepcopy(tree_leaves(algorithm.policy.net.state_dict()))
    for _ in range(2):
        metrics = update(algorithm, collector)
    assert not undeclared(metrics)
    assert metrics["replay/updates"] == 4
    assert all(abs(value) < 1e9 for value in metrics.values())
    after = tree_leaves(algorithm.policy.net.state_dict())
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("share", "rnn", "critic"), [("role", "gru", "own"), ("all", "none", "joint"), ("none", "gru", "joint")]
)
def test_all_kinds_of_parameter_sharing_learn(share, rnn, critic):
    world = Everything("hybrid", equal_roles=True)
    algorithm, collector = learner(world, share_params=share, rnn=rnn, critic=critic, other_actions="current")
    metrics = update(algorithm, collector)
    assert metrics["policy/grad_norm"] > 0
    assert metrics["value/grad_norm"] > 0


@pytest.mark.parametrize("other_actions", ["replay", "current"])
@pytest.mark.parametrize("share_critic", [True, False])
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


@pytest.mark.parametrize("interval", [None, 2])
def test_target_networks_have_soft_and_hard_updates(interval):
    """Targets are Polyak averages, or the online network at the last even step."""
    algorithm, collector = learner(
        Probe(show_x, pay_one, actions=NUMBER), tau=0.2, target_update_interval=interval, lr=1e-2
    )
    pairs = [
        (algorithm.policy.net, algorithm.target_policy.module),
        (algorithm.critics, algorithm.target_critics.module),
    ]
    expected = [[p.detach().clone() for p in target.parameters()] for _, target in pairs]
    start = copy.deepcopy(expected)
    for k in range(1, 4):
        update(algorithm, collector)
        for (online, _), held in zip(pairs, expected, strict=True):
            for p, e in zip(online.parameters(), held, strict=True):
                if interval is None:
                    e.lerp_(p.detach(), 0.2)
                elif k == 2:
                    e.copy_(p.detach())
    for (online, target), held, begun in zip(pairs, expected, start, strict=True):
        for p, own, e, b in zip(online.parameters(), target.parameters(), held, begun, strict=True):
            torch.testing.assert_close(own, e)
            assert not own.requires_grad
            if e.abs().sum() > 0 and not torch.equal(e, b):
                assert not torch.equal(own, p)
    moved = [
        not torch.equal(e, b)
        for held, begun in zip(expected, start, strict=True)
        for e, b in zip(held, begun, strict=True)
    ]
    assert any(moved[: len(expected[0])])
    assert any(moved[len(expected[0]) :])


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


@pytest.mark.slow
@pytest.mark.parametrize(("critic", "rnn"), list(zip(CRITICS, itertools.cycle(("none", "gru")))))
def test_observations_of_dead_agents_do_not_change_weights(critic, rnn):
    """NaN and 1e6 there result in equal and finite weights."""
    weights = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            Everything("hybrid", dead), critic=critic, rnn=rnn, normalize_obs=True, noise="ornstein_uhlenbeck"
        )
        for _ in range(2):
            (rollout,) = collector.advance(algorithm.rollout_length)[0].values()
            assert not rollout.alive.all()
            algorithm.update(rollout, 0.0)
        weights.append(tree_leaves([algorithm.policy.net.state_dict(), algorithm.critics.state_dict()]))
    for one, other in zip(*weights, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def test_impossible_settings_are_refused():
    with pytest.raises(UserError, match="share_params=role"):
        learner(Everything(), share_params="all")
    with pytest.raises(UserError, match="needs an environment state"):
        learner(Probe(show_nothing, pay_one), critic="state")


def test_a_non_finite_loss_is_named():
    algorithm, collector = learner(Probe(show_nothing, pay_one))
    next(iter(algorithm.critics.parameters())).data.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"team agent: loss/critic, .*Lower algo.lr"):
        update(algorithm, collector)


# ----------------------------------------------------------------------------------------------------------- exploring


def test_exploration_noise_is_independent_per_timestep_and_agent():
    world = Probe(show_nothing, pay_one, n=3, actions=NUMBER)
    algorithm, _ = learner(world, noise_std=0.3)
    done, _, _ = run_policy(algorithm, world, "explore", steps=4)
    assert done.numel() == len(done.unique())
    greedy, _, _ = run_policy(algorithm, world, "greedy", steps=4)
    assert (greedy == greedy[0]).all()
    sampled, _, _ = run_policy(algorithm, world, "sample", steps=4)
    assert torch.equal(sampled, greedy)
    assert (done - greedy).std().item() == pytest.approx(0.3, abs=0.04)


def test_noisy_actions_stay_within_bounds():
    world = Probe(show_nothing, pay_one, actions=NUMBER)
    algorithm, _ = learner(world, noise_std=2.0)
    done, _, _ = run_policy(algorithm, world, "explore", steps=8)
    assert done.min() == -1
    assert done.max() == 1


def test_ornstein_uhlenbeck_noise_is_part_of_the_hidden_state_and_resets_with_each_agent():
    world = Probe(show_nothing, pay_one, n=2, length=3, actions=NUMBER)
    algorithm, _ = learner(world, noise="ornstein_uhlenbeck", noise_std=0.1, noise_theta=0.25)
    algorithm.policy.net.networks["agent"].network.head.weight.data.zero_()  # mean action 0
    env, policy = env_of(world, 4), algorithm.policy
    timestep, hidden_state, state, lives = env.reset(), policy.initial_hidden_state(4), torch.zeros(4, 2, 1), 0
    for noise in policy.draw_noise(9, 4, torch.Generator().manual_seed(0)):
        with torch.no_grad():
            action, hidden_state, _ = policy.act(timestep, hidden_state, noise, "explore")
            still, same, _ = policy.act(timestep, hidden_state, noise, "greedy")
        state = torch.where(timestep.first.unsqueeze(-1), 0.0, state) * 0.75 + noise["agent"]
        torch.testing.assert_close(action["agent"].continuous, (0.1 * state).clamp(-1, 1))
        assert not still["agent"].continuous.any()
        assert torch.equal(same["ou_noise"], hidden_state["ou_noise"])  # unchanged without exploration
        lives += int(timestep.first.sum())
        timestep = env.step(action)[1]
    assert lives == 3 * 4 * 2  # three steps and a final timestep per episode


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "continuous", "hybrid"])
def test_the_first_actions_are_uniformly_random(kind):
    world = Probe(show_nothing, pay_one, n=2, actions=Everything.KINDS[kind], length=50)
    algorithm, collector = learner(world, num_envs=32, random_steps=32 * 24, learning_starts=10_000, rollout_length=24)
    for net in algorithm.policy.net.networks.values():
        net.network.head.bias.data.fill_(3.0)
        net.network.head.bias.data[0] = -3.0  # a policy far from uniform
    spread = []
    for uniform in (True, False):
        assert algorithm.policy.uniform == uniform
        (rollout,) = collector.advance(24)[0].values()
        action = rollout.action["agent"]
        if action.discrete is not None:
            spread.append((action.discrete[..., 0] == 0).float().mean().item())
        if action.continuous is not None:
            spread.append(action.continuous[..., 0].mean().item())
            if uniform:
                assert action.continuous.std().item() == pytest.approx(3**-0.5, abs=0.03)
        algorithm.update(rollout, 0.0)
    even = ([1 / 3] if kind != "continuous" else []) + ([0.0] if kind in {"continuous", "hybrid"} else [])
    assert spread[: len(even)] == pytest.approx(even, abs=0.05)
    assert all(abs(a - b) > 0.2 for a, b in zip(spread, spread[len(even) :], strict=False))


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


def test_exploration_noise_follows_its_schedule():
    algorithm, collector = learner(
        Probe(show_nothing, pay_one, actions=NUMBER), noise_std=0.4, noise_schedule="linear", noise_end=0.5
    )
    (rollout,) = collector.advance(12)[0].values()
    assert algorithm.update(rollout, 0.5)["policy/noise_std"] == pytest.approx(0.3)
    assert algorithm.policy.noise_std == pytest.approx(0.3)
