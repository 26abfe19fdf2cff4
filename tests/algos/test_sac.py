"""SAC and MASAC: losses in numbers, invariants, and probes with known solutions and negative controls."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe
from coterie.algos.sac import actor_loss, critic_loss, expected_q, temperature_loss
from coterie.core.tree import tree_map
from learners import collect_rollout
from learners import sac_learner as learner

BOX = spaces.Box(-1.0, 1.0, (1,))


def train(world, updates, num_envs=16, rounds=4, **settings):
    """Returns a learner after some gradient steps, its collector, and the last metrics."""
    quick = {
        "rollout_length": 8,
        "lr": 1e-2,
        "tau": 0.05,
        "gamma": 0.9,
        "gradient_steps": updates // rounds,
        "batch_size": 64,
        "activation": "tanh",
    }
    algorithm, collector = learner(world, num_envs, **quick | settings)
    metrics = {}
    for _ in range(rounds):
        metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    return algorithm, collector, metrics


STEADY = {"lr": 3e-3, "critic_lr": 1e-2, "rounds": 16, "hidden_sizes": (32, 32), "activation": "relu"}
"""For continuous actions: a nonlinear critic that learns faster than the actor."""


def sample_actions(algorithm, rollout):
    """Returns the policy at all timesteps, without gradient."""
    with torch.no_grad():
        return algorithm.sample_actions(rollout)


def mean_entropy(algorithm, rollout):
    """Returns the mean over many samples, because the entropy of continuous actions is an estimate."""
    return sum(sample_actions(algorithm, rollout).entropy.mean().item() for _ in range(30)) / 30


def q_of(algorithm, rollout):
    """Returns the smaller Q of each choice [T, B, N, A]."""
    with torch.no_grad():
        return algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), rollout.action, None).amin(0)


def both_q_taken(algorithm, rollout):
    """Returns Q of the actions taken by both critics [2, T, B, N], with gradients."""
    critics = algorithm.nets.critics
    q = algorithm.evaluate(critics, rollout, slice(0, -1), rollout.action, None)
    return expected_q(critics.taken(rollout.action), q)


def show_x(x, age):
    return x.view(-1, 1, 1)


def show_nothing(x, age):
    return torch.ones(len(x), 1, 1)


def pay_one(x, age, discrete, continuous):
    return torch.ones(len(x), 1)


# ------------------------------------------------------------------------------------------------------------- losses


def test_critic_loss_of_literal_numbers():
    """Errors 1 and 3 of both critics at the first entry, 2 and 0 at the second, whose weight is 0.5."""
    q = torch.tensor([[[[2.0], [4.0]]], [[[4.0], [2.0]]]])
    target, valid = torch.tensor([[[1.0], [2.0]]]), torch.ones(1, 2, 1, dtype=torch.bool)
    weight = torch.tensor([1.0, 0.5])
    assert critic_loss(q, target, valid, weight).item() == pytest.approx((0.5 * (1 + 9) + 0.5 * 0.5 * 4) / 2)


def test_actor_and_temperature_losses_of_literal_numbers():
    """E[Q] = 0.25 * 2 + 0.75 * 4 = 3.5, entropy 0.5, temperature 0.2; the target entropy is 0.8."""
    q, prob = torch.tensor([[[[2.0, 4.0]]]]), torch.tensor([[[[0.25, 0.75]]]])
    entropy, valid = torch.full((1, 1, 1), 0.5), torch.ones(1, 1, 1, dtype=torch.bool)
    assert actor_loss(q, prob, entropy, torch.tensor([0.2]), valid).item() == pytest.approx(-(3.5 + 0.2 * 0.5))
    loss = temperature_loss(torch.tensor([0.2]).log(), entropy, torch.full((1, 1, 1), 0.8), valid)
    assert loss.item() == pytest.approx(math.log(0.2) * (0.5 - 0.8))


# -------------------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize(("critic", "shared"), [("own", False), ("joint", False), ("joint", True)])
def test_an_actors_loss_has_no_gradient_in_other_actors(critic, shared):
    """Only an agent's own action carries a gradient in a centralized critic. Shared parameters are the negative
    control.
    """
    world = Probe(show_x, lambda x, age, d, c: c.sum(-1), n=2, actions=BOX)
    algorithm, collector = learner(world, share_params="role" if shared else "none", critic=critic)
    rollout = collect_rollout(algorithm, collector)
    draw = algorithm.sample_actions(rollout)
    fresh = tree_map(lambda x: x[:-1], draw.action)
    q = algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), rollout.action, fresh).amin(0)[..., 0]
    algorithm.policy.net.zero_grad()
    (draw.entropy[:-1] - q)[..., 0].sum().backward()
    reached = [p.grad[1].abs().sum() for p in algorithm.policy.net.parameters() if not shared]
    assert all(float(x) == 0 for x in reached)
    drawn = draw.action["agent"].continuous
    by_action = torch.autograd.grad(
        algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), rollout.action, fresh)[0, :, :, 0].sum(),
        drawn,
    )[0]
    assert by_action[:-1, :, 0].abs().sum() > 0
    assert by_action[:, :, 1].abs().sum() == 0
    if critic == "joint":  # negative control: with a gradient in all actions
        wrong = tree_map(lambda x: x[:-1], algorithm.sample_actions(rollout).action)
        numbers = wrong["agent"].continuous
        q = algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), wrong, None)[0, :, :, 0].sum()
        assert torch.autograd.grad(q, numbers)[0][:, :, 1].abs().sum() > 0


@pytest.mark.parametrize("other_actions", ["replay", "current"])
def test_other_agents_actions_in_an_actors_loss_are_replayed_or_current(other_actions):
    """The loss depends on the stored actions in one case only. No gradient reaches other agents' actions in either."""
    world = Probe(show_x, pay_one, n=2, actions=spaces.Tuple([spaces.Discrete(3), BOX]))
    algorithm, collector = learner(
        world, critic="joint", other_actions=other_actions, share_params="none", temperature=1e-6
    )
    rollout = collect_rollout(algorithm, collector)
    draw = algorithm.sample_actions(rollout)
    alpha = torch.full((2,), 1e-6)
    before = algorithm.actor_losses(rollout, draw, alpha)[0]
    changed = tree_map(lambda x: torch.zeros_like(x), rollout.action)
    after = algorithm.actor_losses(replace(rollout, action=changed), draw, alpha)[0]
    assert (before == after) == (other_actions == "current")
    evaluated = []
    algorithm.nets.critics.register_forward_pre_hook(lambda module, args: evaluated.append(args[2]))
    algorithm.actor_losses(rollout, draw, alpha)
    assert not evaluated[0]["agent"].continuous.requires_grad


def test_the_actors_loss_does_not_change_the_critics():
    algorithm, collector = learner(Probe(show_x, pay_one, actions=BOX), lr=1e-2, critic_lr=1e-12)
    rollout = collect_rollout(algorithm, collector)
    before = [
        tree_map(torch.clone, x) for x in (algorithm.nets.critics.state_dict(), algorithm.policy.net.state_dict())
    ]
    algorithm.update(rollout, 0.0)
    after = [algorithm.nets.critics.state_dict(), algorithm.policy.net.state_dict()]
    assert max((a - b).abs().max() for a, b in zip(before[0].values(), after[0].values(), strict=True)) < 1e-9
    assert max((a - b).abs().max() for a, b in zip(before[1].values(), after[1].values(), strict=True)) > 1e-3
    assert all(p.requires_grad for p in algorithm.nets.critics.parameters())


def constant_critic(critic, value):
    """Makes a critic constant."""
    for p in critic.parameters():
        p.data.zero_()
    for head in critic.heads.values():
        head.head.bias.data.fill_(value)


@pytest.mark.parametrize("limit", [True, False])
def test_n_step_targets_include_the_entropies_of_later_steps(limit):
    """Summed by hand, with reward 1 and Q 2. Truncation bootstraps, termination does not."""
    world = Probe(show_x, pay_one, length=4, limit=limit)
    algorithm, collector = learner(world, n_step=3, gamma=0.9, rollout_length=10)
    constant_critic(algorithm.nets.target.module.first_critic, 2.0)
    constant_critic(algorithm.nets.target.module.second_critic, 2.0)
    rollout = collect_rollout(algorithm, collector)
    draw = sample_actions(algorithm, rollout)
    target = algorithm.targets(rollout, draw, torch.tensor(0.5))[:, 0, 0]
    bonus = 0.5 * draw.entropy[:, 0, 0]
    for t in (0, 1, 2, 3, 5, 6, 7):  # timestep 4 is a final one
        last = min(t + 2, 3 if t < 4 else 8)  # last step of the sum
        ended = last in (3, 8) and not limit
        wanted = sum(0.9 ** (k - t) for k in range(t, last + 1))
        wanted += sum(0.9 ** (k - t) * bonus[k] for k in range(t + 1, last + 1))
        wanted += 0.0 if ended else 0.9 ** (last + 1 - t) * (2 + bonus[last + 1])
        assert target[t].item() == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize(("burn_in", "critic"), [(0, "own"), (4, "own"), (4, "joint")])
def test_no_gradient_flows_through_the_burn_in(burn_in, critic):
    """Neither in the critics nor in the policy, though both remember it. The control has no burn-in."""
    world = Probe(show_x, pay_one, n=2, actions=spaces.Tuple([spaces.Discrete(2), BOX]), length=50)
    algorithm, collector = learner(world, rnn="gru", burn_in=burn_in, critic=critic, rollout_length=10)
    rollout = replace(collect_rollout(algorithm, collector), hidden_state={})
    obs = rollout.obs["agent"].clone().requires_grad_()

    def outputs(obs):
        seen = replace(rollout, obs={"agent": obs})
        return both_q_taken(algorithm, seen), algorithm.sample_actions(seen).entropy[:-1]

    for output in outputs(obs):
        (gradient,) = torch.autograd.grad(output[..., 4:, :, :].sum(), obs, retain_graph=True)
        before, later = gradient[:4].abs().amax((1, 2, 3)), gradient[4:-1].abs().amax((1, 2, 3))
        assert (before == 0).all() if burn_in else (before > 0).all()
        assert (later > 0).all()
    state = algorithm.generator.get_state()
    with torch.no_grad():
        other = obs.detach().clone()
        other[:4] += 0.5
        found = []
        for x in (obs, other):
            algorithm.generator.set_state(state)
            found.append([output[..., 4, :, :] for output in outputs(x)])
    assert all((a != b).any() for a, b in zip(*found, strict=True))


def test_the_hidden_state_of_a_critic_does_not_depend_on_actions():
    """Another action at one timestep leaves Q of later timesteps equal. Another observation does not."""
    algorithm, collector = learner(Everything("continuous", dead=0.0), rnn="gru", critic="joint")
    rollout = collect_rollout(algorithm, collector)
    q = q_of(algorithm, rollout)
    action = copy.deepcopy(rollout.action)
    action["guard"].continuous[2] += 0.5
    with torch.no_grad():
        other = algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), action, None).amin(0)
    assert torch.equal(q[:2], other[:2])
    assert (q[2] != other[2]).any()
    assert torch.equal(q[3:], other[3:])
    obs = {**rollout.obs, "guard": rollout.obs["guard"].clone()}
    obs["guard"][2] += 0.5
    seen = q_of(algorithm, type(rollout)(**{**vars(rollout), "obs": obs}))
    assert (seen[3] != q[3]).any()


def test_a_centralized_critic_reads_the_actions_of_others_and_not_the_agents_own():
    algorithm, collector = learner(Everything("multi_discrete", dead=0.0), critic="joint")
    rollout = collect_rollout(algorithm, collector)
    q = q_of(algorithm, rollout)
    action = copy.deepcopy(rollout.action)
    action["guard"].discrete[..., 0, 0] = (action["guard"].discrete[..., 0, 0] + 1) % 3
    with torch.no_grad():
        other = algorithm.evaluate(algorithm.nets.critics, rollout, slice(0, -1), action, None).amin(0)
    assert torch.equal(q[..., 0, :], other[..., 0, :])
    moved = (q[..., 1:, :] != other[..., 1:, :]).any(-1)
    lives = rollout.alive[:-1, :, :1]
    assert torch.equal(moved, lives.expand_as(moved))  # actions of dead agents are not read
    assert not lives.all()


# -------------------------------------------------------------------------------------------------------- exact ends


@pytest.mark.slow
def test_probe_the_policy_of_one_state_converges_to_the_softmax_of_q():
    """pi = softmax(Q / alpha) and V = alpha logsumexp(Q / alpha), with rewards 0, 1, -1 and a fixed temperature."""
    alpha, pay = 0.5, torch.tensor([0.0, 1.0, -1.0])
    world = Probe(show_nothing, lambda x, age, d, c: pay[d], actions=spaces.Discrete(3))
    algorithm, collector, _ = train(world, 240, temperature=alpha, learn_temperature=False)
    rollout = collect_rollout(algorithm, collector)
    draw = sample_actions(algorithm, rollout)
    q = q_of(algorithm, rollout)
    assert q[0, 0, 0].tolist() == pytest.approx(pay.tolist(), abs=0.1)
    wanted = (pay / alpha).softmax(-1)
    assert draw.prob[0, 0, 0].tolist() == pytest.approx(wanted.tolist(), abs=0.05)
    value = (draw.prob[0, 0, 0] * q[0, 0, 0]).sum() + alpha * draw.entropy[0, 0, 0]
    assert value.item() == pytest.approx(alpha * (pay / alpha).logsumexp(-1).item(), abs=0.1)
    control = (pay / (4 * alpha)).softmax(-1)
    assert (draw.prob[0, 0, 0] - control).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "learn"), [("discrete", True), ("continuous", True), ("discrete", False)])
def test_probe_a_learned_temperature_holds_the_entropy_at_its_target(kind, learn):
    """Half of log 4, or -1 for each of two dimensions. A fixed temperature is the negative control."""
    if kind == "discrete":
        world = Probe(show_nothing, lambda x, age, d, c: (d == 2).float(), actions=spaces.Discrete(4))
        start, wanted = 0.2, 0.5 * math.log(4)
    else:
        pay = lambda x, age, d, c: -(c - 0.4).square().sum(-1)  # noqa: E731
        world = Probe(show_nothing, pay, actions=spaces.Box(-1.0, 1.0, (2,)))
        start, wanted = 0.05, -2.0
    algorithm, collector, _ = train(
        world, 240, temperature=start, learn_temperature=learn, temperature_lr=2e-2, gamma=0.0, **STEADY
    )  # fmt: skip
    found = mean_entropy(algorithm, collect_rollout(algorithm, collector))
    assert (abs(found - wanted) < 0.25) == learn


@pytest.mark.parametrize("masked", [True, False])
def test_the_target_entropy_depends_on_available_choices(masked):
    """Four choices, two of them masked: half of log 2, not of log 4."""
    mask = torch.tensor([True, True, not masked, not masked])
    world = Probe(show_nothing, pay_one, actions=spaces.Discrete(4), mask=mask)
    algorithm, collector = learner(world, target_entropy_scale=0.5, temperature=1.0)
    rollout = collect_rollout(algorithm, collector)
    draw = sample_actions(algorithm, rollout)
    assert draw.max_entropy.unique().item() == pytest.approx(math.log(2 if masked else 4))
    assert draw.prob[..., 2:].sum() > 0 if not masked else draw.prob[..., 2:].sum() == 0
    algorithm.nets.temperature.log.data.fill_(1.0)
    _, loss, mean_entropy = algorithm.actor_losses(rollout, draw, torch.ones(1))
    wanted = 0.5 * math.log(2 if masked else 4)
    assert loss.item() == pytest.approx(mean_entropy.item() - wanted, abs=1e-5)
