"""Q-learning: the loss in numbers, exact solutions of small games, probes with negative controls, and invariants."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from algo_worlds import Everything, Probe, env_of
from coterie.algos.qlearning import QLearning, td_loss
from coterie.algos.weighted_qmix import central_weights, optimistic_weights, weighted_td_loss
from coterie.core.errors import NonFiniteError, UserError
from coterie.core.tree import tree_leaves
from coterie.core.types import Action
from coterie.envs.make import make
from coterie.nets.mixers import greedy_actions, taken_actions
from coterie.training.collector import Collector
from learners import collect_rollout
from learners import q_learner as learner

CPU = torch.device("cpu")
MIXERS = ("none", "vdn", "qmix", "qplex", "qfix_sum")
CENTRAL = {"mixer": "qmix", "weighting": "central"}


def train(env, updates, **settings):
    """Returns a learner after some updates, and its collector."""
    quick = {
        "lr": 1e-2,
        "gamma": 0.9,
        "target_update_interval": 20,
        "batch_size": 64,
        "epsilon_decay_steps": 2000,
        "gradient_steps": 4,
    }
    algorithm, collector = learner(env, **quick | settings)
    for _ in range(updates):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
    return algorithm, collector


def mean_greedy_reward(algorithm, env, steps=24):
    """Returns the greedy policy's mean reward per step, individual and group rewards together."""
    collector = Collector(env, {env.spec.default_teams()[0].name: algorithm.policy}, seed=1)
    epsilon, algorithm.policy.epsilon = algorithm.policy.epsilon, 0.0
    (rollout,) = collector.advance(steps)[0].values()
    algorithm.policy.epsilon = epsilon
    total = rollout.reward.sum(-1) + rollout.group_reward.sum(-1)
    return total[rollout.acted[:-1]].mean().item()


# ------------------------------------------------------------------------------------------------------ pure functions


def test_td_loss_of_literal_numbers():
    """Errors 1, -2, 3 with the last one masked: half of (2 * 1 + 1 * 4) / 2 valid entries."""
    q, target = torch.tensor([[2.0, 1.0, 3.0]]), torch.tensor([[1.0, 3.0, 0.0]])
    valid, weight = torch.tensor([[True, True, False]]), torch.tensor([2.0, 1.0, 1.0])
    assert td_loss(q, target, valid, weight, None).item() == pytest.approx(0.5 * (2 * 1 + 4) / 2)
    assert td_loss(q, target, valid, weight, 1.0).item() == pytest.approx((2 * 0.5 + 1.5) / 2)  # linear beyond 1
    by_agent = td_loss(q.unsqueeze(-1), target.unsqueeze(-1), valid.unsqueeze(-1), weight, None)
    assert by_agent.item() == pytest.approx(1.5)


def test_weighted_td_loss_of_literal_numbers():
    """Errors of Q_tot 1 and -2 with weights 0.5 and 1, of Q* 2 and 0: (0.5 * 0.5 + 2 + 2 * 1) / 2."""
    q, central_q, target = torch.tensor([[2.0, 1.0]]), torch.tensor([[3.0, 3.0]]), torch.tensor([[1.0, 3.0]])
    settings = {"valid": torch.ones(1, 2, dtype=torch.bool), "weight": torch.tensor([[0.5, 1.0]]), "huber_delta": None}
    one = weighted_td_loss(q, central_q, target, importance=torch.ones(2), **settings)
    assert one.item() == pytest.approx((0.5 * 0.5 + 2 + 2) / 2)
    assert weighted_td_loss(q, central_q, target, importance=torch.zeros(2), **settings).item() == 0


def test_joint_action_weights_of_literal_numbers():
    target = torch.tensor([1.0, 3.0])
    assert optimistic_weights(torch.tensor([2.0, 1.0]), target, 0.25).tolist() == [0.25, 1.0]
    greedy = torch.tensor([True, False])
    assert central_weights(greedy, target, torch.tensor([2.0, 4.0]), 0.25).tolist() == [1.0, 0.25]
    assert central_weights(~greedy, target, torch.tensor([2.0, 2.0]), 0.25).tolist() == [0.25, 1.0]


# -------------------------------------------------------------------------------------------------------- exact games


def payoff_table(algorithm, env):
    """Returns Q_tot of each joint action of two agents in a one-shot game, a square matrix."""
    timestep, choices = env.reset(), env.spec.roles[0].action.choices[0]
    state = torch.cat([timestep.state["global"], torch.ones(env.num_envs, 1)], -1)  # all of the time is left
    with torch.no_grad():
        q, _ = algorithm.value.net(algorithm.policy.obs_normalizer(timestep.obs), None, {}, None)
        (block,) = algorithm.policy.blocks
        values = []
        for pair in itertools.product(range(choices), repeat=2):
            actions = {block.name: torch.tensor(pair).view(1, 2, 1).expand(env.num_envs, 2, 1)}
            values.append(
                algorithm.value.evaluate(
                    q,
                    actions,
                    masks={block.name: None},
                    alive=timestep.alive,
                    obs=timestep.obs,
                    state=state,
                )[0]
            )
    return torch.stack(values).view(choices, choices)


def train_on_game(name, updates, **settings):
    """Returns the payoff table that a learner without parameter sharing fits to a matrix game under random play."""
    env = make(f"matrix/{name}", {"episode_limit": 1}, 64, 0, device=CPU, with_state=True)
    uniform = {
        "epsilon_start": 1.0,
        "epsilon_end": 1.0,
        "epsilon_schedule": "constant",
        "share_params": "none",
        "gamma": 0.0,
    }
    algorithm, _ = train(
        env, updates, **uniform | {"rollout_length": 8, "batch_size": 256, "lr": 5e-3, "hidden_sizes": (32,)} | settings
    )
    return payoff_table(algorithm, env)


@pytest.mark.slow
def test_weighted_qmix_finds_the_optimum_that_qmix_misses():
    weighted = train_on_game("monotonic", 120, mixer="qmix", weighting="optimistic", weighting_alpha=0.05)
    assert int(weighted.argmax()) == 0
    assert int(train_on_game("monotonic", 60, mixer="qmix").argmax()) != 0  # negative control: without weights


@pytest.mark.slow
@pytest.mark.parametrize(("mixer", "payoff"), [("qmix", 8), ("vdn", 7)])
def test_mixers_reach_their_known_payoffs_in_the_two_step_game(mixer, payoff):
    env = make("matrix/two_step", {}, 64, 0, device=CPU, with_state=True)
    uniform = {
        "epsilon_start": 1.0,
        "epsilon_end": 1.0,
        "epsilon_schedule": "constant",
        "share_params": "none",
        "gamma": 0.99,
    }
    algorithm, _ = train(
        env,
        150,
        mixer=mixer,
        rollout_length=9,
        batch_size=256,
        lr=5e-3,
        hidden_sizes=(32,),
        target_update_interval=50,
        **uniform,
    )
    assert mean_greedy_reward(algorithm, env) * 2 == pytest.approx(payoff)


# --------------------------------------------------------------------------------------------------------- invariants


def test_exploration_is_independent_per_environment_and_agent():
    """With one draw for all, environments and agents would explore together."""
    env = env_of(Everything("discrete", dead=0.0), 64)
    algorithm, _ = learner(env)
    algorithm.policy.epsilon = 0.5
    (noise,) = algorithm.policy.draw_noise(1, 64, torch.Generator().manual_seed(0))
    explores = noise[..., 0] < 0.5
    assert 0.35 < explores.float().mean() < 0.65
    assert explores.any(1).ne(explores.all(1)).any()
    timestep = env.reset()
    greedy, _, _ = algorithm.policy.act(timestep, {}, noise, "greedy")
    mixed, _, _ = algorithm.policy.act(timestep, {}, noise, "explore")
    same = (greedy["guard"].discrete == mixed["guard"].discrete)[..., 0]
    assert same[~explores[:, :2]].all()
    assert not same[explores[:, :2]].all()


def test_epsilon_decays_with_environment_steps_and_stays_at_its_end():
    algorithm, collector = learner(
        env_of(Everything(), 16), epsilon_decay_steps=500, epsilon_end=0.1, batch_size=10_000
    )
    seen, steps = [], 0
    for _ in range(5):
        rollout = collect_rollout(algorithm, collector)
        steps += int(rollout.acted[:-1].sum())
        algorithm.update(rollout, 0.0)
        seen.append(algorithm.policy.epsilon)
        assert seen[-1] == pytest.approx(1 - 0.9 * min(1, steps / 500))
    assert seen[-1] == pytest.approx(0.1)
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("interval", [3, None])
def test_target_networks_have_hard_and_soft_updates(interval):
    algorithm, collector = learner(
        env_of(Everything(), 16), target_update_interval=interval, tau=0.25, mixer="qmix", lr=1e-2
    )
    start = [x.clone() for x in tree_leaves(dict(algorithm.target.module.state_dict()))]
    expected = [x.clone() for x in start]
    for k in range(1, 7):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
        online = tree_leaves(dict(algorithm.module.state_dict()))
        if interval is None:
            expected = [e + 0.25 * (o - e) for e, o in zip(expected, online, strict=True)]
        elif k % interval == 0:
            expected = [o.clone() for o in online]
        target = tree_leaves(dict(algorithm.target.module.state_dict()))
        for e, t in zip(expected, target, strict=True):
            assert torch.allclose(e, t, atol=1e-6)
    assert not all(torch.equal(s, t) for s, t in zip(start, target, strict=True))
    assert not all(torch.equal(o, t) for o, t in zip(online, target, strict=True)) or interval == 3


@pytest.mark.parametrize(("mixer", "rnn"), list(zip(MIXERS, itertools.cycle(("gru", "none")))))
def test_observations_of_dead_agents_do_not_change_weights(mixer, rnn):
    """NaN and 1e6 there result in equal and finite weights."""
    weights = []
    for dead in (float("nan"), 1e6):
        algorithm, collector = learner(
            env_of(Everything("discrete", dead), 16), mixer=mixer, rnn=rnn, normalize_obs=True
        )
        for _ in range(3):
            rollout = collect_rollout(algorithm, collector)
            assert not rollout.alive.all()
            algorithm.update(rollout, 0.0)
        weights.append(tree_leaves(dict(algorithm.module.state_dict())))
    for one, other in zip(*weights, strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("where", ["dead", "alive"])
@pytest.mark.parametrize("settings", [{"mixer": mixer} for mixer in MIXERS] + [CENTRAL])
def test_actions_of_dead_agents_do_not_change_weights(settings, where):
    found = []
    for changed in (False, True):
        algorithm, collector = learner(env_of(Everything("discrete", 0.0), 16), **settings)
        for _ in range(3):
            rollout = collect_rollout(algorithm, collector)
            places = ~rollout.alive[:-1] if where == "dead" else rollout.alive[:-1] & rollout.acted[:-1, :, None]
            assert places.any()
            if changed:
                done, at = {}, 0
                for role in algorithm.team.roles:
                    here = places[..., at : (at := at + role.n), None]
                    own = rollout.action[role.name].discrete
                    done[role.name] = Action(torch.where(here, (own + 1) % role.action.choices[0], own))
                rollout = replace(rollout, action=done)
            algorithm.update(rollout, 0.0)
        found.append(tree_leaves(dict(algorithm.module.state_dict())))
    same = all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert same == (where == "dead")


@pytest.mark.parametrize("mixer", ["vdn", "qmix", "qplex"])
@pytest.mark.parametrize("limit", [True, False])
def test_a_limit_is_not_termination_for_a_team_whose_agents_can_die(mixer, limit):
    """After a limit, the mixer sees living agents. In the negative control, which terminates, targets are rewards."""
    world = Probe(
        lambda x, age: torch.ones(len(x), 2, 1), lambda x, age, d, c: torch.ones(len(x), 2), n=2, length=3, limit=limit
    )
    world.spec = replace(world.spec, agents_can_die=True)
    algorithm, collector = learner(env_of(world, 4), mixer=mixer, rnn="gru")
    seen = []
    algorithm.target_value.mixer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["alive"]), with_kwargs=True
    )
    rollout = collect_rollout(algorithm, collector)
    algorithm.evaluate_batch(rollout)
    alive = seen[0]
    behind = rollout.episode_truncated | rollout.episode_terminated
    assert behind.any()
    assert alive[behind].all()
    assert bool((algorithm.evaluate_batch(rollout).target[behind] == rollout.reward.sum(-1)[behind]).all()) != limit
    assert alive[~behind & rollout.acted[:-1]].all()


def test_importance_weights_multiply_the_whole_loss():
    algorithm, collector = learner(env_of(Everything("discrete", 0.0), 16), **CENTRAL)
    samples = algorithm.buffer.samples
    for weight in (1.0, 0.0):
        algorithm.buffer.samples = lambda size, count, w=weight: (
            replace(drawn, weight=w * torch.ones_like(drawn.weight)) for drawn in samples(size, count)
        )
        metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
        assert (metrics["loss/td"] == 0) == (weight == 0)


def test_reward_statistics_count_each_reward_once():
    """A learner that samples each sequence many times has the same statistics as one that samples few."""
    moments = []
    for gradient_steps in (1, 7):
        algorithm, collector = learner(
            env_of(Everything(dead=0.0), 16), reward_scale="standardize", mixer="vdn", gradient_steps=gradient_steps
        )
        collector.env.reset(3)
        rollout = collect_rollout(algorithm, collector)
        algorithm.update(rollout, 0.0)
        live = (rollout.alive[:-1] & rollout.acted[:-1, :, None]).any(-1)
        total = (rollout.reward.sum(-1) + rollout.group_reward.sum(-1))[live].double()
        moments.append(algorithm.reward_moments)
        assert moments[-1]["count"].item() == live.sum().item()
        assert moments[-1]["mean"].item() == pytest.approx(total.mean().item())
    assert moments[0]["mean"] == moments[1]["mean"]


def test_burn_in_results_in_the_hidden_state_of_a_full_pass():
    """Q after the burn-in is equal to that of a pass over all timesteps."""
    settings = {"rnn": "gru", "obs_last_action": True, "rollout_length": 12}
    weighted = {"mixer": "qmix", "weighting": "central"}
    algorithm, collector = learner(env_of(Everything(), 16), burn_in=4, **weighted, **settings)
    rollout = [collect_rollout(algorithm, collector) for _ in range(2)][1]
    rest, online, target = algorithm.reader.start(rollout)

    def unroll(network, inputs):
        return network.net(*inputs)[0]

    def inputs(of, hidden_state):
        return algorithm.policy.network_inputs(of.obs, of.action, of.first, hidden_state)

    stored, empty = dict(rollout.hidden_state), algorithm.policy.initial_hidden_state(rollout.num_envs)
    initial = {"value": stored, "central": empty | {"last": stored["last"]}}  # the stored state is not that of Q*
    for networks, warmed_up in ((algorithm.module, online), (algorithm.target.module, target)):
        for part, state in initial.items():
            whole = unroll(networks[part], inputs(rollout, state))
            for name, q in unroll(networks[part], warmed_up[part]).items():
                assert torch.allclose(q, whole[name][4:], atol=1e-6)
            assert not any(x.requires_grad for x in warmed_up[part][2].values())
            cold = unroll(networks[part], inputs(rest, empty))
            assert not torch.allclose(
                cold["guard"], whole["guard"][4:], atol=1e-4
            )  # negative control: a zero hidden state


def test_acting_and_learning_compute_the_same_q():
    """The unrolled network, with hidden state and last actions, computes the Q by which actions were chosen."""
    algorithm, collector = learner(env_of(Everything("multi_discrete", dead=0.0), 16), rnn="lstm", obs_last_action=True)
    algorithm.policy.epsilon = 0.0
    collect_rollout(algorithm, collector)
    rollout = collect_rollout(algorithm, collector)  # with a hidden state from the rollout before
    q, _ = algorithm.value.net(*algorithm.reader.start(rollout)[1]["value"])
    masks = {block.name: block.join_masks(rollout.action_mask) for block in algorithm.policy.blocks}
    greedy, done = greedy_actions(algorithm.policy.net, q, masks), taken_actions(algorithm.policy.net, rollout.action)
    live = rollout.alive[:-1] & rollout.acted[:-1, :, None]
    assert (greedy["guard"][:-1] == done["guard"])[live[..., :2]].all()
    assert (greedy["scout"][:-1] == done["scout"])[live[..., 2:]].all()


# ------------------------------------------------------------------------------------------------------------- errors


def test_contradicting_settings_are_refused():
    env = env_of(Everything(), 8)
    with pytest.raises(UserError, match=r"algo\.obs_last_action=true: .* algo\.rnn=gru"):
        learner(env, obs_last_action=True)
    with pytest.raises(UserError, match=r"algo\.weighting=central: .* algo\.mixer=qmix"):
        learner(env, weighting="central", mixer="vdn")
    with pytest.raises(UserError, match=r"algo\.share_params: .*algo\.share_params=role"):
        learner(env, share_params="all")
    for name in ("epsilon_start", "epsilon_end"):
        with pytest.raises(UserError, match=rf"algo\.{name}=0: must be > 0 for an exponential schedule"):
            learner(env, epsilon_schedule="exponential", **{name: 0.0})
    with pytest.raises(UserError, match=r"algo\.common_reward=true: has no effect with algo\.mixer=vdn"):
        learner(env, mixer="vdn", common_reward=True)
    with pytest.raises(UserError, match=r"algo\.td_lambda=0\.5: has no effect on sequences of one step"):
        learner(env, td_lambda=0.5)
    with pytest.raises(UserError, match=r"algo\.output_gain=0\.5: has no effect with algo\.init=xavier"):
        learner(env, output_gain=0.5, init="xavier")


def test_the_output_gain_reaches_the_online_and_the_target_network():
    env = env_of(Everything(), 8)
    for weighting in ("none", "central"):
        heads = []
        for gain in (1.0, 0.01):
            algorithm, _ = learner(env, mixer="qmix", output_gain=gain, weighting=weighting)
            heads.append(
                [
                    x
                    for x in tree_leaves(algorithm.state_dict())
                    if isinstance(x, torch.Tensor) and x.is_floating_point()
                ]
            )
        scaled = sum(
            torch.allclose(0.01 * one, other) for one, other in zip(*heads, strict=True) if one.abs().sum() > 0
        )
        assert scaled >= (2 if weighting == "none" else 4)


@pytest.mark.parametrize(
    ("settings", "limit", "start", "note"),
    [
        ({"rnn": "none"}, 12, "timestep", ""),
        ({}, 12, "episode", ""),
        ({}, 13, "rollout", ""),
        ({}, None, "rollout", ""),
        ({"sequence_length": 30}, 30, "episode", ""),
        ({"burn_in": 4}, 12, "rollout", ""),
        ({"sequence_start": "rollout"}, 12, "rollout", ""),
        ({"sequence_start": "episode"}, None, "episode", ""),
        ({"rnn": "none", "burn_in": 2, "sequence_length": 2, "sequence_start": "rollout"}, 12, "timestep", ""),
        (
            {"sequence_start": "episode"},
            13,
            "episode",
            "those after step 12 are never learned from. Set algo.sequence_length=13",
        ),
        ({"sequence_start": "episode", "burn_in": 4}, 12, "episode", "the first 4 steps of each episode only warm"),
        (
            {"sequence_length": 6},
            13,
            "rollout",
            "only the first 6 are learned from. Omit it",
        ),
    ],
)
def test_sequences_start_so_that_all_timesteps_are_learned_from_or_a_note_says_otherwise(settings, limit, start, note):
    world = Everything()
    world.spec = replace(world.spec, episode_limit=limit)
    algorithm, collector = learner(env_of(world, 8), **{"rnn": "gru", **settings})
    assert algorithm.buffer.spec.sequence_start == start
    _, *notes = algorithm.notes
    assert [note in line for line in notes] == [True] * bool(note)
    for _ in range(4):
        metrics = algorithm.update(collect_rollout(algorithm, collector), 0.0)
    assert math.isfinite(metrics["loss/td"])


def test_continuous_actions_are_refused():
    (team,) = env_of(Everything("continuous"), 4).spec.default_teams()
    with pytest.raises(UserError, match="does not support the continuous actions"):
        QLearning.capabilities.check("qmix", team)


def test_a_non_finite_loss_is_named():
    algorithm, collector = learner(env_of(Everything(dead=0.0), 8))
    with torch.no_grad():
        next(algorithm.value.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="loss/td"):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
