"""Q-learning: the loss in numbers, exact solutions of small games, probes with negative controls, and invariants."""

import itertools
from dataclasses import replace

import pytest
import torch

from algo_worlds import Everything, env_of
from coterie.algos.qlearning import td_loss
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
                    q, actions, masks={block.name: None}, alive=timestep.alive, obs=timestep.obs, state=state
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


@pytest.mark.parametrize("settings", [{"mixer": mixer} for mixer in MIXERS] + [CENTRAL])
def test_actions_of_dead_agents_do_not_change_weights(settings):
    """Those of agents alive do, the control."""
    found = []
    for where in ("nowhere", "dead", "alive"):
        algorithm, collector = learner(env_of(Everything("discrete", 0.0), 8), **settings)
        for _ in range(2):
            rollout = collect_rollout(algorithm, collector)
            places = rollout.alive[:-1] & rollout.acted[:-1, :, None] if where == "alive" else ~rollout.alive[:-1]
            assert places.any()
            if where != "nowhere":
                done, at = {}, 0
                for role in algorithm.team.roles:
                    here = places[..., at : (at := at + role.n), None]
                    own = rollout.action[role.name].discrete
                    done[role.name] = Action(torch.where(here, (own + 1) % role.action.choices[0], own))
                rollout = replace(rollout, action=done)
            algorithm.update(rollout, 0.0)
        found.append(tree_leaves(dict(algorithm.module.state_dict())))
    nowhere, dead, alive = found
    assert all(torch.equal(one, other) for one, other in zip(nowhere, dead, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(nowhere, alive, strict=True))


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


def test_a_non_finite_loss_is_named():
    algorithm, collector = learner(env_of(Everything(dead=0.0), 8))
    with torch.no_grad():
        next(algorithm.value.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="loss/td"):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
