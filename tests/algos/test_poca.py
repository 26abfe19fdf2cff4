"""MA-POCA: invariants that need no training, and probes with known answers and their negative controls."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch

from algos.groups import Crowd, Sacrifice
from algos.worlds import Everything, Probe, env_of
from coterie.algos import onpolicy
from coterie.algos.poca import POCA, POCAConfig, extrinsic
from coterie.algos.streams import Stream
from coterie.collect import Collector
from coterie.errors import UserError
from coterie.types import tree_leaves

CPU = torch.device("cpu")


def build(world, copies=16, streams=(), **settings):
    """A learner of the world's only team, and the environment."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    small = {"hidden": (16,), "embedding": 8, "horizon": 12, "activation": "tanh", "minibatches": 1}
    return POCA(team, POCAConfig(**small | settings), copies, None, 0, CPU, streams), env


def learner(world, copies=16, streams=(), **settings):
    """A learner of the world's only team, and the collector that feeds it."""
    algorithm, env = build(world, copies, streams, **settings)
    return algorithm, Collector(env, {algorithm.team.name: algorithm.policy}, seed=0)


def window_of(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window


def train(world, updates, copies=64, streams=(), prepare=None, earning=None, **settings):
    """A learner after so many updates, and its collector; prepare: called with the learner before the first;
    earning: gives windows their streams.
    """
    quick = {"horizon": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "gamma": 0.9, "value_clip_eps": None}
    algorithm, collector = learner(world, copies, streams, **quick | settings)
    if prepare is not None:
        prepare(algorithm)
    for _ in range(updates):
        window = window_of(algorithm, collector)
        algorithm.update(window if earning is None else earning(window), 0.0)
    return algorithm, collector


def read(algorithm, window):
    """V [T, B] and baselines [T, B, N] of the environment's reward, on its scale."""
    with torch.no_grad():
        batch, _, _ = algorithm._targets(window)
        mean, scale = algorithm._value_scale()
    values = (batch.value * scale + mean)[..., 0]
    return values[..., 0], values[..., 1:]


def mean_reward(algorithm, collector):
    window = window_of(algorithm, collector)
    return window.reward[window.acted[:-1]].mean().item()


def weights(algorithm):
    state = algorithm.state_dict()
    return [x.clone() for x in tree_leaves({**state["policy"]["module"], **state["critic"]})]


# -------------------------------------------------------------------------------------------------------- invariants

MEMORIES = ("none", "gru", "lstm")


@pytest.mark.parametrize(("kind", "memory"), list(itertools.product(Everything.KINDS, MEMORIES)))
def test_the_ratio_is_one_in_the_first_epoch(kind, memory):
    """For every live sample, whatever the actions, masks, deaths, resets and sequences shorter than the window."""
    algorithm, collector = learner(
        Everything(kind), memory=memory, memory_size=8, sequence=4 if memory != "none" else None, epochs=1,
        normalise_obs=True,
    )  # fmt: skip
    for _ in range(3):  # the memory carried from window to window as well
        metrics = algorithm.update(window_of(algorithm, collector), 0.0)
        assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["policy/clip_fraction"] == 0
        assert all(abs(value) < 1e9 for value in metrics.values())
        assert metrics["value/grad_norm"] > 0


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_critic_reads_sequences_as_it_read_the_window(memory):
    """Before the first step the value loss is that of the old values; otherwise they are clipped against others."""
    algorithm, collector = learner(
        Everything(), memory=memory, memory_size=8, sequence=4 if memory != "none" else None, epochs=1
    )
    for _ in range(2):
        window = window_of(algorithm, collector)
        kept = algorithm._carry, algorithm._value_moments
        with torch.no_grad():
            batch, _, _ = algorithm._targets(window)
        algorithm._carry, algorithm._value_moments = kept
        half = (batch.value - batch.target).square()[..., 0] / 2
        metrics = algorithm.update(window, 0.0)
        assert metrics["loss/value"] == pytest.approx(half[..., 0][batch.live.any(-1)].mean().item(), rel=1e-4)
        assert metrics["loss/baseline"] == pytest.approx(half[..., 1:][batch.live].mean().item(), rel=1e-4)


@pytest.mark.parametrize("share", ["role", "all", "none"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_actors_are_shared_as_asked(share, memory):
    world = Everything("multi_discrete", alike=True)
    algorithm, collector = learner(world, share=share, memory=memory, memory_size=8, epochs=1, state_std=True)
    metrics = algorithm.update(window_of(algorithm, collector), 0.0)
    assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/grad_norm"] > 0


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_what_stands_in_dead_places_changes_no_weight(memory):
    """NaN and a million there leave the same bits, and these are finite."""
    results = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            Everything("hybrid", dead), memory=memory, memory_size=8, epochs=2, normalise_obs=True
        )
        for _ in range(2):
            window = window_of(algorithm, collector)
            assert not window.alive.all()
            algorithm.update(window, 0.0)
        results.append(weights(algorithm))
    for one, other in zip(*results, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def test_closing_rows_are_not_learned_from():
    """What was noted there, a log-probability of a million, would show in the divergence."""
    world = Probe(see=lambda x, age: age.view(-1, 1, 1), pay=lambda x, age, d, c: torch.zeros(len(x), 1), length=3)
    for on_closing_rows in (True, False):
        algorithm, collector = learner(world)
        window = window_of(algorithm, collector)
        closing = ~window.acted[:-1]
        assert closing.sum() == 16 * 3
        window.record["log_prob"][closing == on_closing_rows] = 1e6
        assert (algorithm.update(window, 0.0)["policy/kl"] < 1) == on_closing_rows


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_resumed_learner_goes_on_with_the_same_bits(memory):
    """The control forgets one of the parts of its state."""
    settings = {"memory": memory, "memory_size": 8, "sequence": 4 if memory != "none" else None}
    settings |= {"minibatches": 3, "normalise_obs": True}
    whole, collector = learner(Everything("hybrid"), **settings)
    for _ in range(2):
        whole.update(window_of(whole, collector), 0.2)
    state = copy.deepcopy(whole.state_dict())
    windows = [window_of(whole, collector) for _ in range(2)]  # the policy that collects does not matter here
    for window in windows:
        whole.update(window, 0.4)
    for forgotten in (None, "shuffle", "optimiser", "value_moments", "carry"):
        if forgotten == "carry" and memory == "none":
            continue
        other, _ = build(Everything("hybrid"), **settings)
        fresh = other.state_dict()
        other.load_state_dict(copy.deepcopy(state | ({} if forgotten is None else {forgotten: fresh[forgotten]})))
        for window in windows:
            other.update(window, 0.4)
        same = all(torch.equal(a, b) for a, b in zip(weights(whole), weights(other), strict=True))
        assert same == (forgotten is None), forgotten


def test_schedules_move_with_the_progress_of_the_run():
    algorithm, collector = learner(Everything(), lr=1e-3, entropy_coef=0.02, entropy_end=0.5)
    window = window_of(algorithm, collector)
    half = algorithm.update(window, 0.5)
    assert half["policy/lr"] == pytest.approx(0.5e-3, rel=1e-3)
    assert half["policy/clip_eps"] == pytest.approx(0.15)
    assert half["policy/entropy_coef"] == pytest.approx(0.015)
    end = algorithm.update(window, 1.0)
    assert end["policy/clip_eps"] == pytest.approx(0.1)
    assert end["policy/lr"] < 1e-8
    fixed, collector = learner(Everything(), lr=1e-3, lr_schedule="constant", clip_schedule="constant")
    late = fixed.update(window_of(fixed, collector), 0.9)
    assert (late["policy/lr"], late["policy/clip_eps"]) == (1e-3, 0.2)


def test_shapes_that_do_not_fit_are_one_line():
    with pytest.raises(UserError, match=r"algo.sequence=5 does not divide the horizon of 12"):
        learner(Everything(), memory="gru", sequence=5)
    with pytest.raises(UserError, match="share=role"):
        learner(Everything(), share="all")
    more = r"algo.minibatches=9 is more than a window's 8 sequences \(4 copies x 2\): lower it, or raise copies or"
    with pytest.raises(UserError, match=more):
        learner(Everything(), 4, memory="gru", sequence=6, minibatches=9)
    with pytest.raises(UserError, match=r"algo.minibatches=49 is more than a window's 48 rows"):
        learner(Everything(), 4, minibatches=49)
    with pytest.raises(ValueError, match="multiple of 4"):
        POCAConfig(embedding=30)


# ------------------------------------------------------------------------------------------------- rewards, the dead


def test_every_member_is_paid_what_the_group_and_all_its_members_are():
    algorithm, collector = learner(Everything(dead=0.0))
    window = window_of(algorithm, collector)
    own, group = window.reward, window.group_reward[..., 0]
    torch.testing.assert_close(extrinsic(window)[..., 0], own[..., 0] + own[..., 1] + own[..., 2] + group)


def cut_at_the_agents_end(window, as_team, mortal):
    """The mistake: the future of the first agent ends with its life."""
    return true_ends(window, False, mortal)


true_ends = onpolicy.ends


@pytest.mark.parametrize("mistaken", [False, True])
def test_who_dies_while_the_group_lives_bootstraps_from_the_group(mistaken, monkeypatch):
    """No reward, the next observation of the group worth 0.8, gamma 0.99: 0.792; with the future cut, 0."""
    algorithm, collector = learner(Sacrifice(), td_lambda=0.0, normalise_value=False)
    window = window_of(algorithm, collector)
    if mistaken:
        monkeypatch.setattr(onpolicy, "ends", cut_at_the_agents_end)
    eighty = torch.full((12, 16, 3, 1), 0.8)
    monkeypatch.setattr(algorithm, "_values", lambda *_: (eighty, eighty[:1, :, :1], []))
    target = algorithm._targets(window)[0].target[:, :, 0, 0]
    died = window.terminated[..., 0] & ~window.episode_terminated
    assert died.sum() > 10
    torch.testing.assert_close(target[died], torch.full_like(target[died], 0.0 if mistaken else 0.792))
    last = window.episode_terminated & (window.alive[:-1, :, 0] | (not mistaken))
    torch.testing.assert_close(target[last], window.group_reward[..., 0][last])  # nothing behind the true end


@pytest.mark.parametrize("mistaken", [False, True])
def test_probe_early_sacrifice_is_learned_unless_the_future_is_cut_at_the_agents_end(mistaken, monkeypatch):
    if mistaken:
        monkeypatch.setattr(onpolicy, "ends", cut_at_the_agents_end)
    algorithm, collector = train(Sacrifice(), 25, horizon=16)
    window = window_of(algorithm, collector)
    starts = (window.obs["agent"][:-1, :, 1, 0] == 0) & window.acted[:-1]
    leaving = window.action["agent"].discrete[:, :, 0, 0][starts].float().mean().item()
    assert leaving < 0.1 if mistaken else leaving > 0.9


@pytest.mark.parametrize("counts", [True, False])
def test_probe_the_critic_counts_who_is_there(counts):
    """The control is blind to the count: the mean over members that see the same tells nothing of it."""

    def blind(algorithm):
        algorithm.critic.head.register_forward_pre_hook(lambda _, x: torch.cat([x[0][:, :-1], x[0][:, -1:] * 0], -1))

    algorithm, collector = train(Crowd(), 40, prepare=None if counts else blind)
    window = window_of(algorithm, collector)
    value, _ = read(algorithm, window)
    there = window.alive[:-1].sum(-1).float()[window.acted[:-1]]
    error = (value[window.acted[:-1]] - there).abs().mean().item()
    assert error < 0.15 if counts else error > 0.4


# ----------------------------------------------------------------------------------------------------- reward signals


def with_bonus(window):
    """The window with a stream that pays one for every choice of 1."""
    chosen = window.action["agent"].discrete[..., 0].float()
    return replace(window, streams={"bonus": torch.where(window.acted[:-1, :, None], chosen, 0.0)})


def test_signals_have_values_discounts_and_weights_of_their_own():
    streams = (Stream("extrinsic"), Stream("bonus", strength=3.0, gamma=0.0))
    world = Probe(show_nothing, lambda x, age, d, c: torch.ones(len(x), 1), length=2)
    algorithm, collector = learner(
        world, streams=streams, td_lambda=1.0, gamma=0.5, strength=2.0, normalise_value=False,
        normalise_advantage=False,
    )  # fmt: skip
    window = with_bonus(window_of(algorithm, collector))
    batch, _, _ = algorithm._targets(window)
    assert batch.target.shape == (12, 16, 1, 2)
    assert batch.value.shape == (12, 16, 2, 2)
    acted = window.acted[:-1]
    torch.testing.assert_close(batch.target[0, :, 0, 0], torch.full((16,), 1.5))  # 1 + 0.5, then the end
    torch.testing.assert_close(batch.target[..., 0, 1][acted], window.streams["bonus"][..., 0][acted])
    gap = batch.target[:, :, 0] - batch.value[:, :, 1]
    torch.testing.assert_close(batch.advantage[..., 0], 2.0 * gap[..., 0] + 3.0 * gap[..., 1])


@pytest.mark.parametrize("strength", [1.0, 0.0])
def test_probe_a_second_signal_is_learned_from_as_strongly_as_it_counts(strength):
    streams = (Stream("extrinsic"), Stream("bonus", strength, gamma=0.9))
    world = Probe(show_nothing, lambda x, age, d, c: torch.zeros(len(x), 1))
    algorithm, collector = train(world, 12, streams=streams, earning=with_bonus)
    window = with_bonus(window_of(algorithm, collector))
    chosen = window.streams["bonus"][window.acted[:-1]].mean().item()
    assert chosen > 0.95 if strength else chosen < 0.9
    mean, scale = algorithm._value_scale()
    with torch.no_grad():
        value = (algorithm._targets(window)[0].value * scale + mean)[..., 0, :][window.acted[:-1]].mean(0)
    assert value[0].item() == pytest.approx(0.0, abs=0.1)
    assert value[1].item() == pytest.approx(chosen, abs=0.2)


# ------------------------------------------------------------------------------------------------------------ probes


def show_x(x, age):
    return x.view(-1, 1, 1)


def show_nothing(x, age):
    return torch.zeros(len(x), 1, 1)


@pytest.mark.parametrize("limit", [True, False])
def test_probe_endless_reward_under_a_limit_is_worth_ten(limit):
    """With gamma 0.9; the control counts the limit as an end, and gets less."""
    world = Probe(show_nothing, lambda x, age, d, c: torch.ones(len(x), 1), length=5, limit=limit)
    algorithm, collector = train(world, 60, horizon=12)
    window = window_of(algorithm, collector)
    found = read(algorithm, window)[0][window.acted[:-1]].mean().item()
    assert found == pytest.approx(10, abs=0.5) if limit else found < 4.2


@pytest.mark.parametrize("memory", ["gru", "none"])
def test_probe_cue_is_remembered(memory):
    """Seen in the first row, asked for in the third; without memory nobody knows it."""
    world = Probe(
        lambda x, age: torch.stack([(2 * x - 1) * (age == 0), (age == 2).float()], -1).unsqueeze(1),
        lambda x, age, d, c: ((d == x.view(-1, 1)) & (age == 2).view(-1, 1)).float(),
        size=2,
        length=3,
    )
    algorithm, collector = train(world, 60, memory=memory, memory_size=16, horizon=16, lr=5e-3)
    found = 3 * mean_reward(algorithm, collector)  # a third of the acted rows can pay
    assert found > 0.9 if memory != "none" else found < 0.7


@pytest.mark.parametrize("others_matter", [False, True])
def test_probe_an_irrelevant_team_mate_has_no_advantage(others_matter):
    """The first agent's choice is the reward. Its own baseline does not know it, the other's does. In the control both
    are paid for.
    """
    pay = lambda x, age, d, c: (d[:, :1] + others_matter * d[:, 1:]).float()  # noqa: E731
    world = Probe(lambda x, age: torch.eye(2).expand(len(x), 2, 2), pay, n=2, size=2)
    algorithm, collector = train(world, 40, lr=1e-6, critic_lr=1e-2, normalise_advantage=False)
    window = window_of(algorithm, collector)
    with torch.no_grad():
        advantage = algorithm._targets(window)[0].advantage[window.acted[:-1]]
    own, other = advantage.square().mean(0).sqrt().tolist()
    assert own > 0.8  # both agents are paid what the first one chose: half of 2
    assert other > 0.8 if others_matter else other < 0.1 * own
