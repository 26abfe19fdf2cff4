"""COMA: exact answers through the learner's own code, and invariants. What it learns: test_coma_probes.py."""

import copy
import itertools

import pytest
import torch
from gymnasium import spaces
from torch import nn

from algos.worlds import Everything, Probe, env_of
from coterie.algos import coma, onpolicy
from coterie.algos.coma import COMA, COMAConfig
from coterie.collect import Collector
from coterie.errors import NonFiniteError, UserError
from coterie.types import Row, tree_leaves

CPU = torch.device("cpu")
CLIMBING = torch.tensor([[11.0, -30, 0], [-30, 7, 0], [0, 6, 5]])
KINDS = ("discrete", "multi_discrete")


def learner(world, copies=16, seed=0, **settings):
    """A learner of the world's only team, and the collector that feeds it."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    quick = {"hidden": (16, 16), "critic_hidden": (16, 16), "horizon": 12, "memory_size": 8}
    algorithm = COMA(team, COMAConfig(**quick | settings), copies, None, seed, CPU)
    return algorithm, Collector(env, {team.name: algorithm.policy}, seed=0)


def window_of(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window


def train(world, updates, copies=64, seed=0, **settings):
    """A learner after so many updates, its collector, and the last metrics."""
    quick = {"horizon": 8, "lr": 1e-2, "critic_lr": 1e-2, "epsilon": 0.1, "gamma": 0.9, "target_every": 5}
    quick["normalise_advantage"] = True
    algorithm, collector = learner(world, copies, seed, **quick | settings)
    metrics = {}
    for update in range(updates):
        metrics = algorithm.update(window_of(algorithm, collector), update / updates)
    return algorithm, collector, metrics


def mean_reward(algorithm, collector):
    """Of what is collected with the floor of epsilon."""
    window = window_of(algorithm, collector)
    return window.reward[window.acted[:-1]].mean().item()


def show_nothing(x, age):
    return torch.ones(len(x), 1, 1)


def show_x(x, age):
    return x.view(-1, 1, 1)


def show_age(x, age):
    return age.view(-1, 1, 1)


def pay_nothing(x, age, discrete, continuous):
    return torch.zeros(len(x), 1)


def climbing(length=1):
    """Both are paid what the table says of their choices."""
    pay = lambda x, age, d, c: CLIMBING[d[:, 0], d[:, 1]].view(-1, 1)  # noqa: E731
    return Probe(show_nothing, pay, n=2, actions=spaces.Discrete(3), length=length)


class Table(nn.Module):
    """In the place of a critic: q(obs, joint) [.., N, A], shifted by a parameter that is zero."""

    def __init__(self, q):
        super().__init__()
        self.q, self.zero, self.calls = q, nn.Parameter(torch.zeros(())), []

    def forward(self, obs, state, joint, last, first, carry):
        self.calls.append(obs["agent"])
        return self.q(obs["agent"], joint) + self.zero, {}


def spied(monkeypatch):
    """Arguments and results of every counterfactual advantage that is computed from now on."""
    seen, original = [], coma.counterfactual_advantage

    def spy(q, pi, taken, component=None):
        found = original(q, pi, taken, component)
        seen.append((q, pi, taken, found))
        return found

    monkeypatch.setattr(coma, "counterfactual_advantage", spy)
    return seen


# ----------------------------------------------------------------------------------------------------- exact answers


def test_climbing_has_the_known_advantages_and_gradient(monkeypatch):
    """Under uniform play, both agents, every joint action; the actor's step goes up the sampled policy gradient."""
    algorithm, collector = learner(climbing(), 64, max_grad_norm=None)
    with torch.no_grad():
        for p in algorithm.policy.net.nets["agent"].core.head.parameters():
            p.zero_()
    # What each of agent 0's choices is worth depends on the column, of agent 1's on the row.
    algorithm.critic = Table(lambda obs, u: torch.stack([u[..., 3:] @ CLIMBING.T, u[..., :3] @ CLIMBING], -2))
    seen = spied(monkeypatch)
    window = window_of(algorithm, collector)
    algorithm.update(window, 0.0)
    ((_, pi, taken, advantage),) = seen
    torch.testing.assert_close(pi, torch.full_like(pi, 1 / 3))
    known = torch.tensor([[17.3333, -24.3333, -1.6667], [-23.6667, 12.6667, -1.6667], [6.3333, 11.6667, 3.3333]])
    row, column = taken.argmax(-1).unbind(-1)
    assert len({*zip(row.flatten().tolist(), column.flatten().tolist(), strict=True)}) == 9
    torch.testing.assert_close(advantage[..., 0, 0], known[row, column], atol=1e-4, rtol=0)
    others = CLIMBING - CLIMBING.mean(1, keepdim=True)
    torch.testing.assert_close(advantage[..., 1, 0], others[row, column])
    live = window.acted[:-1].unsqueeze(-1).unsqueeze(-1)
    wanted = -(advantage * 0.5 * (taken - 1 / 3) * live).sum((0, 1, 2)) / (live.sum() * 2)  # the floor halves slopes
    bias = algorithm.policy.net.nets["agent"].core.head.bias
    torch.testing.assert_close(bias.grad, wanted, atol=1e-4, rtol=0)


def test_the_critic_learns_climbing_and_values_uniform_play_as_known():
    settings = {"gamma": 0.0, "critic_hidden": (64,), "critic_chunks": 2}
    algorithm, _, _ = train(climbing(7), 120, lr=1e-9, critic_lr=1e-2, **settings)
    table = torch.zeros(3, 3)
    for column in range(3):
        joint = torch.zeros(1, 6)
        joint[0, 3 + column] = 1
        q, _ = algorithm.critic({"agent": torch.ones(1, 2, 1)}, None, joint, None, None, {})
        table[:, column] = q[0, 0].detach()
    torch.testing.assert_close(table, CLIMBING, atol=1.0, rtol=0)
    assert table.mean().item() == pytest.approx(-3.4444, abs=0.5)
    assert table.mean(1).tolist() == pytest.approx([-6.3333, -7.6667, 3.6667], abs=0.6)
    assert table.mean(0).tolist() == pytest.approx([-6.3333, -5.6667, 1.6667], abs=0.6)


def targets(algorithm, window, q):
    """Targets [T, B, N] where the target critic says q(obs)."""
    algorithm.target.module = Table(lambda obs, joint: q(obs))
    vectors = algorithm._joint.vectors(window.action)
    pi = torch.full((algorithm.horizon + 1, *window.alive.shape[1:], 2), 0.5)
    joint = algorithm._joint_action(vectors, pi[-1], window)
    return algorithm._targets(window, window.obs, joint, None, pi, vectors["agent"])


@pytest.mark.parametrize("limit", [True, False])
def test_a_limit_is_bootstrapped_through_and_an_end_is_not(limit):
    """gamma 0.9, lambda 0.8, r = 1, Q = [1, 2, 3, 4] over an episode of three steps."""
    world = Probe(show_age, lambda x, age, d, c: torch.ones(len(x), 1), length=3, limit=limit)
    algorithm, collector = learner(world, horizon=4, gamma=0.9, td_lambda=0.8)
    found = targets(algorithm, window_of(algorithm, collector), lambda age: (age + 1).expand(*age.shape[:-1], 2))
    known = [4.85344, 4.852, 4.6] if limit else [2.9872, 2.26, 1.0]
    assert found[:3, 0, 0].tolist() == pytest.approx(known, abs=1e-5)


def test_values_are_those_of_the_action_taken_and_behind_the_window_the_average():
    """Q = [10 age, 10 age + 1]; the window ends in the middle of an episode."""
    algorithm, collector = learner(Probe(show_age, pay_nothing, length=9), horizon=3, gamma=1.0, td_lambda=0.0)
    window = window_of(algorithm, collector)
    found = targets(algorithm, window, lambda age: 10 * age + torch.tensor([0.0, 1.0]))
    taken = window.action["agent"].discrete[..., 0].float()
    assert 0 < taken.mean() < 1
    torch.testing.assert_close(found[:2], 10 * torch.tensor([1.0, 2.0]).view(2, 1, 1) + taken[1:])
    torch.testing.assert_close(found[2], torch.full((16, 1), 30.5))


def test_what_the_others_do_behind_the_window_is_drawn_from_the_policy():
    world = Probe(show_nothing, pay_nothing, n=2, length=9)
    algorithm, collector = learner(world, 4000, horizon=1)
    window = window_of(algorithm, collector)
    pi = torch.tensor([[0.8, 0.2], [0.1, 0.9]]).expand(4000, 2, 2)
    joint = algorithm._joint_action(algorithm._joint.vectors(window.action), pi, window)
    torch.testing.assert_close(joint[1].mean(0), torch.tensor([0.8, 0.2, 0.1, 0.9]), atol=0.03, rtol=0)
    assert (joint.view(2, 4000, 2, 2).sum(-1) == 1).all()


def test_a_team_is_paid_its_mean_or_each_its_own():
    pay = lambda x, age, d, c: torch.tensor([1.0, 3.0]).expand(len(x), 2)  # noqa: E731
    for team_reward, known in ((True, [2.0, 2.0]), (False, [1.0, 3.0])):
        algorithm, collector = learner(Probe(show_nothing, pay, n=2), horizon=1, team_reward=team_reward)
        window = window_of(algorithm, collector)
        found = targets(algorithm, window, lambda obs: torch.zeros(*obs.shape[:-1], 2))
        assert found[0, 0].tolist() == known


# -------------------------------------------------------------------------------------------------------- invariants


def decide(algorithm):
    """Heads of the actor so large that its choices are far from uniform."""
    with torch.no_grad():
        for net in algorithm.policy.net.nets.values():
            net.core.head.weight.mul_(300)


def noted(algorithm, window):
    """Log-probability of what was done [T, B, N] as the learner computes it on the window, as one sequence."""
    vectors = algorithm._joint.vectors(window.action)
    last = algorithm._last(vectors, window, coma.onpolicy.live(window))
    obs = algorithm.policy.scale(window.obs)
    log_pi = algorithm.policy.choices(obs, window.action_mask, window.first, window.carry, last)
    return torch.where(coma.beside(vectors) > 0, log_pi[:-1], 0.0).sum(-1)


@pytest.mark.parametrize(("kind", "memory"), list(itertools.product(KINDS, ("none", "gru", "lstm"))))
@pytest.mark.parametrize("settings", [{}, {"last_action": True, "critic_last_action": True, "critic": "joint_state"}])
def test_acting_and_learning_mix_the_same_policy(kind, memory, settings):
    """Masks, deaths, resets and short sequences included; the control learns with another floor."""
    algorithm, collector = learner(
        Everything(kind), memory=memory, sequence=4, normalise_obs=True, minibatches=2, critic_chunks=2, **settings
    )
    decide(algorithm)
    for progress in (0.0, 0.3, 0.6):  # the floor and the carried memory change from window to window
        window = window_of(algorithm, collector)
        pieces = algorithm._cut(window)
        assert pieces.copies == 48
        live = coma.onpolicy.live(pieces)
        wanted = coma.onpolicy.sequences(window.record["log_prob"], 4)[live]
        torch.testing.assert_close(noted(algorithm, pieces)[live], wanted, atol=1e-5, rtol=0)
        epsilon, algorithm.policy.epsilon = algorithm.policy.epsilon, algorithm.policy.epsilon / 2
        assert (noted(algorithm, pieces)[live] - wanted).abs().max() > 1e-2 * epsilon
        algorithm.policy.epsilon = epsilon
        metrics = algorithm.update(window, progress)
        assert all(abs(value) < 1e9 for value in metrics.values())


@pytest.mark.parametrize("share", ["role", "all", "none"])
def test_parameters_can_be_shared_in_every_way(share):
    algorithm, collector = learner(Everything("multi_discrete", alike=True), share=share, memory="gru")
    metrics = algorithm.update(window_of(algorithm, collector), 0.0)
    assert metrics["policy/grad_norm"] > 0
    assert metrics["value/grad_norm"] > 0


def test_pictures_are_read():
    world = Probe(lambda x, age: x.view(-1, 1, 1, 1, 1).expand(-1, 1, 6, 6, 1), pay_nothing, n=2)
    (role,) = world.spec.roles
    picture = spaces.Box(0.0, 1.0, (6, 6, 1))
    world.spec = type(world.spec)("picture", (type(role)(**{**vars(role), "observation_space": picture}),), {})
    world.view = lambda state: type(view)({"agent": state["x"].view(-1, 1, 1, 1, 1).expand(-1, 2, 6, 6, 1)})
    view = Probe.view(Probe(show_x, pay_nothing, n=2), {"x": torch.zeros(1), "age": torch.zeros(1)})
    algorithm, collector = learner(world)
    COMA.capabilities.require("coma", algorithm.team)
    assert algorithm.update(window_of(algorithm, collector), 0.0)["policy/grad_norm"] > 0


def weights(algorithm):
    return tree_leaves({**algorithm.state_dict()["policy"]["module"], **algorithm.critic.state_dict()})


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_dead_places_changes_no_weight(kind, memory):
    """NaN and a million there leave the same bits, and these are finite."""
    found = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            Everything(kind, dead), memory=memory, normalise_obs=True, last_action=True, critic_last_action=True,
            normalise_advantage=True, epochs=2,
        )  # fmt: skip
        for _ in range(2):
            window = window_of(algorithm, collector)
            assert not window.alive.all()
            algorithm.update(window, 0.0)
        found.append(weights(algorithm))
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("closing", [True, False])
def test_closing_rows_are_not_learned_from(closing):
    """What is seen and done there, behind an end, changes no bit; the control changes rows that were acted on."""
    found = []
    for shift in (0.0, 100.0):
        algorithm, collector = learner(Probe(show_age, pay_nothing, length=3))
        window = window_of(algorithm, collector)
        rows = (~window.acted if closing else window.acted)[:-1]
        assert rows.sum() == (48 if closing else 144)
        window.obs["agent"][:-1][rows] += shift
        window.action["agent"].discrete[rows] = int(shift > 0)
        algorithm.update(window, 0.0)
        found.append(weights(algorithm))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True)) == closing


@pytest.mark.parametrize("others_matter", [False, True])
def test_an_irrelevant_team_mate_gets_no_credit(monkeypatch, others_matter):
    """Only agent 0 decides what the team earns: agent 1's advantage is about 0, agent 0's is not. In the control both
    decide.
    """
    pay = lambda x, age, d, c: (d[:, :1] + others_matter * d[:, 1:]).float() * 4  # noqa: E731
    algorithm, collector, _ = train(Probe(show_nothing, pay, n=2), 200, lr=1e-9, critic_lr=1e-2)
    seen = spied(monkeypatch)
    window = window_of(algorithm, collector)
    algorithm.update(window, 0.0)
    size = seen[0][3][..., 0][window.acted[:-1]].abs().mean(0).tolist()
    assert size[0] > 1.5
    assert size[1] > 1.5 if others_matter else size[1] < 0.15


def test_the_advantage_of_a_learner_has_mean_zero_over_its_policy(monkeypatch):
    """With masks and floor, every agent, every component; the control leaves the floor out of the baseline."""
    seen = spied(monkeypatch)
    algorithm, collector = learner(Everything("multi_discrete"), epsilon=0.5)
    decide(algorithm)
    window = window_of(algorithm, collector)
    algorithm.update(window, 0.0)
    ((q, pi, _, _),) = seen
    live = coma.onpolicy.live(window)
    every = torch.eye(5).view(5, 1, 1, 1, 5)

    def mean(baseline):
        advantage = coma.by_component(q * every, algorithm._component) - coma.by_component(
            q * baseline, algorithm._component
        )
        own = coma.by_component(every * pi, algorithm._component)  # the probability of a choice, in its component
        return (own * advantage).sum(0)[live].abs().max()

    assert mean(pi) < 1e-5
    algorithm.policy.epsilon = 0.0
    plain = algorithm.policy.choices(window.obs, window.action_mask, None, {}, None)[:-1].exp()
    assert mean(plain) > 1e-2


def test_components_that_a_role_lacks_do_not_enter_the_scale_of_advantages(monkeypatch):
    """Guards choose twice and the scout once: what it lacks is neither counted as a zero nor reported as one."""
    algorithm, collector = learner(Everything("multi_discrete"), normalise_advantage=True, lr=1e-6, critic_lr=1e-6)
    seen, scaled, original = spied(monkeypatch), [], coma.standardise

    def spy(x, weight):
        scaled.append(original(x, weight))
        return scaled[-1]

    monkeypatch.setattr(coma, "standardise", spy)
    window = window_of(algorithm, collector)
    metrics = algorithm.update(window, 0.0)
    ((_, _, _, gain),) = seen
    there = onpolicy.live(window)[..., None] & torch.tensor([[True, True], [True, True], [True, False]])
    held = gain[there].double()
    assert held.mean().abs() > 0.01  # the control: zeros among them would move mean and spread
    expected = (held - held.mean()) / held.std(correction=0)
    torch.testing.assert_close(scaled[0][there].double(), expected, atol=1e-5, rtol=1e-5)
    one, other = scaled[0][..., 0], torch.where(there[..., 1], scaled[0][..., 1], scaled[0][..., 0])
    mean = ((one + other) / 2)[onpolicy.live(window)].mean()
    assert metrics["policy/advantage"] == pytest.approx(mean.item(), abs=1e-6)


def test_the_floor_is_explored_with_and_not_evaluated_with():
    """A policy that is sure: explore draws the other two choices with a third of epsilon, sample never; a masked choice
    is never drawn.
    """
    mask = torch.tensor([True, True, True, False])
    world = Probe(show_nothing, pay_nothing, actions=spaces.Discrete(4), mask=mask)
    algorithm, _ = learner(world, epsilon=0.3)
    with torch.no_grad():
        algorithm.policy.net.nets["agent"].core.head.bias[0] = 50
    rows = 20_000
    everyone = torch.ones(rows, 1, dtype=torch.bool)
    row = Row(
        {"agent": torch.zeros(rows, 1, 1)}, {"agent": mask.expand(rows, 1, 4)}, {}, everyone, everyone, everyone[:, 0]
    )
    (noise,) = algorithm.policy.noise(1, rows, torch.Generator().manual_seed(0))
    share = {}
    for mode in ("explore", "sample", "greedy"):
        action, _, _ = algorithm.policy.act(row, {}, noise, mode)
        share[mode] = (torch.bincount(action["agent"].discrete.flatten(), minlength=4) / rows).tolist()
    assert share["explore"] == pytest.approx([0.8, 0.1, 0.1, 0.0], abs=0.01)
    assert share["explore"][3] == 0
    assert share["sample"] == share["greedy"] == [1, 0, 0, 0]


def test_target_networks_follow_softly_or_as_a_whole():
    algorithm, collector = learner(climbing(), target_every=None, tau=0.25, critic_chunks=1)
    before = [p.clone() for p in algorithm.target.module.parameters()]
    mixed = before
    for _ in range(3):
        algorithm.update(window_of(algorithm, collector), 0.0)
        mixed = [m + 0.25 * (p.detach() - m) for m, p in zip(mixed, algorithm.critic.parameters(), strict=True)]
    for own, wanted, start in zip(algorithm.target.module.parameters(), mixed, before, strict=True):
        torch.testing.assert_close(own, wanted)
        assert not torch.equal(own, start)
    algorithm, collector = learner(climbing(), target_every=2)
    start = [p.clone() for p in algorithm.target.module.parameters()]
    for copied in (False, True, False):
        algorithm.update(window_of(algorithm, collector), 0.0)
        pairs = list(zip(algorithm.target.module.parameters(), algorithm.critic.parameters(), strict=True))
        assert all(torch.equal(own, online) for own, online in pairs) == copied
    assert not any(torch.equal(own, first) for (own, _), first in zip(pairs, start, strict=True))


@pytest.mark.parametrize(
    ("chunks", "rows"), [(1, [[0, 1, 2, 3, 4]]), (2, [[2, 3, 4], [0, 1]]), (99, [[4], [3], [2], [1], [0]])]
)
def test_the_critic_goes_backwards_in_time_and_advantages_are_from_before_each_step(monkeypatch, chunks, rows):
    algorithm, collector = learner(Probe(show_age, pay_nothing, length=9), horizon=5, critic_chunks=chunks)
    seen, read, values = spied(monkeypatch), [], []

    def note(module, args, out):
        read.append(args[0]["agent"][:, 0, 0, 0].tolist())
        values.append(out[0].detach().clone())

    algorithm.critic.register_forward_hook(note)
    algorithm.update(window_of(algorithm, collector), 0.0)
    assert read == rows
    assert algorithm._critic_step.state_dict()["value"]["step"] == len(rows)
    ((q, _, _, _),) = seen
    assert torch.equal(q, torch.cat(values[::-1]))
    window = window_of(algorithm, collector)
    after, _ = algorithm.critic(window.obs, None, torch.zeros(6, 16, 2), None, None, {})
    assert not torch.equal(after[:-1], q)  # the control: values move with the steps


@pytest.mark.parametrize(("kind", "memory"), list(itertools.product(KINDS, ("none", "gru", "lstm"))))
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(kind, memory):
    settings = {
        "memory": memory, "sequence": 4, "batch": 10, "minibatches": 2, "last_action": True, "critic_last_action": True,
        "normalise_obs": True, "epsilon_steps": 3000, "target_every": 3,
    }  # fmt: skip
    algorithm, collector = learner(Everything(kind), **settings)
    for _ in range(2):
        algorithm.update(window_of(algorithm, collector), 0.1)
    states = copy.deepcopy((algorithm.state_dict(), collector.state_dict()))
    other, fresh = learner(Everything(kind), **settings)
    other.load_state_dict(states[0])
    fresh.load_state_dict(states[1])
    assert other.policy.epsilon == algorithm.policy.epsilon < 0.5
    for _ in range(2):
        first = algorithm.update(window_of(algorithm, collector), 0.2)
        second = other.update(window_of(other, fresh), 0.2)
        assert first == second
    for one, another in zip(tree_leaves(algorithm.state_dict()), tree_leaves(other.state_dict()), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(another))
    assert algorithm.state_dict()["target"]["calls"] == 4 * 2


def test_minibatches_deal_the_sequences_out_and_batches_draw_them():
    algorithm, _ = learner(climbing(), sequence=4, minibatches=3)
    dealt = algorithm._deal(48)
    assert sorted(torch.cat(dealt).tolist()) == list(range(48))
    algorithm, _ = learner(climbing(), sequence=4, minibatches=3, batch=10)
    drawn = algorithm._deal(48)
    assert [len(set(part.tolist())) for part in drawn] == [10, 10, 10]
    assert len({*torch.cat(drawn).tolist()}) < 30  # drawn anew for each


def test_schedules_move_with_the_progress_of_the_run_or_with_steps():
    algorithm, collector = learner(
        climbing(), lr=1e-3, lr_schedule="linear", lr_end=0.1, critic_lr=1e-2, critic_lr_schedule="exponential",
        critic_lr_end=0.01, epsilon=0.5, epsilon_end=0.1, entropy_coef=0.2, entropy_schedule="linear", entropy_end=0.5,
    )  # fmt: skip
    half = algorithm.update(window_of(algorithm, collector), 0.5)
    assert half["policy/lr"] == pytest.approx(0.55e-3)
    assert half["value/lr"] == pytest.approx(1e-3)
    assert half["policy/entropy_coef"] == pytest.approx(0.15)
    assert half["policy/epsilon"] == 0.5  # as it was collected
    assert algorithm.policy.epsilon == pytest.approx(0.3)
    settings = {"epsilon": 1.0, "epsilon_end": 0.01, "epsilon_schedule": "exponential", "epsilon_steps": 192}
    algorithm, collector = learner(climbing(), **settings)
    algorithm.update(window_of(algorithm, collector), 0.9)  # 16 copies act in 6 of 12 rows
    assert algorithm.policy.epsilon == pytest.approx(0.1)
    for _ in range(2):
        algorithm.update(window_of(algorithm, collector), 0.9)
    assert algorithm.policy.epsilon == pytest.approx(0.01)


def test_shapes_and_settings_that_do_not_fit_are_one_line():
    with pytest.raises(UserError, match=r"algo.sequence=5 does not divide the horizon of 12"):
        learner(climbing(), sequence=5)
    with pytest.raises(UserError, match="share=role"):
        learner(Everything(), share="all")
    with pytest.raises(UserError, match="needs an environment state"):
        learner(climbing(), critic="state")
    with pytest.raises(UserError, match=r"algo.batch=17 is more than a window's 16 sequences"):
        learner(climbing(), batch=17)
    with pytest.raises(UserError, match=r"algo.epsilon_end=0 is never reached exponentially"):
        learner(climbing(), epsilon_end=0.0, epsilon_schedule="exponential")
    continuous = env_of(Probe(show_nothing, pay_nothing, actions=spaces.Box(-1.0, 1.0, (1,))))
    with pytest.raises(UserError, match="does not support the continuous actions"):
        COMA.capabilities.require("coma", continuous.spec.default_teams()[0])


def test_what_is_not_a_number_stops_the_run_by_name():
    algorithm, collector = learner(climbing())
    window = window_of(algorithm, collector)
    with torch.no_grad():
        next(algorithm.critic.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"loss/value.* became NaN or infinite in part 0"):
        algorithm.update(window, 0.0)
