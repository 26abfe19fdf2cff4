"""SAC and MASAC: invariants that need no training, and probes with known answers and their negative controls."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algos.worlds import Everything, Probe, env_of
from coterie import run
from coterie.algos.sac import SAC, SACConfig
from coterie.collect import Collector
from coterie.config import resolve
from coterie.errors import UserError
from coterie.types import tree_leaves, tree_map
from tinyruns import assert_same, rows_of, state_of, stop_at

CPU = torch.device("cpu")
CRITICS = ("own", "joint", "state", "joint_state")
MEMORIES = ("none", "gru", "lstm")
BOX = spaces.Box(-1.0, 1.0, (1,))


def learner(world, copies=16, **settings):
    """A learner of the world's only team, and the collector that feeds it."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    small = {"hidden": (16,), "horizon": 12, "batch": 16, "learning_starts": 0, "replay": 4000, "memory_size": 8}
    algorithm = SAC(team, SACConfig(**small | settings), copies, None, 0, CPU)
    return algorithm, Collector(env, {team.name: algorithm.policy}, seed=0)


def window_of(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window


def train(world, updates, copies=16, rounds=4, **settings):
    """A learner after so many gradient steps, its collector, and the last metrics."""
    quick = {
        "horizon": 8,
        "lr": 1e-2,
        "tau": 0.05,
        "gamma": 0.9,
        "updates": updates // rounds,
        "batch": 64,
        "activation": "tanh",
    }
    algorithm, collector = learner(world, copies, **quick | settings)
    metrics = {}
    for _ in range(rounds):
        metrics = algorithm.update(window_of(algorithm, collector), 0.0)
    return algorithm, collector, metrics


def learned(algorithm):
    """All weights that a learner has."""
    state = algorithm.state_dict()
    parts = [state[name] for name in ("policy", "critic", "targets", "temperature")]
    return [x for x in tree_leaves(parts) if isinstance(x, torch.Tensor)]


STEADY = {"lr": 3e-3, "critic_lr": 1e-2, "rounds": 16, "hidden": (32, 32), "activation": "relu"}
"""For numbers: a critic that is faster than the actor, and can bend, on what the actor does now."""


def draw_of(algorithm, window):
    """The policy on all rows of a window, and its entropy."""
    with torch.no_grad():
        return algorithm._draw(window)


def mean_entropy(algorithm, window):
    """Over many draws: that of numbers is an estimate."""
    return sum(draw_of(algorithm, window)[1].mean().item() for _ in range(30)) / 30


def q_of(algorithm, window):
    """The smaller Q of every choice at the rows acted on [T, B, N, A]."""
    with torch.no_grad():
        return algorithm._q(algorithm.critics, window, slice(0, -1), window.action, None).amin(0)


def q_taken(algorithm, window):
    return (q_of(algorithm, window) * algorithm.critics.taken(window.action)).sum(-1)


def mean_reward(algorithm, collector):
    window = window_of(algorithm, collector)
    return window.reward[window.acted[:-1]].mean().item()


def greedy(algorithm, collector):
    """What the policy does greedily on the collector's rows."""
    row = collector.env.reset()
    with torch.no_grad():
        return algorithm.policy.act(row, algorithm.policy.start(collector.env.copies), None, "greedy")[0]


def show_x(x, age):
    return x.view(-1, 1, 1)


def show_nothing(x, age):
    return torch.ones(len(x), 1, 1)


def pay_one(x, age, discrete, continuous):
    return torch.ones(len(x), 1)


def pay_action(x, age, discrete, continuous):
    return discrete.float()


# -------------------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize(
    ("kind", "memory", "critic"), list(itertools.product(Everything.KINDS, MEMORIES, ("own", "joint_state")))
)
def test_every_kind_of_action_and_memory_is_learned(kind, memory, critic):
    """All weights move and stay finite, with masks, deaths, group rewards and roles that differ."""
    algorithm, collector = learner(
        Everything(kind), memory=memory, critic=critic, normalise_obs=True, priority_exponent=0.6, tau=0.5,
        burn_in=2 if memory != "none" else 0, sequence=5, learning_starts=200, n_step=2,
    )  # fmt: skip
    before = tree_map(torch.clone, learned(algorithm))
    for _ in range(3):
        metrics = algorithm.update(window_of(algorithm, collector), 0.0)
    assert all(abs(value) < 1e6 for value in metrics.values())
    assert metrics["replay/updates"] == 2
    moved = [not torch.equal(a, b) for a, b in zip(before, learned(algorithm), strict=True)]
    assert sum(moved) > 0.9 * len(moved)
    assert all(x.isfinite().all() for x in learned(algorithm))


@pytest.mark.parametrize("share", ["role", "all", "none"])
@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("start", ["episode", "window"])
def test_parameters_are_shared_as_asked(share, memory, start):
    world = Everything("hybrid", alike=True)
    algorithm, collector = learner(world, share=share, memory=memory, critic="joint", sequence_start=start)
    for _ in range(2):
        metrics = algorithm.update(window_of(algorithm, collector), 0.0)
    assert metrics["policy/grad_norm"] > 0
    assert metrics["value/grad_norm"] > 0
    assert algorithm.temperature().shape == (3,)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("critic", CRITICS)
def test_what_stands_in_dead_places_changes_no_weight(critic, memory):
    """NaN and a million there leave the same bits, and these are finite."""
    weights = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(Everything("hybrid", dead), critic=critic, memory=memory, normalise_obs=True)
        for _ in range(3):
            window = window_of(algorithm, collector)
            assert not window.alive.all()
            algorithm.update(window, 0.0)
        weights.append(learned(algorithm))
    for one, other in zip(*weights, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("closing", [True, False])
def test_rewards_of_closing_rows_are_not_learned_from(closing, memory):
    """A million there leaves the same bits; the control puts it into rows that were acted on."""
    weights = []
    for reward in (0.0, 1e6):
        world = Probe(lambda x, age: age.view(-1, 1, 1), pay_one, length=3)
        algorithm, collector = learner(world, memory=memory)
        for _ in range(2):
            window = window_of(algorithm, collector)
            places = ~window.acted[:-1] if closing else window.acted[:-1]
            assert places.any()
            window.reward[places] = reward
            algorithm.update(window, 0.0)
        weights.append(torch.cat([x.flatten().float() for x in learned(algorithm)]))
    assert torch.equal(*weights) == closing


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("critic", ["own", "joint"])
def test_an_actors_loss_reaches_no_other_actor(critic, shared):
    """Unless they share parameters, which is the control. Only the own action is fresh in a critic of the team."""
    world = Probe(show_x, lambda x, age, d, c: c.sum(-1), n=2, actions=BOX)
    algorithm, collector = learner(world, share="role" if shared else "none", critic=critic)
    window = window_of(algorithm, collector)
    draw, spread = algorithm._draw(window)
    fresh = tree_map(lambda x: x[:-1], draw.action)
    q = algorithm._q(algorithm.critics, window, slice(0, -1), window.action, fresh).amin(0)[..., 0]
    algorithm.policy.net.zero_grad()
    (spread[:-1] - q)[..., 0].sum().backward()
    reached = [p.grad[1].abs().sum() for p in algorithm.policy.net.parameters() if not shared]
    assert all(float(x) == 0 for x in reached)
    drawn = draw.action["agent"].continuous
    by_action = torch.autograd.grad(
        algorithm._q(algorithm.critics, window, slice(0, -1), window.action, fresh)[0, :, :, 0].sum(), drawn
    )[0]
    assert by_action[:-1, :, 0].abs().sum() > 0
    assert by_action[:, :, 1].abs().sum() == 0
    if critic == "joint":  # the control: with everybody's action fresh it is reached
        wrong = tree_map(lambda x: x[:-1], algorithm._draw(window)[0].action)
        numbers = wrong["agent"].continuous
        q = algorithm._q(algorithm.critics, window, slice(0, -1), wrong, None)[0, :, :, 0].sum()
        assert torch.autograd.grad(q, numbers)[0][:, :, 1].abs().sum() > 0


@pytest.mark.parametrize("others", ["replay", "current"])
def test_the_others_in_an_actors_loss_do_what_they_did_or_what_they_would_do_now(others):
    """What was done is changed: the loss follows in the one case. No gradient reaches another's numbers in either."""
    world = Probe(show_x, pay_one, n=2, actions=spaces.Tuple([spaces.Discrete(3), BOX]))
    algorithm, collector = learner(world, critic="joint", others=others, share="none", temperature=1e-6)
    window = window_of(algorithm, collector)
    draw, spread = algorithm._draw(window)
    alpha = torch.full((2,), 1e-6)
    before = algorithm._policy_losses(window, draw, spread, alpha)[0]
    changed = tree_map(lambda x: torch.zeros_like(x), window.action)
    after = algorithm._policy_losses(replace(window, action=changed), draw, spread, alpha)[0]
    assert (before == after) == (others == "current")
    judged = []
    algorithm.critics.register_forward_pre_hook(lambda module, args: judged.append(args[2]))
    algorithm._policy_losses(window, draw, spread, alpha)
    assert not judged[0]["agent"].continuous.requires_grad


def test_the_critics_are_not_moved_by_the_actors_loss():
    algorithm, collector = learner(Probe(show_x, pay_one, actions=BOX), lr=1e-2, critic_lr=1e-12)
    window = window_of(algorithm, collector)
    before = [tree_map(torch.clone, x) for x in (algorithm.critics.state_dict(), algorithm.policy.net.state_dict())]
    algorithm.update(window, 0.0)
    after = [algorithm.critics.state_dict(), algorithm.policy.net.state_dict()]
    assert max((a - b).abs().max() for a, b in zip(before[0].values(), after[0].values(), strict=True)) < 1e-9
    assert max((a - b).abs().max() for a, b in zip(before[1].values(), after[1].values(), strict=True)) > 1e-3
    assert all(p.requires_grad for p in algorithm.critics.parameters())


def constant_critic(critic, value):
    """A critic that says the same of everything."""
    for p in critic.parameters():
        p.data.zero_()
    for head in critic.heads.values():
        head.head.bias.data.fill_(value)


@pytest.mark.parametrize(("one", "other", "smaller"), [(1.0, 3.0, 1.0), (3.0, 1.0, 1.0), (3.0, 3.0, 3.0)])
def test_the_target_takes_the_smaller_of_two_critics(one, other, smaller):
    """r + gamma (min Q - alpha log pi) by hand; the last case is the control."""
    algorithm, collector = learner(Probe(show_x, pay_one, length=5, limit=True), temperature=0.5, gamma=0.9)
    constant_critic(algorithm.targets.module.one, one)
    constant_critic(algorithm.targets.module.other, other)
    window = window_of(algorithm, collector)
    draw, spread = draw_of(algorithm, window)
    target = algorithm._targets(window, draw, spread, torch.tensor(0.5))
    wanted = 1 + 0.9 * (smaller + 0.5 * spread[1:])
    torch.testing.assert_close(target[window.acted[:-1]], wanted[window.acted[:-1]])


@pytest.mark.parametrize("limit", [True, False])
def test_targets_of_several_steps_hold_the_entropies_on_the_way(limit):
    """Added up by hand: pay 1 and Q 2, stopping at a limit with the value there, at an end without."""
    world = Probe(show_x, pay_one, length=4, limit=limit)
    algorithm, collector = learner(world, n_step=3, gamma=0.9, horizon=10)
    constant_critic(algorithm.targets.module.one, 2.0)
    constant_critic(algorithm.targets.module.other, 2.0)
    window = window_of(algorithm, collector)
    draw, spread = draw_of(algorithm, window)
    target = algorithm._targets(window, draw, spread, torch.tensor(0.5))[:, 0, 0]
    bonus = 0.5 * spread[:, 0, 0]
    for t in (0, 1, 2, 3, 5, 6, 7):  # the row 4 is a closing one
        last = min(t + 2, 3 if t < 4 else 8)  # the step after which the sum stops
        ended = last in (3, 8) and not limit
        wanted = sum(0.9 ** (k - t) for k in range(t, last + 1))
        wanted += sum(0.9 ** (k - t) * bonus[k] for k in range(t + 1, last + 1))
        wanted += 0.0 if ended else 0.9 ** (last + 1 - t) * (2 + bonus[last + 1])
        assert target[t].item() == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("scale", ["none", "spread", "standard"])
def test_rewards_are_scaled_by_what_was_paid_once_a_sample(scale):
    """Pay of 10 and 30, equally often: mean 20, spread 10; drawing them again changes neither."""
    world = Probe(show_x, lambda x, age, d, c: (10 + 20 * x).view(-1, 1))
    algorithm, collector = learner(world, copies=512, reward_scale=scale, updates=3)
    for _ in range(2):
        window = window_of(algorithm, collector)
        algorithm.update(window, 0.0)
    draw, spread = draw_of(algorithm, window)
    target = algorithm._targets(window, draw, spread, torch.ones(()))[window.acted[:-1]]
    low, high = {"none": (10, 30), "spread": (1, 3), "standard": (-1, 1)}[scale]
    assert target.min().item() == pytest.approx(low, abs=0.05 * abs(high))
    assert target.max().item() == pytest.approx(high, abs=0.05 * abs(high))
    if scale != "none":
        assert algorithm._reward_moments["count"] == 2 * window.acted[:-1].sum()


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_an_ended_future_is_cut_and_the_dead_have_no_entropy(critic):
    """Own critic: at the agent's end. A team's: at the last member's; until then the dead are worth what comes."""
    algorithm, collector = learner(Everything(alike=True), critic=critic, gamma=0.9, horizon=40)
    constant_critic(algorithm.targets.module.one, 2.0)
    constant_critic(algorithm.targets.module.other, 2.0)
    window = window_of(algorithm, collector)
    draw, spread = draw_of(algorithm, window)
    target = algorithm._targets(window, draw, spread, torch.tensor(0.5))
    paid = window.reward + window.group_reward
    died = window.terminated & window.alive[1:].any(-1, keepdim=True) & ~window.episode_terminated[..., None]
    last = window.terminated & ~window.alive[1:].any(-1, keepdim=True)
    stays = window.alive[1:] & window.alive[:-1] & window.acted[:-1, :, None]
    assert died.any()
    assert last.any()
    torch.testing.assert_close(target[died], paid[died] + (1.8 if critic == "joint" else 0.0))
    torch.testing.assert_close(target[last], paid[last])
    torch.testing.assert_close(target[stays], (paid + 0.9 * (2 + 0.5 * spread[1:]))[stays])
    assert (spread[1:][stays] > 0).all()


def test_a_teams_critic_learns_on_after_a_death_and_an_own_one_does_not():
    counts = {}
    for critic in ("own", "joint"):
        algorithm, collector = learner(Everything(alike=True), critic=critic)
        window = window_of(algorithm, collector)
        counts[critic] = algorithm._counts(window, valued=True).sum()
        assert torch.equal(algorithm._counts(window, valued=False), window.alive[:-1] & window.acted[:-1, :, None])
    assert counts["joint"] > counts["own"]


def test_burn_in_rows_only_warm_up():
    algorithm, collector = learner(Everything(), memory="gru", sequence=6, burn_in=4)
    for _ in range(2):
        algorithm.update(window_of(algorithm, collector), 0.0)
    window = algorithm.replay.sample(16).window
    assert window.horizon == 10
    counts = algorithm._counts(window, valued=True)
    assert not counts[:4].any()
    assert torch.equal(counts[4:], (window.alive[:-1] & window.acted[:-1, :, None])[4:])


@pytest.mark.parametrize(("tau", "every"), [(0.25, None), (0.01, 2)])
def test_target_critics_follow(tau, every):
    algorithm, collector = learner(Everything(), tau=tau, target_every=every, updates=1)
    last = [p.clone() for p in algorithm.targets.module.parameters()]
    for k in range(1, 4):
        algorithm.update(window_of(algorithm, collector), 0.0)
        online, target = list(algorithm.critics.parameters()), list(algorithm.targets.module.parameters())
        share = tau if every is None else float(k % every == 0)
        for p, t, was in zip(online, target, last, strict=True):
            torch.testing.assert_close(t, was + share * (p - was))
        last = [p.clone() for p in target]
    assert any((p != t).any() for p, t in zip(online, target, strict=True))


def test_memory_of_a_critic_does_not_hold_what_is_judged():
    """Judging another action in one row leaves what is said of the rows after it; what is seen does not."""
    algorithm, collector = learner(Everything("continuous", dead=0.0), memory="gru", critic="joint")
    window = window_of(algorithm, collector)
    q = q_of(algorithm, window)
    action = copy.deepcopy(window.action)
    action["guard"].continuous[2] += 0.5
    with torch.no_grad():
        other = algorithm._q(algorithm.critics, window, slice(0, -1), action, None).amin(0)
    assert torch.equal(q[:2], other[:2])
    assert (q[2] != other[2]).any()
    assert torch.equal(q[3:], other[3:])
    obs = {**window.obs, "guard": window.obs["guard"].clone()}
    obs["guard"][2] += 0.5
    seen = q_of(algorithm, type(window)(**{**vars(window), "obs": obs}))
    assert (seen[3] != q[3]).any()


def test_a_teams_critic_reads_the_others_choices_and_not_the_own():
    algorithm, collector = learner(Everything("multi_discrete", dead=0.0), critic="joint")
    window = window_of(algorithm, collector)
    q = q_of(algorithm, window)
    action = copy.deepcopy(window.action)
    action["guard"].discrete[..., 0, 0] = (action["guard"].discrete[..., 0, 0] + 1) % 3
    with torch.no_grad():
        other = algorithm._q(algorithm.critics, window, slice(0, -1), action, None).amin(0)
    assert torch.equal(q[..., 0, :], other[..., 0, :])
    moved = (q[..., 1:, :] != other[..., 1:, :]).any(-1)
    lives = window.alive[:-1, :, :1]
    assert torch.equal(moved, lives.expand_as(moved))  # what the dead drew is told to nobody
    assert not lives.all()


def test_prioritised_sequences_are_weighted_and_drawn_by_their_error():
    algorithm, collector = learner(Probe(show_x, pay_one), priority_exponent=1.0, batch=64, updates=1)
    algorithm.update(window_of(algorithm, collector), 0.0)
    sample = algorithm.replay.sample(64)
    window = sample.window
    draw, spread = draw_of(algorithm, window)
    target = algorithm._targets(window, draw, spread, torch.ones(()))
    plain, error, _ = algorithm._critic_loss(window, target, torch.ones(64))
    assert error.shape == (64,)
    assert algorithm._critic_loss(window, target, torch.zeros(64))[0] == 0
    assert algorithm._critic_loss(window, target, torch.full((64,), 0.5))[0].item() == pytest.approx(plain.item() / 2)
    algorithm.replay.reprioritise(sample.index, torch.zeros(64))
    algorithm.replay.reprioritise(sample.index[:1], torch.full((1,), 1000.0))
    assert (algorithm.replay.sample(64).index == sample.index[0]).float().mean() > 0.5


# --------------------------------------------------------------------------------------------------------- exploring


def test_the_first_steps_are_uniform_and_the_later_ones_the_policys():
    world = Everything("hybrid")
    algorithm, collector = learner(world, copies=512, random_steps=512 * 24, learning_starts=10**6)
    head = algorithm.policy.net.nets["guard"].core.head  # choices, mean, spread
    head.bias.data.copy_(torch.tensor([0.0, 0.0, 0.0, 3.0, -3.0]))
    spread, count = [], []
    for _ in range(3):
        window = window_of(algorithm, collector)
        live = window.alive[:-1, :, :2] & window.acted[:-1, :, None]
        numbers = window.action["guard"].continuous[live]
        spread.append(numbers.var().item())
        picks = window.action["guard"].discrete[..., 0]
        free = live & window.action_mask["guard"][:-1].all(-1)
        count.append(torch.bincount(picks[free], minlength=3) / free.sum())
        barred = live & ~window.action_mask["guard"][:-1, ..., 0]
        assert (picks[barred] != 0).all()
        algorithm.update(window, 0.0)
    assert spread[:2] == pytest.approx([1 / 3, 1 / 3], abs=0.02)
    for share in count[:2]:
        assert share.tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    assert spread[2] < 0.1


def test_greedy_needs_no_noise_and_every_copy_and_agent_draws_its_own():
    algorithm, collector = learner(Everything("continuous"), random_steps=0)
    row = collector.env.reset()
    noise = algorithm.policy.noise(1, 16, torch.Generator().manual_seed(0))[0]
    mean = greedy(algorithm, collector)["guard"].continuous
    assert mean.abs().max() < 1
    drawn = algorithm.policy.act(row, {}, noise, "explore")[0]["guard"].continuous
    assert drawn.flatten().unique().numel() == drawn.numel()
    assert torch.equal(drawn, algorithm.policy.act(row, {}, noise, "sample")[0]["guard"].continuous)


def test_shapes_that_do_not_fit_are_one_line():
    with pytest.raises(UserError, match="share=role"):
        learner(Everything(), share="all")
    with pytest.raises(UserError, match="needs an environment state"):
        learner(Probe(show_x, pay_one), critic="state")


# -------------------------------------------------------------------------------------------------------- exact ends


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_probe_one_state_reaches_the_softmax_of_q(alpha):
    """pi = softmax(Q / alpha) and V = alpha logsumexp(Q / alpha), with pay 0, 1, -1 and a fixed temperature."""
    pay = torch.tensor([0.0, 1.0, -1.0])
    world = Probe(show_nothing, lambda x, age, d, c: pay[d], actions=spaces.Discrete(3))
    algorithm, collector, _ = train(world, 240, temperature=alpha, learn_temperature=False)
    window = window_of(algorithm, collector)
    draw, spread = draw_of(algorithm, window)
    q = q_of(algorithm, window)
    assert q[0, 0, 0].tolist() == pytest.approx(pay.tolist(), abs=0.1)
    wanted = (pay / alpha).softmax(-1)
    assert draw.prob[0, 0, 0].tolist() == pytest.approx(wanted.tolist(), abs=0.05)
    value = (draw.prob[0, 0, 0] * q[0, 0, 0]).sum() + alpha * spread[0, 0, 0]
    assert value.item() == pytest.approx(alpha * (pay / alpha).logsumexp(-1).item(), abs=0.1)
    control = (pay / (4 * alpha)).softmax(-1)
    assert (draw.prob[0, 0, 0] - control).abs().max() > 0.1


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_probe_a_learned_temperature_holds_the_entropy_at_its_target(kind, learn):
    """Half of log 4, or -1 for each of two numbers; with a fixed temperature, the control, it ends elsewhere."""
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
    found = mean_entropy(algorithm, window_of(algorithm, collector))
    assert (abs(found - wanted) < 0.25) == learn


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_probe_flat_reward_lets_the_entropy_rise_to_its_target(kind, learn):
    """From a policy that hardly varies and a temperature of next to nothing, which stays fixed in the control."""
    actions = spaces.Discrete(4) if kind == "discrete" else spaces.Box(-1.0, 1.0, (2,))
    flat = Probe(show_nothing, lambda x, age, d, c: torch.zeros(len(x), 1), actions=actions)
    algorithm, collector = learner(
        flat, updates=60, lr=1e-2, horizon=8, temperature=1e-9, learn_temperature=learn, temperature_lr=0.2
    )
    head = next(iter(algorithm.policy.net.nets.values())).core.head
    head.bias.data.copy_(torch.tensor([6.0, 0, 0, 0]) if kind == "discrete" else torch.tensor([0.0, 0, -0.9, -0.9]))
    for p in algorithm.critics.parameters():
        p.data.zero_()
    start = mean_entropy(algorithm, window_of(algorithm, collector))
    for _ in range(4):
        algorithm.update(window_of(algorithm, collector), 0.0)
    found = mean_entropy(algorithm, window_of(algorithm, collector))
    wanted = 0.5 * math.log(4) if kind == "discrete" else -2.0
    assert start < wanted - 0.4
    assert found > wanted - 0.1 if learn else found < wanted - 0.4


@pytest.mark.parametrize("masked", [True, False])
def test_the_entropy_aimed_for_counts_available_choices(masked):
    """Four choices, two of them masked: half of log 2, not of log 4."""
    mask = torch.tensor([True, True, not masked, not masked])
    world = Probe(show_nothing, pay_one, actions=spaces.Discrete(4), mask=mask)
    algorithm, collector = learner(world, target_entropy_share=0.5, temperature=1.0)
    window = window_of(algorithm, collector)
    draw, spread = draw_of(algorithm, window)
    assert draw.most.unique().item() == pytest.approx(math.log(2 if masked else 4))
    assert draw.prob[..., 2:].sum() > 0 if not masked else draw.prob[..., 2:].sum() == 0
    algorithm.temperature.log.data.fill_(1.0)
    _, loss, reached = algorithm._policy_losses(window, draw, spread, torch.ones(1))
    wanted = 0.5 * math.log(2 if masked else 4)
    assert loss.item() == pytest.approx(reached.item() - wanted, abs=1e-5)


@pytest.mark.parametrize("mistaken", [False, True])
def test_probe_the_reward_of_a_last_step_is_learned(mistaken, monkeypatch):
    """Every step is the last; the control leaves rows that terminated out of the loss, as public code did."""
    if mistaken:
        counts = SAC._counts
        monkeypatch.setattr(SAC, "_counts", lambda self, w, valued: counts(self, w, valued) & ~w.terminated)
    algorithm, collector, _ = train(Probe(show_nothing, pay_one), 120)
    window = window_of(algorithm, collector)
    found = q_taken(algorithm, window)[window.acted[:-1]].mean().item()
    assert abs(found) < 0.5 if mistaken else found == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("memory", "limit"), [("none", True), ("none", False), ("gru", True)])
def test_probe_endless_reward_under_a_limit_is_worth_ten(limit, memory):
    """With gamma 0.9 and hardly any temperature; the control counts the limit as an end, and gets less."""
    world = Probe(show_nothing, pay_one, length=5, limit=limit)
    algorithm, collector, _ = train(
        world, 320 if memory == "none" else 200, temperature=1e-4, learn_temperature=False, memory=memory,
        tau=0.2 if memory == "none" else 0.3, batch=64 if memory == "none" else 16,
    )  # fmt: skip
    window = window_of(algorithm, collector)
    found = q_taken(algorithm, window)[window.acted[:-1]].mean().item()
    assert found == pytest.approx(10, abs=0.7) if limit else found < 6


# ------------------------------------------------------------------------------------------------------------ probes


@pytest.mark.parametrize("masked", [True, False])
def test_probe_best_action_that_is_masked_is_left(masked):
    """The control masks nothing, and the best is taken."""
    mask = torch.tensor([True, True, not masked])
    world = Probe(show_nothing, pay_action, actions=spaces.Discrete(3), mask=mask)
    algorithm, collector, _ = train(world, 160, temperature=0.1, learn_temperature=False)
    assert mean_reward(algorithm, collector) == pytest.approx(1.0 if masked else 2.0, abs=0.05)
    assert (greedy(algorithm, collector)["agent"].discrete == (1 if masked else 2)).all()


@pytest.mark.parametrize("memory", MEMORIES)
def test_probe_cue_is_remembered(memory):
    """Seen in the first row, asked for in the third; without memory nobody knows it."""
    world = Probe(
        lambda x, age: torch.stack([(2 * x - 1) * (age == 0), (age == 2).float()], -1).unsqueeze(1),
        lambda x, age, d, c: ((d == x.view(-1, 1)) & (age == 2).view(-1, 1)).float(),
        size=2,
        length=3,
    )
    algorithm, collector, _ = train(
        world, 200, memory=memory, sequence=4, lr=1e-2, tau=0.1, temperature=0.02, learn_temperature=False, batch=32,
        copies=32,
    )  # fmt: skip
    found = 3 * mean_reward(algorithm, collector)  # a third of the acted rows can pay
    assert found > 0.9 if memory != "none" else found < 0.65


@pytest.mark.parametrize(("share", "agent_id"), [("role", None), ("none", False), ("role", False)])
def test_probe_roles_that_see_the_same_are_told_apart(share, agent_id):
    """Agent 0 is to choose 0, agent 1 is to choose 1; parameters shared without an id cannot."""
    world = Probe(show_nothing, lambda x, age, d, c: (d == torch.tensor([0, 1])).float(), n=2)
    algorithm, collector, _ = train(
        world, 160, share=share, agent_id=agent_id, temperature=0.1, learn_temperature=False
    )
    found = mean_reward(algorithm, collector)
    assert found > 0.95 if (share, agent_id) != ("role", False) else found < 0.7


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_probe_a_teams_critic_knows_what_the_others_did(critic):
    """Paid where both choose alike: Q of doing so is 1, of not doing so 0; the control knows only the mean."""
    world = Probe(show_nothing, lambda x, age, d, c: (d[:, :1] == d[:, 1:]).float(), n=2)
    algorithm, collector, _ = train(
        world, 200, critic=critic, temperature=100.0, learn_temperature=False, gamma=0.0, hidden=(32,)
    )
    window = window_of(algorithm, collector)
    other = window.action["agent"].discrete[..., [1, 0], :]
    q = q_of(algorithm, window).gather(-1, other)[window.acted[:-1]]
    assert q.mean().item() == pytest.approx(1.0 if critic == "joint" else 0.5, abs=0.15)


# ---------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_learner_that_was_saved_goes_on_with_the_same_bits(memory):
    """Replay, priorities, counters, noise, targets and temperature included."""
    settings = {
        "memory": memory, "sequence": 5, "sequence_start": "window", "priority_exponent": 0.5, "critic": "joint",
        "normalise_obs": True, "target_every": 3, "random_steps": 500, "learning_starts": 300, "replay": 600,
        "reward_scale": "standard",
    }  # fmt: skip
    one, collector = learner(Everything("hybrid"), **settings)
    windows = [window_of(one, collector) for _ in range(6)]
    for window in windows[:3]:
        one.update(window, 0.2)
    state = copy.deepcopy(one.state_dict())
    other, _ = learner(Everything("hybrid"), **settings)
    other.load_state_dict(state)
    assert other.policy.warming == one.policy.warming
    for window in windows[3:]:
        assert one.update(window, 0.6) == other.update(window, 0.6)
    for a, b in zip(learned(one), learned(other), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.replay.sample(8).index, other.replay.sample(8).index)
    fresh, _ = learner(Everything("hybrid"), **settings)  # the control: nothing loaded
    assert not all(torch.equal(a, b) for a, b in zip(learned(one), learned(fresh), strict=True))


TINY = (
    *("copies=4", "algo.horizon=10", "algo.hidden=[8]", "algo.batch=8", "algo.learning_starts=60", "algo.updates=2"),
    *("steps=320", "threads=1", "device=cpu", "eval.every=120", "eval.episodes=4", "eval.copies=4"),
    *("log.tensorboard=false", "progress=off"),
)
CASES = {
    "masac": ("algo=masac", "env=particle/simple_spread", "algo.priority_exponent=0.6"),
    "sac, continuous, gru": (
        *("algo=sac", "env=particle/simple_spread", "env.actions=continuous", "algo.memory=gru", "algo.memory_size=6"),
        *("algo.sequence=5", "algo.burn_in=2", "algo.normalise_obs=true", "algo.random_steps=100"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_with_the_same_bits(case, tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])
    settings = (*TINY, *CASES[case])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run.train(resolve([*settings, f"out={whole}"]))
    with monkeypatch.context() as patch:
        stop_at(patch, 130)
        run.train(resolve([*settings, f"out={parts}"]))
    assert state_of(parts)["steps"] < 200
    run.resume(parts, [])
    assert_same(state_of(whole), state_of(parts))
    assert rows_of(whole) == rows_of(parts)
