"""PPO, IPPO and MAPPO: invariants that need no training, and probes with known answers and their negative controls."""

import itertools

import pytest
import torch
from gymnasium import spaces

from algos.worlds import Everything, Probe, env_of
from coterie.algos.ppo import PPO, PPOConfig
from coterie.collect import Collector
from coterie.errors import UserError
from coterie.types import tree_leaves

CPU = torch.device("cpu")


def learner(world, copies=16, **settings):
    """A learner of the world's only team, and the collector that feeds it."""
    env = env_of(world, copies)
    (team,) = env.spec.default_teams()
    algorithm = PPO(team, PPOConfig(**{"hidden": (16, 16), "horizon": 12} | settings), copies, None, 0, CPU)
    return algorithm, Collector(env, {team.name: algorithm.policy}, seed=0)


def train(world, updates, copies=64, **settings):
    """A learner after so many updates, its collector, and the last metrics."""
    quick = {"horizon": 8, "epochs": 8, "lr": 1e-2, "entropy_coef": 0.0, "gamma": 0.9, "value_clip_eps": None}
    algorithm, collector = learner(world, copies, **quick | settings)
    metrics = {}
    for _ in range(updates):
        (window,) = collector.advance(algorithm.horizon)[0].values()
        metrics = algorithm.update(window, 0.0)
    return algorithm, collector, metrics


def values(algorithm, collector):
    """Values [T + 1, B, N] of a fresh window, and the window."""
    (window,) = collector.advance(algorithm.horizon)[0].values()
    with torch.no_grad():
        batch, _ = algorithm._targets(window)
        mean, scale = algorithm._value_scale()
    return batch.value[..., 0] * scale + mean, window


def mean_reward(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window.reward[window.acted[:-1]].mean().item()


# -------------------------------------------------------------------------------------------------------- invariants

CRITICS = ("own", "joint", "state", "joint_state")


@pytest.mark.parametrize(
    ("kind", "memory", "critic"), list(itertools.product(Everything.KINDS, ("none", "gru", "lstm"), CRITICS))
)
def test_the_ratio_is_one_in_the_first_epoch(kind, memory, critic):
    """For every live sample, whatever the actions, masks, deaths, resets and sequences shorter than the window."""
    algorithm, collector = learner(
        Everything(kind), memory=memory, memory_size=8, sequence=4 if memory != "none" else None, critic=critic,
        epochs=1, normalise_obs=True,
    )  # fmt: skip
    for _ in range(3):  # the memory carried from window to window as well
        (window,) = collector.advance(algorithm.horizon)[0].values()
        metrics = algorithm.update(window, 0.0)
        assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["policy/clip_fraction"] == 0
        assert all(abs(value) < 1e9 for value in metrics.values())


@pytest.mark.parametrize("share", ["role", "all", "none"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_ratio_is_one_however_parameters_are_shared(share, memory):
    world = Everything("multi_discrete", alike=True)
    algorithm, collector = learner(world, share=share, memory=memory, memory_size=8, epochs=1, state_std=True)
    (window,) = collector.advance(algorithm.horizon)[0].values()
    metrics = algorithm.update(window, 0.0)
    assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["policy/grad_norm"] > 0


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("critic", CRITICS)
def test_what_stands_in_dead_places_changes_no_weight(critic, memory):
    """NaN and a million there leave the same bits, and these are finite."""
    weights = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            Everything("hybrid", dead), critic=critic, memory=memory, memory_size=8, epochs=2, normalise_obs=True
        )
        for _ in range(2):
            (window,) = collector.advance(algorithm.horizon)[0].values()
            assert not window.alive.all()
            algorithm.update(window, 0.0)
        weights.append(tree_leaves({**algorithm.state_dict()["policy"]["module"], **algorithm.critic.state_dict()}))
    for one, other in zip(*weights, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


def test_closing_rows_are_not_learned_from():
    """What was noted there, a log-probability of a million, would show in the divergence."""
    algorithm, collector = learner(Probe(see=lambda x, age: age.view(-1, 1, 1), pay=pay_nothing, length=3))
    (window,) = collector.advance(12)[0].values()
    closing = ~window.acted[:-1]
    assert closing.sum() == 16 * 3
    window.record["log_prob"][closing] = 1e6
    assert algorithm.update(window, 0.0)["policy/kl"] < 1
    algorithm, collector = learner(Probe(see=lambda x, age: age.view(-1, 1, 1), pay=pay_nothing, length=3))
    (window,) = collector.advance(12)[0].values()
    window.record["log_prob"][window.acted[:-1]] = 1e6  # the control: rows that were acted on
    assert algorithm.update(window, 0.0)["policy/kl"] > 1


def pay_nothing(x, age, discrete, continuous):
    return torch.zeros(len(x), 1)


def test_agents_without_sharing_learn_apart():
    """A gradient of one agent's loss leaves the other's weights alone."""
    algorithm, collector = learner(
        Probe(see=lambda x, age: x.view(-1, 1, 1), pay=lambda x, age, d, c: d.float(), n=2), share="none"
    )
    (window,) = collector.advance(12)[0].values()
    with torch.no_grad():
        batch, _ = algorithm._targets(window)
    log_prob, _ = algorithm.policy.evaluate(
        {"agent": batch.obs["agent"].flatten(0, 1)},
        {},
        {"agent": type(batch.action["agent"])(batch.action["agent"].discrete.flatten(0, 1))},
        None,
        {},
    )
    algorithm.policy.module.zero_grad()
    log_prob[..., 0].sum().backward()
    for p in algorithm.policy.module.parameters():
        assert p.grad is not None
        assert p.grad[0].abs().sum() > 0
        assert p.grad[1].abs().sum() == 0


def test_a_critic_of_the_team_is_evaluated_once_a_copy():
    algorithm, _ = learner(Everything("discrete", alike=True), critic="joint")
    rows = []
    algorithm.critic.core.register_forward_pre_hook(lambda module, args: rows.append(args[0].shape))
    obs = {"guard": torch.zeros(7, 2, 5), "scout": torch.zeros(7, 1, 5)}
    value, _ = algorithm.critic(obs, None, None, {})
    assert rows == [(7, 1, 15)]
    assert value.shape == (7, 3, 1)


def test_a_target_divergence_stops_the_epochs():
    world = Probe(see=lambda x, age: x.view(-1, 1, 1), pay=lambda x, age, d, c: d.float())
    _, _, free = train(world, 1, lr=0.1, epochs=20)
    _, _, stopped = train(world, 1, lr=0.1, epochs=20, target_kl=0.01)
    assert free["policy/epochs"] == 20
    assert stopped["policy/epochs"] < 20


def test_schedules_move_with_the_progress_of_the_run():
    algorithm, collector = learner(
        Everything(),
        lr=1e-3,
        lr_schedule="linear",
        lr_end=0.1,
        entropy_coef=0.02,
        entropy_schedule="exponential",
        entropy_end=0.01,
    )
    (window,) = collector.advance(12)[0].values()
    half = algorithm.update(window, 0.5)
    assert half["policy/lr"] == pytest.approx(0.55e-3)
    assert half["policy/entropy_coef"] == pytest.approx(0.002)


def test_values_do_not_move_when_their_scale_is_learned():
    """A network that learns on a scale that moves says the same of the world. That advantages are of de-normalised
    values: test_answers.py.
    """
    world = Probe(see=lambda x, age: x.view(-1, 1, 1), pay=lambda x, age, d, c: torch.full((len(x), 1), 50.0))
    algorithm, collector, _ = train(world, 40)
    value, window = values(algorithm, collector)
    torch.testing.assert_close(
        value[window.acted[:-1]], torch.full_like(value[window.acted[:-1]], 50.0), atol=1, rtol=0
    )


def test_group_rewards_reach_every_member_once_and_team_rewards_are_the_mean():
    algorithm, collector = learner(Everything(alike=True, dead=0.0))
    (window,) = collector.advance(12)[0].values()
    from coterie.algos import onpolicy

    own = onpolicy.paid(window, algorithm._members, True, False)
    torch.testing.assert_close(own, window.reward + window.group_reward)
    shared = onpolicy.paid(window, algorithm._members, True, True)
    torch.testing.assert_close(shared, own.mean(-1, keepdim=True).expand_as(own))


def test_a_team_that_still_lives_carries_its_dead():
    """Posthumous credit: an independent learner's future ends with its agent, a team's with the last member."""
    from coterie.algos import onpolicy

    _, collector = learner(Everything(alike=True))
    (window,) = collector.advance(40)[0].values()
    alone, _ = onpolicy.ends(window, as_team=False, mortal=True)
    team, stop = onpolicy.ends(window, as_team=True, mortal=True)
    died_early = window.terminated & ~window.episode_terminated[..., None] & window.alive[1:].any(-1, keepdim=True)
    assert died_early.any()
    assert alone[died_early].all()
    assert not team[died_early].any()
    last = window.terminated.any(-1) & ~window.alive[1:].any(-1)
    assert team[last].all()
    assert stop[~window.acted[:-1]].all()


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
    with pytest.raises(UserError, match="needs an environment state"):
        learner(Probe(see=lambda x, age: x.view(-1, 1, 1), pay=pay_nothing), critic="state")


# ------------------------------------------------------------------------------------------------------------ probes


def show_x(x, age):
    return x.view(-1, 1, 1)


def show_nothing(x, age):
    return torch.zeros(len(x), 1, 1)


@pytest.mark.parametrize("limit", [True, False])
def test_probe_endless_reward_under_a_limit_is_worth_ten(limit):
    """With gamma 0.9; the control counts the limit as an end, and gets less."""
    world = Probe(show_nothing, lambda x, age, d, c: torch.ones(len(x), 1), length=5, limit=limit)
    algorithm, collector, _ = train(world, 60, horizon=12)
    value, window = values(algorithm, collector)
    found = value[window.acted[:-1]].mean().item()
    assert found == pytest.approx(10, abs=0.5) if limit else found < 4.2


@pytest.mark.parametrize("masked", [True, False])
def test_probe_best_action_that_is_masked_is_left(masked):
    """The control masks nothing, and the best is taken."""
    mask = torch.tensor([True, True, not masked])
    world = Probe(show_nothing, lambda x, age, d, c: d.float(), actions=spaces.Discrete(3), mask=mask)
    algorithm, collector, _ = train(world, 20)
    assert mean_reward(algorithm, collector) == pytest.approx(1.0 if masked else 2.0, abs=0.03)


@pytest.mark.parametrize("memory", ["gru", "lstm", "none"])
def test_probe_cue_is_remembered(memory):
    """Seen in the first row, asked for in the third; without memory nobody knows it."""
    world = Probe(
        lambda x, age: torch.stack([(2 * x - 1) * (age == 0), (age == 2).float()], -1).unsqueeze(1),
        lambda x, age, d, c: ((d == x.view(-1, 1)) & (age == 2).view(-1, 1)).float(),
        size=2,
        length=3,
    )
    algorithm, collector, _ = train(world, 60, memory=memory, memory_size=16, horizon=16, lr=5e-3)
    found = 4 * mean_reward(algorithm, collector) * 3 / 4  # a third of the acted rows can pay
    assert found > 0.9 if memory != "none" else found < 0.65


@pytest.mark.parametrize(("share", "agent_id"), [("all", True), ("none", False), ("role", False)])
def test_probe_roles_that_see_the_same_are_told_apart(share, agent_id):
    """Agent 0 is to choose 0, agent 1 is to choose 1; parameters shared without an id cannot."""
    world = Probe(show_nothing, lambda x, age, d, c: (d == torch.tensor([0, 1])).float(), n=2)
    algorithm, collector, _ = train(world, 30, share=share, agent_id=agent_id)
    found = mean_reward(algorithm, collector)
    assert found > 0.95 if share != "role" else found < 0.7
