"""DDPG, MADDPG, TD3 and MATD3: invariants that need no training, and probes with known answers and their controls."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algos.worlds import Everything, Probe, env_of
from coterie.algos.ddpg import DDPG, DDPGConfig
from coterie.collect import Collector
from coterie.envs.world import View
from coterie.errors import NonFiniteError, UserError
from coterie.metrics import undeclared
from coterie.types import tree_leaves

CPU = torch.device("cpu")
NUMBER = spaces.Box(-1.0, 1.0, (1,))


def learner(world, copies=16, seed=0, **settings):
    """A learner of the world's only team, and the collector that feeds it."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    quick = {"hidden": (16, 16), "memory_size": 8, "horizon": 12, "batch": 16, "learning_starts": 0, "replay": 2000}
    algorithm = DDPG(team, DDPGConfig(**quick | settings), copies, None, seed, CPU)
    return algorithm, Collector(env, {team.name: algorithm.policy}, seed=0)


def live(algorithm, collector):
    """The metrics of one window and its update."""
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return algorithm.update(window, 0.0)


def batch_of(algorithm, collector):
    """A batch of what was collected."""
    if not algorithm.replay.ready(1):
        (window,) = collector.advance(algorithm.horizon)[0].values()
        algorithm.replay.add(window)
    return algorithm._batch(algorithm.replay.sample(algorithm.config.batch))


def train(world, windows, copies=32, **settings):
    """A learner after so many windows, and its collector."""
    quick = {"horizon": 8, "batch": 128, "updates": 8, "lr": 5e-3, "tau": 0.05, "gamma": 0.9, "replay": 4000}
    quick |= {"noise_std": 0.3, "random_steps": 256}
    algorithm, collector = learner(world, copies, **quick | settings)
    for _ in range(windows):
        live(algorithm, collector)
    return algorithm, collector


def acts(algorithm, world, mode="greedy", steps=8):
    """Actions, observations and rewards of a fresh environment's rows that are acted on, [rows, ..] each."""
    env, policy = env_of(world, 32, seed=5), algorithm.policy
    row, carry = env.reset(), policy.start(32)
    rewards, observed, done = [], [], []
    for noise in policy.noise(steps, 32, torch.Generator().manual_seed(1)):
        with torch.no_grad():
            action, carry, _ = policy.act(row, carry, noise, mode)
        step, following = env.step(action)
        rewards.append(step.reward[row.acted])
        observed.append(row.obs["agent"][row.acted])
        taken = action["agent"]
        done.append((taken.continuous if taken.discrete is None else taken.discrete)[row.acted])
        row = following
    return torch.cat(done), torch.cat(observed), torch.cat(rewards)


def judged(algorithm, collector):
    """Q of what was done [R, S, N], and the batch."""
    batch = batch_of(algorithm, collector)
    with torch.no_grad():
        _, _, q = algorithm._critic_loss(batch, torch.zeros_like(batch.live, dtype=torch.float32))
    return q, batch


def show_nothing(x, age):
    return torch.zeros(len(x), 1, 1)


def show_one(x, age):
    return torch.ones(len(x), 1, 1)


def show_x(x, age):
    return x.view(-1, 1, 1)


def show_age(x, age):
    return age.view(-1, 1, 1)


def pay_one(x, age, discrete, continuous):
    return torch.ones(len(x), 1)


# -------------------------------------------------------------------------------------------------------- invariants

CRITICS = ("own", "joint", "state", "joint_state")
MEMORIES = ("none", "gru", "lstm")
SPACES = list(itertools.product(Everything.KINDS, MEMORIES))


@pytest.mark.parametrize(("kind", "memory", "critic"), [(*s, CRITICS[i % 4]) for i, s in enumerate(SPACES)])
def test_every_space_is_learned_from(kind, memory, critic):
    """Roles that differ, masks, deaths, group rewards, twins, priorities, n steps, burn-in: all at once."""
    recurrent = {"burn_in": 2, "sequence": 5} if memory != "none" else {}
    algorithm, collector = learner(
        Everything(kind), memory=memory, critic=critic, noise="ornstein_uhlenbeck", n_step=2, twin_critics=True,
        priority_exponent=0.5, policy_delay=2, target_noise=0.2, updates=2, batch=8, normalise_obs=True, **recurrent,
    )  # fmt: skip
    before = copy.deepcopy(tree_leaves(algorithm.policy.net.state_dict()))
    for _ in range(2):
        metrics = live(algorithm, collector)
    assert not undeclared(metrics)
    assert metrics["replay/updates"] == 4
    assert all(abs(value) < 1e9 for value in metrics.values())
    after = tree_leaves(algorithm.policy.net.state_dict())
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("share", ["role", "all", "none"])
@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("critic", ["own", "joint"])
def test_parameters_can_be_shared_in_every_way(share, memory, critic):
    world = Everything("hybrid", alike=True)
    algorithm, collector = learner(world, share=share, memory=memory, critic=critic, others="current")
    metrics = live(algorithm, collector)
    assert metrics["policy/grad_norm"] > 0
    assert metrics["value/grad_norm"] > 0


@pytest.mark.parametrize("others", ["replay", "current"])
@pytest.mark.parametrize("share_critic", [True, False])
def test_an_actors_loss_reaches_no_other_actor(others, share_critic):
    """MADDPG: the gradient of actor 0's loss in actor 1's weights is 0; where the action is not isolated, it is not."""
    world = Probe(show_one, pay_one, n=2, actions=spaces.Tuple([spaces.Discrete(3), NUMBER]))
    algorithm, collector = learner(
        world, critic="joint", share="none", others=others, share_critic=share_critic, logit_penalty=0.0
    )
    batch = batch_of(algorithm, collector)
    batch = replace(batch, live=batch.live & torch.tensor([True, False]))
    loss, _ = algorithm._policy_loss(batch)
    weights = list(algorithm.policy.net.parameters())
    for found in torch.autograd.grad(loss, weights):
        assert found[0].abs().sum() > 0
        assert found[1].abs().sum() == 0
    out = algorithm._act(algorithm.policy.net, batch, 0, 1)
    actions = algorithm._joint.join(algorithm._vectors(out, batch, 0, 1, None))
    seen = algorithm._read(algorithm.critics[0], batch, 0, 1)
    for found in torch.autograd.grad(algorithm.critics[0].judge(seen, actions)[..., 0, 0].sum(), weights):
        assert found[1].abs().sum() > 0


@pytest.mark.parametrize(("team_reward", "share_critic"), [(False, True), (True, True), (False, False)])
def test_slopes_are_those_of_each_agents_own_q(team_reward, share_critic):
    """Against one backward pass an agent through the joint action that it judges."""
    world = Probe(show_nothing, pay_one, n=3, actions=spaces.Tuple([spaces.Discrete(3), NUMBER]))
    for others in ("replay", "current"):
        algorithm, collector = learner(
            world, critic="joint", others=others, team_reward=team_reward, share_critic=share_critic
        )
        batch = batch_of(algorithm, collector)
        draw = torch.Generator().manual_seed(0)
        done, now = torch.rand(2, 1, 16, 12, generator=draw)
        alive = torch.rand(1, 16, 3, generator=draw) > 0.3
        seen = algorithm._read(algorithm.critics[0], batch, 0, 1)
        found, total = algorithm._slope(seen, now.clone(), done, alive)
        expected, sums = torch.zeros_like(now), 0.0
        for agent in range(3):
            own = slice(4 * agent, 4 * agent + 4)
            joint = (done if others == "replay" else now).clone()
            joint[..., own] = now[..., own]
            joint.requires_grad_()
            q = algorithm.critics[0].judge(seen, joint)[..., agent, 0]
            (slope,) = torch.autograd.grad(torch.where(alive[..., agent], q, 0.0).sum(), joint)
            expected[..., own] = slope[..., own]
            sums += torch.where(alive[..., agent], q, 0.0).sum().item()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
        assert total.item() == pytest.approx(sums, rel=1e-4)


def test_actors_learn_without_touching_the_critics():
    algorithm, collector = learner(Everything("hybrid"), critic="joint")
    batch = batch_of(algorithm, collector)
    loss, _ = algorithm._policy_loss(batch)
    loss.backward()
    assert all(p.grad is None or not p.grad.any() for p in algorithm.critics.parameters())
    assert any(p.grad is not None and p.grad.any() for p in algorithm.policy.net.parameters())


@pytest.mark.parametrize("every", [None, 2])
def test_target_networks_follow_the_online_ones(every):
    """Polyak mixtures, or the whole network of the last even step; a target that is its own model would not move."""
    algorithm, collector = learner(Probe(show_x, pay_one, actions=NUMBER), tau=0.2, target_every=every, lr=1e-2)
    pairs = [
        (algorithm.policy.net, algorithm._target_net.module),
        (algorithm.critics, algorithm._target_critics.module),
    ]
    expected = [[p.detach().clone() for p in target.parameters()] for _, target in pairs]
    start = copy.deepcopy(expected)
    for k in range(1, 4):
        live(algorithm, collector)
        for (online, _), held in zip(pairs, expected, strict=True):
            for p, e in zip(online.parameters(), held, strict=True):
                if every is None:
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
    """Makes every critic say one number of everything."""
    for critic, value in zip(critics.children(), values, strict=True):
        for p in critic.parameters():
            p.data.zero_()
        for name, p in critic.named_parameters():
            if name.endswith("core.head.bias"):
                p.data.fill_(value)


def targets_of(algorithm, collector, *values):
    constant(algorithm._target_critics.module, values)
    batch = batch_of(algorithm, collector)
    with torch.no_grad():
        return algorithm._targets(batch), batch


@pytest.mark.parametrize("critic", ["own", "joint"])
def test_targets_take_the_smaller_of_two_critics(critic):
    world = Probe(show_nothing, pay_one, n=2, length=5, limit=True)
    for values, expected in (((3.0, 5.0), 3.7), ((5.0, 3.0), 3.7), ((5.0,), 5.5)):
        algorithm, collector = learner(world, twin_critics=len(values) == 2, gamma=0.9, critic=critic)
        target, batch = targets_of(algorithm, collector, *values)
        assert target.shape == batch.live.shape == (1, 16, 2)
        torch.testing.assert_close(target, torch.full_like(target, expected))


@pytest.mark.parametrize(("n", "expected"), [(5, (2.71, 1.9, 1.0)), (1, (10.0, 10.0, 1.0))])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_targets_of_n_steps_end_with_the_episode(n, expected, memory):
    """Three rewards of 1, then the end; V = 10 everywhere. Bootstrapping the last slot would give 10 three times."""
    algorithm, collector = learner(
        Probe(show_age, pay_one, length=3), n_step=n, gamma=0.9, memory=memory, sequence=12, horizon=24
    )
    target, batch = targets_of(algorithm, collector, 10.0)
    age = batch.rows.obs["agent"][: len(target), ..., 0].long()
    wanted = torch.tensor([*expected, 0.0])[age]
    assert batch.live.sum() >= 16
    torch.testing.assert_close(target[batch.live], wanted[batch.live])


@pytest.mark.parametrize("limit", [True, False])
def test_targets_bootstrap_at_a_limit_and_not_at_an_end(limit):
    """The last step before a limit reads the value of the row that closes the episode."""
    world = Probe(show_age, pay_one, length=2, limit=limit)
    algorithm, collector = learner(world, gamma=0.9, n_step=3, batch=64)
    target, batch = targets_of(algorithm, collector, 10.0)
    last = batch.rows.obs["agent"][:1, ..., 0] == 1
    expected = 1 + 0.9 * 10 if limit else 1.0
    torch.testing.assert_close(target[last], torch.full_like(target[last], expected))


def test_rewards_of_last_steps_are_in_the_loss():
    """Every transition ends its episode; a mask of 1 - terminated, the mistake, leaves nothing to learn from."""
    algorithm, collector = learner(Probe(show_nothing, pay_one))
    batch = batch_of(algorithm, collector)
    assert batch.ended[0].all()
    with torch.no_grad():
        target = algorithm._targets(batch)
        loss, _, _ = algorithm._critic_loss(batch, target)
        mistaken, _, _ = algorithm._critic_loss(replace(batch, valued=batch.valued & ~batch.ended[:1]), target)
    assert loss > 0.1
    assert mistaken == 0


def test_actors_wait_for_their_delay():
    algorithm, collector = learner(Probe(show_x, pay_one, actions=NUMBER), policy_delay=3)
    moved = []
    for _ in range(6):
        parts = (algorithm.policy.net, algorithm._target_net.module, algorithm._target_critics.module)
        before = [copy.deepcopy(list(part.parameters())) for part in parts]
        metrics = live(algorithm, collector)
        changed = [
            any(not torch.equal(b, p) for b, p in zip(old, part.parameters(), strict=True))
            for old, part in zip(before, parts, strict=True)
        ]
        assert changed in ([True] * 3, [False] * 3)
        assert ("loss/policy" in metrics) == changed[0]
        moved.append(changed[0])
    assert moved == [False, False, True, False, False, True]


def test_hard_copies_count_gradient_steps_and_do_not_wait_for_the_actor():
    algorithm, collector = learner(Probe(show_x, pay_one, actions=NUMBER), policy_delay=2, target_every=3)
    equal = []
    for _ in range(6):
        live(algorithm, collector)
        pairs = zip(algorithm.critics.parameters(), algorithm._target_critics.module.parameters(), strict=True)
        equal.append(all(torch.equal(online, own) for online, own in pairs))
    assert equal == [False, False, True, False, False, True]


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("critic", CRITICS)
def test_what_stands_in_dead_places_changes_no_weight(critic, memory):
    """NaN and a million there leave the same bits, and these are finite."""
    weights = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            Everything("hybrid", dead), critic=critic, memory=memory, normalise_obs=True, noise="ornstein_uhlenbeck"
        )
        for _ in range(2):
            (window,) = collector.advance(algorithm.horizon)[0].values()
            assert not window.alive.all()
            algorithm.update(window, 0.0)
        weights.append(tree_leaves([algorithm.policy.net.state_dict(), algorithm.critics.state_dict()]))
    for one, other in zip(*weights, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_closing_rows_are_not_learned_from(memory):
    """What stands there for rewards and actions changes no weight; on rows that were acted on it would."""

    def weights(poison, where):
        algorithm, collector = learner(
            Probe(show_age, pay_one, length=3, actions=NUMBER), memory=memory, critic="joint", n_step=2
        )
        for _ in range(2):
            (window,) = collector.advance(12)[0].values()
            places = window.acted[:-1] == where
            assert places.any()
            window.reward[places] = poison
            window.action["agent"].continuous[places] = poison
            algorithm.update(window, 0.0)
        return torch.cat([p.flatten() for p in (*algorithm.policy.net.parameters(), *algorithm.critics.parameters())])

    clean, poisoned = weights(0.5, False), weights(float("nan"), False)
    assert clean.isfinite().all()
    assert torch.equal(clean, poisoned)
    assert not torch.equal(clean, weights(0.5, True))


@pytest.mark.parametrize(("memory", "start"), [("none", "episode"), ("gru", "episode"), ("lstm", "window")])
def test_going_on_from_a_state_gives_the_same_bits(memory, start):
    """Replay and its priorities, targets, optimisers, noise, counters and generators included."""

    def made():
        return learner(
            Everything("hybrid"), memory=memory, sequence_start=start, priority_exponent=0.6, twin_critics=True,
            policy_delay=2, noise="ornstein_uhlenbeck", random_steps=300, updates=3, critic="joint", target_noise=0.1,
            normalise_obs=True, replay=800, noise_schedule="linear",
        )  # fmt: skip

    def final(algorithm, collector, windows):
        for k in range(windows):
            (window,) = collector.advance(algorithm.horizon)[0].values()
            metrics = algorithm.update(window, 0.1 * k)
        return [*tree_leaves(algorithm.state_dict()["policy"]["module"]), *algorithm.critics.parameters()], metrics

    one = made()
    final(*one, 3)
    state = copy.deepcopy({"algorithm": one[0].state_dict(), "collector": one[1].state_dict()})
    weights, metrics = final(*one, 3)
    other = made()
    other[0].load_state_dict(state["algorithm"])
    other[1].load_state_dict(state["collector"])
    again, repeated = final(*other, 3)
    assert metrics == repeated
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    forgetful = made()  # the control: the optimisers' moments are lost
    del state["algorithm"]["policy_optimiser"]["policy"]
    state["algorithm"]["policy_optimiser"]["policy"] = {}
    forgetful[0].load_state_dict(state["algorithm"])
    forgetful[1].load_state_dict(state["collector"])
    wrong, _ = final(*forgetful, 3)
    assert not all(torch.equal(a, b) for a, b in zip(weights, wrong, strict=True))


class Picture(Probe):
    """Two agents who see one picture, bright or dark, and are to say which."""

    def __init__(self):
        super().__init__(show_nothing, lambda x, age, d, c: (d == x.view(-1, 1)).float(), n=2)
        role = replace(self.spec.roles[0], observation_space=spaces.Box(0, 255, (6, 6, 1), "uint8"))
        self.spec = replace(self.spec, roles=(role,))

    def view(self, state):
        shade = (250 * state["x"]).to(torch.uint8).view(-1, 1, 1, 1, 1)
        return View({"agent": shade.expand(-1, 2, 6, 6, 1)})


@pytest.mark.parametrize(("critic", "share", "memory"), [("joint", "role", "none"), ("own", "none", "gru")])
def test_pictures_are_read(critic, share, memory):
    algorithm, _ = train(Picture(), 15, critic=critic, share=share, memory=memory, batch=32, updates=6, sequence=4)
    assert acts(algorithm, Picture())[2].mean() > 0.95


def test_shapes_that_do_not_fit_are_one_line():
    with pytest.raises(UserError, match="share=role"):
        learner(Everything(), share="all")
    with pytest.raises(UserError, match="needs an environment state"):
        learner(Probe(show_nothing, pay_one), critic="state")


def test_what_is_not_a_number_is_named():
    algorithm, collector = learner(Probe(show_nothing, pay_one))
    next(iter(algorithm.critics.parameters())).data.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"team agent: loss/critic, .*a smaller algo.lr"):
        live(algorithm, collector)


# ----------------------------------------------------------------------------------------------------------- exploring


def test_every_row_and_agent_explores_by_itself():
    world = Probe(show_nothing, pay_one, n=3, actions=NUMBER)
    algorithm, _ = learner(world, noise_std=0.3)
    done, _, _ = acts(algorithm, world, "explore", steps=4)
    assert done.numel() == len(done.unique())
    greedy, _, _ = acts(algorithm, world, "greedy", steps=4)
    assert (greedy == greedy[0]).all()
    sampled, _, _ = acts(algorithm, world, "sample", steps=4)
    assert torch.equal(sampled, greedy)
    assert (done - greedy).std().item() == pytest.approx(0.3, abs=0.04)


def test_numbers_stay_in_their_range_whatever_the_noise():
    world = Probe(show_nothing, pay_one, actions=NUMBER)
    algorithm, _ = learner(world, noise_std=2.0)
    done, _, _ = acts(algorithm, world, "explore", steps=8)
    assert done.min() == -1
    assert done.max() == 1


def test_drifting_noise_lives_in_the_memory_and_begins_anew_with_every_life():
    world = Probe(show_nothing, pay_one, n=2, length=3, actions=NUMBER)
    algorithm, _ = learner(world, noise="ornstein_uhlenbeck", noise_std=0.1, noise_theta=0.25)
    algorithm.policy.net.nets["agent"].core.head.weight.data.zero_()  # calm at 0
    env, policy = env_of(world, 4), algorithm.policy
    row, carry, state, lives = env.reset(), policy.start(4), torch.zeros(4, 2, 1), 0
    for noise in policy.noise(9, 4, torch.Generator().manual_seed(0)):
        with torch.no_grad():
            action, carry, _ = policy.act(row, carry, noise, "explore")
            still, same, _ = policy.act(row, carry, noise, "greedy")
        state = torch.where(row.first.unsqueeze(-1), 0.0, state) * 0.75 + noise["agent"]
        torch.testing.assert_close(action["agent"].continuous, (0.1 * state).clamp(-1, 1))
        assert not still["agent"].continuous.any()
        assert torch.equal(same["drift"], carry["drift"])  # who does not explore leaves the noise alone
        lives += int(row.first.sum())
        row = env.step(action)[1]
    assert lives == 3 * 4 * 2  # three steps and a closing row a life


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "continuous", "hybrid"])
def test_the_first_steps_are_drawn_uniformly(kind):
    world = Probe(show_nothing, pay_one, n=2, actions=Everything.KINDS[kind], length=50)
    algorithm, collector = learner(world, copies=32, random_steps=32 * 24, learning_starts=10_000, horizon=24)
    for net in algorithm.policy.net.nets.values():
        net.core.head.bias.data.fill_(3.0)
        net.core.head.bias.data[0] = -3.0  # a policy of strong will
    spread = []
    for uniform in (True, False):
        assert algorithm.policy.uniform == uniform
        (window,) = collector.advance(24)[0].values()
        action = window.action["agent"]
        if action.discrete is not None:
            spread.append((action.discrete[..., 0] == 0).float().mean().item())
        if action.continuous is not None:
            spread.append(action.continuous[..., 0].mean().item())
            if uniform:
                assert action.continuous.std().item() == pytest.approx(3**-0.5, abs=0.03)
        algorithm.update(window, 0.0)
    even = ([1 / 3] if kind != "continuous" else []) + ([0.0] if kind in {"continuous", "hybrid"} else [])
    assert spread[: len(even)] == pytest.approx(even, abs=0.05)
    assert all(abs(a - b) > 0.2 for a, b in zip(spread, spread[len(even) :], strict=False))


@pytest.mark.parametrize("uniform", [True, False])
def test_masked_choices_are_never_made(uniform):
    mask = torch.tensor([True, False, True, False, True])
    world = Probe(show_nothing, pay_one, n=2, actions=spaces.MultiDiscrete([3, 2]), mask=mask)
    algorithm, _ = learner(world)
    algorithm.policy.uniform = uniform
    for mode in ("greedy", "sample", "explore"):
        done, _, _ = acts(algorithm, world, mode)
        assert not (done[..., 0] == 1).any()
        assert (done[..., 1] == 1).all()
    free, _, _ = acts(algorithm, Probe(show_nothing, pay_one, n=2, actions=spaces.MultiDiscrete([3, 2])), "explore")
    assert (free[..., 0] == 1).any()  # the control


def test_the_noise_follows_its_schedule():
    algorithm, collector = learner(
        Probe(show_nothing, pay_one, actions=NUMBER), noise_std=0.4, noise_schedule="linear", noise_end=0.5
    )
    (window,) = collector.advance(12)[0].values()
    assert algorithm.update(window, 0.5)["policy/noise_std"] == pytest.approx(0.3)
    assert algorithm.policy.noise_std == pytest.approx(0.3)


# ------------------------------------------------------------------------------------------------------------ probes


@pytest.mark.parametrize("limit", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_probe_endless_reward_under_a_limit_is_worth_ten(limit, n_step):
    """With gamma 0.9; the control counts the limit as an end, and gets less."""
    world = Probe(show_nothing, pay_one, length=5, limit=limit)
    q, batch = judged(*train(world, 30, horizon=12, tau=0.2, lr=1e-2, n_step=n_step))
    found = q[batch.live].mean().item()
    assert found == pytest.approx(10, abs=0.7) if limit else found < 4.2


@pytest.mark.parametrize("masked", [True, False])
def test_probe_best_action_that_is_masked_is_left(masked):
    """The control masks nothing, and the best is taken."""
    mask = torch.tensor([True, True, not masked])
    world = Probe(show_nothing, lambda x, age, d, c: d.float(), actions=spaces.Discrete(3), mask=mask)
    algorithm, _ = train(world, 20)
    assert acts(algorithm, world)[2].mean().item() == pytest.approx(1.0 if masked else 2.0, abs=0.03)


@pytest.mark.parametrize("share", ["none", "role"])
def test_probe_roles_that_see_the_same_are_told_apart(share):
    """Agent 0 is to choose 0, agent 1 is to choose 1; parameters shared without an id cannot."""
    world = Probe(show_nothing, lambda x, age, d, c: (d == torch.tensor([0, 1])).float(), n=2)
    algorithm, _ = train(world, 30, share=share, critic="joint")
    assert acts(algorithm, world)[2].mean() > 0.95
    blind, _ = train(world, 30, share="role", agent_id=False, critic="joint")
    assert acts(blind, world)[2].mean() < 0.7


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_probe_cue_is_remembered(memory):
    """Seen in the first row, asked for in the third; without memory nobody knows it."""
    world = Probe(
        lambda x, age: torch.stack([(2 * x - 1) * (age == 0), (age == 2).float()], -1).unsqueeze(1),
        lambda x, age, d, c: ((d == x.view(-1, 1)) & (age == 2).view(-1, 1)).float(),
        size=2,
        length=3,
    )
    algorithm, _ = train(world, 50, memory=memory, memory_size=16, batch=64, sequence=4)
    _, _, rewards = acts(algorithm, world, steps=12)
    found = 3 * rewards.mean()  # a third of the acted rows can pay
    assert found > 0.9 if memory != "none" else found < 0.7
