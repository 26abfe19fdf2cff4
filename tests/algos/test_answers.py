"""Targets of each family against literal numbers, and exact solutions of small games.

The formulas have tests in tests/functional. Here the same numbers must result from each learner's own targets, on
rollouts of a collector. For mistakes found in public code see test_mistakes.py.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import gymnasium
import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, observe_zeros, zero_reward
from coterie.algos import poca, ppo
from coterie.algos.optimizer import Optimizer
from coterie.algos.ppo import PPOConfig
from coterie.algos.replay.buffer import ReplaySample
from coterie.envs.make import make
from coterie.functional import policy_gradient
from coterie.functional.policy_gradient import ema_mean_and_std
from coterie.functional.returns import n_step_return, valid_mask
from families import (
    CLIMBING,
    FAMILIES,
    PER_AGENT,
    WITH_LAMBDA,
    WITH_N_STEP,
    make_learner,
    pqn_samples,
    rewarded_by_age,
    set_values,
)
from groups import Sacrifice, Shifts
from learners import collect_rollout, learner_of, poca_learner, ppo_learner, q_learner, targets_of

CPU = torch.device("cpu")
OF_TEAM = ("vdac", "poca", "vdn", "pqn_vdn")
"""Families whose returns are those of the team."""


def expect(found, numbers):
    """Asserts the targets [T, B, N] of the steps of an episode, equal in all environments and agents."""
    for timestep, number in zip(found, numbers, strict=False):
        torch.testing.assert_close(timestep, torch.full_like(timestep, number), atol=2e-5, rtol=0)


# ---------------------------------------------------------------------------------------------------- literal targets


@pytest.mark.parametrize("name", WITH_LAMBDA)
def test_lambda_returns_of_literal_numbers(name):
    """gamma 0.99, lambda 0.95, r = [0, 0, 1], V = [.5, .6, .7, .8], where the last value follows termination or
    truncation. The targets of an episode contain nothing of the next one.
    """
    for limit, expected in ((False, [0.946829, 0.97515, 1.0]), (True, [1.647384, 1.720026, 1.792])):
        settings = {"gamma": 0.99, FAMILIES[name][3]: 0.95}
        algorithm, collector, targets = make_learner(name, rewarded_by_age([0.0, 0.0, 1.0, 0.0], 3, limit), **settings)
        set_values(name, algorithm, [0.5, 0.6, 0.7, 0.8])
        found = targets(algorithm, collect_rollout(algorithm, collector))
        expect(found, expected)
        expect(found[4:], expected)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_returns_do_not_contain_rewards_of_the_next_agent_in_a_slot(name, leaves):
    """All values are 0, so that targets are sums of rewards: those of one life in a slot, or the team's up to the time
    at which nobody of those who were there is left.
    """
    settings = {"gamma": 1.0} | ({FAMILIES[name][3]: 1.0} if name in WITH_LAMBDA else {"n_step": 7})
    settings |= {} if name in OF_TEAM else {"common_reward": False}
    algorithm, collector, targets = make_learner(name, Shifts(leaves), **settings)
    set_values(name, algorithm, [0.0] * 8)
    rollout = collect_rollout(algorithm, collector)
    first = [30.0, 20, 10, 0, 0, 0, 0] if leaves else [70.0, 60, 50, 40, 30, 20, 10]
    team = [32.0, 21, 10, 2, 1, 2, 1] if leaves else [76.0, 65, 54, 44, 33, 22, 11]
    expected = torch.tensor([team] * 2 if name in OF_TEAM else [first, [2.0, 1, 0, 2, 1, 2, 1]]).T.unsqueeze(1)
    valid = valid_mask(rollout)[:7]
    torch.testing.assert_close(targets(algorithm, rollout)[:7][valid], expected.expand(7, 4, 2)[valid])


@pytest.mark.parametrize("rnn", ["none", "gru"])
@pytest.mark.parametrize("name", WITH_N_STEP)
def test_five_step_returns_end_at_termination(name, rnn):
    """gamma 0.9, r = 1, 1, 1 and termination, V = 10. Without termination, the control, every target is 10."""
    algorithm, collector, targets = make_learner(
        name, rewarded_by_age([1.0] * 4, 3, False), n_step=5, gamma=0.9, rnn=rnn
    )
    set_values(name, algorithm, [10.0] * 4)
    rollout = collect_rollout(algorithm, collector)
    found = targets(algorithm, rollout)
    assert len(found) == (1 if rnn == "none" and name not in {"sac", "masac", "hasac"} else 8)
    expect(found, [2.71, 1.9, 1.0])
    no = torch.zeros_like(rollout.terminated)
    unseen = replace(rollout, terminated=no, episode_terminated=no[..., 0], truncated=rollout.terminated)
    expect(targets(algorithm, unseen), [10.0, 10.0, 10.0])


def test_advantages_of_ppo_of_literal_numbers():
    """gamma 0.9, lambda 0.8, r = [1, 2, 3], V = [.5, 1, 1.5], and 2 after truncation."""
    for limit, expected in ((False, [3.8696, 3.43, 1.5]), (True, [4.80272, 4.726, 3.3])):
        algorithm, collector, _ = make_learner(
            "ppo", rewarded_by_age([1.0, 2.0, 3.0, 0.0], 3, limit), gamma=0.9, gae_lambda=0.8
        )
        set_values("ppo", algorithm, [0.5, 1.0, 1.5, 2.0])
        expect(targets_of(algorithm, collect_rollout(algorithm, collector)).batch.advantage, expected)


@pytest.mark.parametrize("name", ["ppo", "poca"])
def test_targets_are_computed_from_denormalized_values(name):
    """With mean 10 and standard deviation 2, an output of 1 is the value 12. gamma 0.9, r = 1.2 until truncation: the
    target is 12 and the advantage 0. In the control, without normalization, the value is 1.
    """
    for normalize in (True, False):
        algorithm, collector, _ = make_learner(
            name, rewarded_by_age([1.2] * 4, 3, True), gamma=0.9, normalize_value=normalize
        )
        set_values(name, algorithm, [1.0] * 4)
        moments = {"mean": [10.0], "square": [104.0], "weight": 1.0}
        algorithm.value_moments = {key: torch.tensor(x, dtype=torch.float64) for key, x in moments.items()}
        rollout = collect_rollout(algorithm, collector)
        batch = targets_of(algorithm, rollout).batch
        scaled, advantage = batch.target[:3, ..., 0], batch.advantage[:3]
        expect(scaled, [1.0] * 3 if normalize else [3.8446275, 3.0405, 2.1])
        assert (advantage.abs().max() < 1e-4) == normalize


@pytest.mark.parametrize("name", ["ppo", "poca"])
def test_value_statistics_after_one_update_are_those_of_the_returns(name):
    """Returns 1, 2, 6 per episode without final timesteps: mean 3, variance 14 / 3. The variance is at least 1e-2.
    Denormalized targets are the returns.
    """
    for rewards, mean, variance in (([1.0, 2.0, 6.0, 0.0], 3.0, 14 / 3), ([4.0, 4.0, 4.0, 0.0], 4.0, 1e-2)):
        algorithm, collector, targets = make_learner(
            name, rewarded_by_age(rewards, 3, False), gamma=0.0, normalize_value=True
        )
        set_values(name, algorithm, [0.0] * 4)
        scaled = targets(algorithm, collect_rollout(algorithm, collector))
        shift, scale = ema_mean_and_std(algorithm.value_moments)
        assert (shift.item(), scale.item() ** 2) == pytest.approx((mean, variance), rel=1e-4)
        expect(scaled * scale + shift, rewards[:3])


@pytest.mark.parametrize("rnn", ["none", "gru"])
def test_double_q_learning_evaluates_the_choice_of_the_online_network(rnn):
    """Online [1, 3, 2], target [5, .5, 4]: 0.5, or 4 if action 1 is masked. Without double Q, the control, it is 5."""
    for double, mask, expected in ((True, None, 0.5), (True, [True, False, True], 4.0), (False, None, 5.0)):
        world = Probe(
            observe_zeros, zero_reward, actions=spaces.Discrete(3), length=9,
            mask=None if mask is None else torch.tensor(mask),
        )  # fmt: skip
        algorithm, collector, targets = make_learner("iql", world, gamma=1.0, double_q=double, rnn=rnn)
        for value, q in ((algorithm.value, [1.0, 3.0, 2.0]), (algorithm.target_value, [5.0, 0.5, 4.0])):
            for p in value.parameters():
                p.data.zero_()
            next(iter(value.net.networks.values())).network.head.bias.data.copy_(torch.tensor(q))
        expect(targets(algorithm, collect_rollout(algorithm, collector)), [expected])


# ------------------------------------------------------------------------------------------------------------- ratios


@pytest.mark.usefixtures("plain_steps")
@pytest.mark.parametrize(
    ("module", "kind", "rnn"),
    [
        (ppo, "discrete", "lstm"),
        (ppo, "multi_discrete", "none"),
        (ppo, "continuous", "gru"),
        (ppo, "hybrid", "none"),
        (poca, "discrete", "none"),
        (poca, "hybrid", "gru"),
    ],
)
def test_each_policy_ratio_of_the_first_epoch_is_one(module, kind, rnn, monkeypatch):
    """For each valid sample. In the control, one old log-probability differs by 1e-4."""
    ratios = []
    policy_loss = policy_gradient.clipped_policy_loss

    def spy(log_prob, old_log_prob, advantage, valid, **options):
        difference = (log_prob - old_log_prob).detach()
        ratios.append((difference if valid is None else difference.where(valid, 0)).exp() - 1)
        return policy_loss(log_prob, old_log_prob, advantage, valid, **options)

    monkeypatch.setattr(module, "clipped_policy_loss", spy)
    build = ppo_learner if module is ppo else poca_learner
    settings = {"rnn": rnn, "rnn_size": 8, "sequence_length": 4 if rnn != "none" else None}
    algorithm, collector = build(Everything(kind), epochs=1, num_minibatches=1, normalize_obs=True, **settings)
    for _ in range(2):
        rollout = collect_rollout(algorithm, collector)
        algorithm.update(rollout, 0.0)
    assert torch.cat([x.flatten() for x in ratios]).abs().max() < 1e-5
    rollout = collect_rollout(algorithm, collector)
    old_log_prob = rollout.extras["log_prob"].clone()
    place = (rollout.alive[:-1] & rollout.acted[:-1, :, None]).nonzero()[-1]
    old_log_prob[tuple(place)] += 1e-4
    algorithm.update(replace(rollout, extras={"log_prob": old_log_prob}), 0.0)
    assert ratios[-1].abs().max() > 5e-5


# ---------------------------------------------------------------------------------------------------------- exact games


def lake():
    """Returns FrozenLake's transitions as tensors: state, action, probability, next state, reward, terminated."""
    table = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True).unwrapped.P
    timesteps = [(s, a, *timestep) for s, moves in table.items() for a, ways in moves.items() for timestep in ways]
    return [
        torch.tensor(x, dtype=torch.float64 if isinstance(x[2], float) else None) for x in zip(*timesteps, strict=True)
    ]


@pytest.mark.parametrize(("gamma", "expected"), [(0.99, 0.542026), (1.0, 0.823529)])
def test_value_iteration_solves_frozen_lake(gamma, expected):
    """By one-step returns. The control terminates episodes after 100 steps, and its value is lower."""
    state, action, probability, after, reward, end = lake()
    assert len(state) == 152
    value, sweeps = torch.zeros(16, dtype=torch.float64), []
    for _ in range(900):
        terminated = end.view(1, -1, 1)
        found = n_step_return(
            reward.double().view(1, -1, 1),
            value[after].view(1, -1, 1),
            terminated=terminated,
            boundary=terminated,
            gamma=gamma,
            n=1,
        )
        q = torch.zeros(64, dtype=torch.float64).index_add(0, 4 * state + action, probability * found.flatten())
        value = q.view(16, 4).amax(1)
        sweeps.append(value[0].item())
    assert value[0].item() == pytest.approx(expected, abs=1e-6)
    assert sweeps[99] == pytest.approx({0.99: 0.522281, 1.0: 0.744190}[gamma], abs=1e-6)


def test_targets_of_q_learning_solve_frozen_lake():
    """A table of Q is updated with the targets of all transitions, gamma 0.99."""
    state, action, probability, after, reward, end = lake()
    timesteps = len(state)
    world = Probe(observe_zeros, zero_reward, actions=spaces.Discrete(4), length=9)
    algorithm, collector, _ = make_learner("iql", world, timesteps, rollout_length=1, rnn="none", gamma=0.99)
    ended = end.view(1, timesteps, 1)
    rollout = replace(
        collect_rollout(algorithm, collector),
        obs={"agent": torch.stack([state, after]).view(2, timesteps, 1, 1).float()},
        reward=reward.float().view(1, timesteps, 1),
        terminated=ended,
        episode_terminated=ended[..., 0],
    )
    q = torch.zeros(16, 4)

    def table(obs):
        return {"agent": q[obs["agent"][..., 0].long()]}

    algorithm.reader.successors = lambda value, inputs: table({"agent": inputs[0]["agent"][1:]})
    algorithm.reader.online = lambda value, inputs: tuple(
        table({"agent": inputs[0]["agent"][time]}) for time in (slice(0, 1), slice(1, 2))
    )
    for _ in range(400):
        target = algorithm.evaluate_batch(rollout).target.flatten()
        q = torch.zeros(64).index_add(0, 4 * state + action, probability.float() * target).view(16, 4)
    assert q[0].max().item() == pytest.approx(0.542026, abs=1e-4)


def fitted(name, mixer, steps, lr):
    """Returns Q_tot of the nine joint actions of a matrix game, fitted to all of them, and the squared error."""
    env = make(f"matrix/{name}", {"episode_limit": 1}, 9, 0, device=CPU, with_state=True)
    settings = {
        "mixer": mixer,
        "share_params": "none",
        "gamma": 0.0,
        "hidden_sizes": (16,),
        "rollout_length": 1,
        "max_grad_norm": None,
    }
    algorithm, collector = q_learner(env, **settings)
    rollout = collect_rollout(algorithm, collector)
    pairs = torch.tensor(list(itertools.product(range(3), repeat=2)))
    rollout.action["agent"].discrete[0, ..., 0] = pairs
    table = {"climbing": CLIMBING, "monotonic": MONOTONIC}[name]
    group_reward = table.flatten().view(1, 9, 1)
    rollout = replace(
        rollout, reward=torch.zeros_like(rollout.reward), group_reward=group_reward.expand_as(rollout.group_reward)
    )
    optimizer = Optimizer({"value": algorithm.module}, 1e-5, 0.0, None)
    for step in range(steps):
        batch = algorithm.evaluate_batch(rollout)
        loss = (batch.q - batch.target).square().mean()
        optimizer.step(loss, {"value": lr * (1 - step / steps) + 1e-5})
    return batch.q.detach().view(3, 3), (batch.q - batch.target).square().sum().item()


MONOTONIC = torch.tensor([[8.0, -12, -12], [-12, 0, 0], [-12, 0, 0]])


@pytest.mark.slow
def test_vdn_fits_climbing_and_the_counterexample_by_least_squares():
    """The fit is row mean + column mean - mean. Its best joint action in Climbing is (2, 2), with reward 5."""
    fit, _ = fitted("climbing", "vdn", 300, 3e-2)
    expected = [[-9.2222, -8.5556, -1.2222], [-10.5556, -9.8889, -2.5556], [0.7778, 1.4444, 8.7778]]
    torch.testing.assert_close(fit, torch.tensor(expected), atol=0.02, rtol=0)
    assert (divmod(int(fit.argmax()), 3), CLIMBING[2, 2].item()) == ((2, 2), 5)
    fit, error = fitted("monotonic", "vdn", 300, 3e-2)
    expected = [[-6.2222, -4.8889, -4.8889], [-4.8889, -3.5556, -3.5556], [-4.8889, -3.5556, -3.5556]]
    torch.testing.assert_close(fit, torch.tensor(expected), atol=0.02, rtol=0)
    assert error == pytest.approx(455.11, abs=0.1)


@pytest.mark.slow
def test_qmix_cannot_fit_a_non_monotonic_game():
    """The squared error of monotonic tables is at least 288. QPLEX has no such restriction."""
    assert 287.9 < fitted("monotonic", "qmix", 300, 2e-2)[1] < 320.5
    assert fitted("monotonic", "qplex", 300, 2e-2)[1] < 280


@pytest.mark.slow
@pytest.mark.parametrize(("k", "reward"), [(-30.0, 2.0), (0.0, 10.0)])
def test_a_policy_gradient_chooses_the_safe_action_under_a_large_penalty(k, reward):
    """It converges to a reward of 2 where the penalty is below -25, and to 10 without a penalty."""
    env = make("matrix/penalty", {"k": k, "episode_limit": 1}, 64, 0, device=CPU)
    config = PPOConfig(hidden_sizes=(16,), rollout_length=8, gamma=0.0, lr=1e-2, entropy_coef=0.0, num_minibatches=1)
    algorithm, collector = learner_of(ppo.PPO, config, env)
    for _ in range(25):
        algorithm.update(collect_rollout(algorithm, collector), 0.0)
    rollout = collect_rollout(algorithm, collector)
    total = (rollout.reward.mean(-1) + rollout.group_reward[..., 0])[rollout.acted[:-1]]
    assert total.median().item() == reward


@pytest.mark.parametrize("name", ["iql", "pqn", "ddpg", "sac", "maddpg", "masac", "hasac"])
def test_targets_of_an_agent_truncated_alone_bootstrap_from_its_own_value(name):
    """Its next observation is stored, although it is not alive there. Centralized critics, the control, exclude it."""
    algorithm, collector, targets = make_learner(name, Everything("discrete", dead=0.0, groups=False), 16)
    rollout = collect_rollout(algorithm, collector)
    t, b = a_full_step(rollout)
    rollout.truncated[t, b, 0] = True
    alive = rollout.alive.clone()
    alive[t + 1, b, 0] = False
    found = []
    for variant in (rollout, replace(rollout, alive=alive)):
        with torch.no_grad():
            values = [targets(algorithm, variant)[t, b]]
            if name in {"sac", "masac", "hasac"}:  # the entropy at its next observation
                algorithm.generator.manual_seed(0)
                values.append(algorithm.sample_actions(variant).entropy[t + 1, b])
        found.append(torch.cat(values))
    assert torch.equal(*found) == (name in PER_AGENT)


@pytest.mark.parametrize("name", PER_AGENT)
def test_returns_with_rewards_of_a_group_outlive_an_agent(name):
    """A group has a reward of 1 two steps after its first agent left for it, which has 0.2 if it stays."""
    whole = {FAMILIES[name][3]: 1.0} if name in WITH_LAMBDA else {"n_step": 3}
    scale = {} if name in {"ppo", "seac"} else {"reward_scale": "none"}
    algorithm, collector, targets = make_learner(name, Sacrifice(), 16, gamma=0.5, **whole, **scale)
    rollout = collect_rollout(algorithm, collector)
    left = rollout.action["agent"].discrete[0, :, 0, 0] == 1
    assert left.any()
    assert not left.all()
    with torch.no_grad():
        found = targets(algorithm, rollout)[0]
    torch.testing.assert_close(found, torch.stack([torch.where(left, 0.25, 0.2), torch.where(left, 0.25, 0.0)], 1))


CENTRALIZED = [name for name in FAMILIES if name not in PER_AGENT]


def a_full_step(rollout):
    """Returns timestep and environment of a step in which all agents act and go on."""
    stays = (rollout.alive[:-2] & rollout.alive[1:-1]).all(-1) & rollout.acted[1:-1] & rollout.acted[:-2]
    t, b = stays.nonzero()[0].tolist()
    return t, b


def with_ends(rollout, t, b, **fields):
    """Returns the rollout with other flags: those with `after` in their name at timestep t + 1, else at step t."""
    changed = {}
    for name, value in fields.items():
        field = name.removesuffix("_after")
        changed[field] = getattr(rollout, field).clone()
        changed[field][t + (name != field), b] = torch.tensor(value)
    return replace(rollout, **changed)


@pytest.mark.parametrize("first_dies", [False, True])
@pytest.mark.parametrize("name", CENTRALIZED)
def test_a_team_whose_last_members_are_truncated_alone_bootstraps_as_at_a_time_limit(name, first_dies):
    """Its return ends there although the episode goes on. A member that dies in the same step, the variant, has no part
    in the successor's value, and does not terminate the return. The control terminates it.
    """
    algorithm, collector, targets = make_learner(name, Everything("discrete", dead=0.0, groups=False), 16)
    rollout = collect_rollout(algorithm, collector)
    t, b = a_full_step(rollout)
    dies, stays = [first_dies, False, False], [not first_dies, True, True]
    alone = with_ends(rollout, t, b, terminated=dies, truncated=stays, alive_after=[False] * 3)
    limit = with_ends(
        rollout, t, b, terminated=dies, truncated=stays, alive_after=stays, episode_truncated=True, acted_after=False
    )
    dead = with_ends(rollout, t, b, terminated=[True] * 3, truncated=[False] * 3, alive_after=[False] * 3)
    with torch.no_grad():
        found, expected, terminated = (targets(algorithm, x)[: t + 1, b] for x in (alone, limit, dead))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert (found[t] - terminated[t]).abs().max() > 1e-4


def learned_timesteps(name, algorithm, rollout):
    """Returns where a centralized critic learns [T, B], if it does so in each entry of a timestep or in none."""
    if name in {"mappo", "vdac", "pac", "happo", "hatrpo", "mat", "mat_dec", "magpo"}:
        valid = targets_of(algorithm, rollout, as_sequences=True).batch.critic_valid
    elif name == "poca":
        valid = targets_of(algorithm, rollout).batch.valid.any(-1, keepdim=True)
    elif name == "coma":
        valid = algorithm.targets(rollout)[0].valid
    elif name == "vdn":
        valid = algorithm.evaluate_batch(rollout).valid.unsqueeze(-1)
    elif name == "pqn_vdn":
        valid = pqn_samples(algorithm, rollout).valid.unsqueeze(-1)
    elif name == "maddpg":
        index = torch.arange(rollout.num_envs)
        valid = algorithm.make_batch(ReplaySample(rollout, index, torch.ones(rollout.num_envs))).critic_valid
    else:
        valid = algorithm.valid_mask(rollout, of_critic=True)
    assert (valid.all(-1) == valid.any(-1)).all()
    return valid.any(-1)


@pytest.mark.parametrize("name", CENTRALIZED)
def test_timesteps_without_agents_of_the_team_are_not_learned_from(name):
    """What a centralized critic learned there would be the value that a truncated team bootstraps from."""
    algorithm, collector, _ = make_learner(name, Everything("discrete", dead=0.0, groups=False), 16)
    rollout = collect_rollout(algorithm, collector)
    t, b = a_full_step(rollout)
    assert learned_timesteps(name, algorithm, rollout)[t + 1, b]
    gone = with_ends(rollout, t, b, truncated=[True] * 3, alive_after=[False] * 3)
    expected = rollout.acted[:-1] & gone.alive[:-1].any(-1)
    assert not expected[t + 1, b]
    assert learned_timesteps(name, algorithm, gone).equal(expected)
