"""Known answers through every family's own code: exact numbers, exact games, and what each must do to the bit.

What the mathematics say by themselves is in tests/math; here the same numbers have to come out of each learner's own
targets, from windows that a collector made. Mistakes of public code: test_mistakes.py.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import gymnasium
import pytest
import torch
from gymnasium import spaces

from algos import test_coma, test_poca, test_ppo, test_qlearning
from algos.families import FAMILIES, OF_AGENTS, WITH_LAMBDA, WITH_STEPS, clock, made, teach, window_of
from algos.worlds import Everything, Probe
from coterie.algos import onpolicy, poca, ppo
from coterie.algos.ppo import PPOConfig
from coterie.collect import Collector
from coterie.envs.make import make
from coterie.math.returns import n_step_return
from coterie.math.running import ema_scale

CPU = torch.device("cpu")


def expect(found, numbers):
    """The targets [T, B, N] of an episode's steps, the same in every copy and agent."""
    for row, number in zip(found, numbers, strict=False):
        torch.testing.assert_close(row, torch.full_like(row, number), atol=2e-5, rtol=0)


# ---------------------------------------------------------------------------------------------------- literal targets


@pytest.mark.parametrize("name", WITH_LAMBDA)
def test_lambda_returns_of_every_learner_are_the_known_ones(name):
    """gamma 0.99, lambda 0.95, r = [0, 0, 1], V = [.5, .6, .7, .8]; the last value is behind an end, or a limit."""
    for limit, known in ((False, [0.946829, 0.97515, 1.0]), (True, [1.647384, 1.720026, 1.792])):
        settings = {"gamma": 0.99, FAMILIES[name][3]: 0.95}
        algorithm, collector, targets = made(name, clock([0.0, 0.0, 1.0, 0.0], 3, limit), **settings)
        teach(name, algorithm, [0.5, 0.6, 0.7, 0.8])
        expect(targets(algorithm, window_of(algorithm, collector)), known)


@pytest.mark.parametrize("mistaken", [False, True])
@pytest.mark.parametrize("name", WITH_LAMBDA)
def test_lambda_returns_of_every_learner_stop_at_a_limit(name, mistaken):
    """gamma 0.9, lambda 0.8, r = 1, Q = [1, 2, 3, 4]. The control forgets the limit, and runs on into what follows."""
    settings = {"gamma": 0.9, FAMILIES[name][3]: 0.8}
    algorithm, collector, targets = made(name, clock([1.0, 1.0, 1.0, 1.0], 3, True), **settings)
    teach(name, algorithm, [1.0, 2.0, 3.0, 4.0])
    window = window_of(algorithm, collector)
    if mistaken:
        no = torch.zeros_like(window.truncated)
        window = replace(window, truncated=no, episode_truncated=no[..., 0])
    found = targets(algorithm, window)
    if mistaken:
        assert ((found[:3, 0, 0] - torch.tensor([4.85344, 4.852, 4.6])).abs() > 0.1).all()
    else:
        expect(found, [4.85344, 4.852, 4.6])
        expect(found[4:], [4.85344, 4.852, 4.6])


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("name", WITH_STEPS)
def test_five_step_returns_of_every_learner_stop_at_an_end(name, memory):
    """gamma 0.9, r = 1, 1, 1 and the end, V = 10; the control does not see the end, and gets 10 everywhere."""
    algorithm, collector, targets = made(name, clock([1.0] * 4, 3, False), n_step=5, gamma=0.9, memory=memory)
    teach(name, algorithm, [10.0] * 4)
    window = window_of(algorithm, collector)
    found = targets(algorithm, window)
    assert len(found) == (1 if memory == "none" and name not in {"sac", "masac"} else 8)
    expect(found, [2.71, 1.9, 1.0])
    no = torch.zeros_like(window.terminated)
    unseen = replace(window, terminated=no, episode_terminated=no[..., 0], truncated=window.terminated)
    expect(targets(algorithm, unseen), [10.0, 10.0, 10.0])


@pytest.mark.parametrize("name", FAMILIES)
def test_ten_is_what_an_endless_reward_of_one_is_worth_to_every_learner(name):
    """gamma 0.9: a critic that says 10 is told 10 in every step before a limit; before an end, the control, less."""
    for limit in (True, False):
        algorithm, collector, targets = made(name, clock([1.0] * 4, 3, limit), gamma=0.9)
        teach(name, algorithm, [10.0] * 4)
        found = targets(algorithm, window_of(algorithm, collector))
        expect(found[2:3], [10.0 if limit else 1.0])
        if limit:
            expect(found, [10.0] * 3)


def test_advantages_of_ppo_are_the_known_ones():
    """gamma 0.9, lambda 0.8, r = [1, 2, 3], V = [.5, 1, 1.5], and 2 behind a limit."""
    for limit, known in ((False, [3.8696, 3.43, 1.5]), (True, [4.80272, 4.726, 3.3])):
        algorithm, collector, _ = made("ppo", clock([1.0, 2.0, 3.0, 0.0], 3, limit), gamma=0.9, gae_lambda=0.8)
        teach("ppo", algorithm, [0.5, 1.0, 1.5, 2.0])
        expect(algorithm._targets(window_of(algorithm, collector))[0].advantage, known)


@pytest.mark.parametrize("name", ["ppo", "poca"])
def test_values_are_taken_off_their_scale_before_anything_is_computed_with_them(name):
    """Statistics of mean 10 and spread 2, and a network that says 0: what it means is 10. gamma 0.9, r = 1 under a
    limit: a target of 10 and no advantage. The control has no statistics, and takes the 0 for a 0.
    """
    for normalise in (True, False):
        algorithm, collector, _ = made(name, clock([1.0] * 4, 3, True), gamma=0.9, normalise_value=normalise)
        teach(name, algorithm, [0.0] * 4)
        moments = {"mean": [10.0], "square": [104.0], "weight": 1.0}
        algorithm._value_moments = {key: torch.tensor(x, dtype=torch.float64) for key, x in moments.items()}
        window = window_of(algorithm, collector)
        batch = algorithm._targets(window)[0]
        scaled, advantage = batch.target[:3, ..., 0], batch.advantage[:3]
        expect(scaled, [0.0] * 3 if normalise else [2.586025, 1.855, 1.0])
        assert (advantage.abs().max() < 1e-4) == normalise


@pytest.mark.parametrize("name", ["ppo", "poca"])
def test_the_value_scale_after_one_update_is_that_of_the_unscaled_returns(name):
    """Returns 1, 2, 6 an episode, closing rows not counted: mean 3, variance 14 / 3. Of equal returns: at least 1e-2.
    What is scaled with it comes back.
    """
    for pay, mean, variance in (([1.0, 2.0, 6.0, 0.0], 3.0, 14 / 3), ([4.0, 4.0, 4.0, 0.0], 4.0, 1e-2)):
        algorithm, collector, targets = made(name, clock(pay, 3, False), gamma=0.0, normalise_value=True)
        teach(name, algorithm, [0.0] * 4)
        scaled = targets(algorithm, window_of(algorithm, collector))
        shift, scale = ema_scale(algorithm._value_moments)
        assert (shift.item(), scale.item() ** 2) == pytest.approx((mean, variance), rel=1e-4)
        expect(scaled * scale + shift, pay[:3])


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_double_q_of_the_learner_values_what_the_online_network_picks(memory):
    """Online [1, 3, 2], target [5, .5, 4]: .5; with action 1 masked 4; the control without double Q takes the 5."""
    for double, mask, known in ((True, None, 0.5), (True, [True, False, True], 4.0), (False, None, 5.0)):
        world = Probe(
            test_ppo.show_nothing, test_ppo.pay_nothing, actions=spaces.Discrete(3), length=9,
            mask=None if mask is None else torch.tensor(mask),
        )  # fmt: skip
        algorithm, collector, targets = made("iql", world, gamma=1.0, double_q=double, memory=memory)
        for value, q in ((algorithm.value, [1.0, 3.0, 2.0]), (algorithm._far["value"], [5.0, 0.5, 4.0])):
            for p in value.parameters():
                p.data.zero_()
            next(iter(value.net.nets.values())).core.head.bias.data.copy_(torch.tensor(q))
        expect(targets(algorithm, window_of(algorithm, collector)), [known])


# ------------------------------------------------------------------------------------------------------------- ratios

KINDS = list(itertools.product(Everything.KINDS, ("none", "gru", "lstm")))


@pytest.mark.parametrize(("kind", "memory"), KINDS)
@pytest.mark.parametrize("module", [ppo, poca])
def test_every_single_ratio_of_the_first_epoch_is_one(module, kind, memory, monkeypatch):
    """To 1e-5, in every live sample of every part. In the control one agent's note of one row is off by 1e-4."""
    ratios = []
    surrogate = onpolicy.clipped_surrogate

    def spy(ratio, *rest):
        ratios.append(ratio.detach() - 1)
        return surrogate(ratio, *rest)

    monkeypatch.setattr(onpolicy, "clipped_surrogate", spy)
    build = test_ppo.learner if module is ppo else test_poca.learner
    settings = {"memory": memory, "memory_size": 8, "sequence": 4 if memory != "none" else None}
    algorithm, collector = build(Everything(kind), epochs=1, minibatches=1, normalise_obs=True, **settings)
    for _ in range(2):
        window = window_of(algorithm, collector)
        algorithm.update(window, 0.0)
    assert torch.cat([x.flatten() for x in ratios]).abs().max() < 1e-5
    window = window_of(algorithm, collector)
    note = window.record["log_prob"].clone()
    place = (window.alive[:-1] & window.acted[:-1, :, None]).nonzero()[-1]
    note[tuple(place)] += 1e-4
    algorithm.update(replace(window, record={"log_prob": note}), 0.0)
    assert ratios[-1].abs().max() > 5e-5


# ---------------------------------------------------------------------------------------------------------- exact games


def lake():
    """FrozenLake's transitions: state, action, probability, successor, reward, end; one a row, as tensors."""
    table = gymnasium.make("FrozenLake-v1", map_name="4x4", is_slippery=True).unwrapped.P
    rows = [(s, a, *row) for s, moves in table.items() for a, ways in moves.items() for row in ways]
    return [torch.tensor(x, dtype=torch.float64 if isinstance(x[2], float) else None) for x in zip(*rows, strict=True)]


@pytest.mark.parametrize(("gamma", "known"), [(0.99, 0.542026), (1.0, 0.823529)])
def test_the_value_of_the_frozen_lake_is_the_known_one(gamma, known):
    """Value iteration by one-step returns, until nothing moves. The control counts the limit of 100 steps as an end,
    and gets less.
    """
    state, action, share, after, reward, end = lake()
    assert len(state) == 152
    value, sweeps = torch.zeros(16, dtype=torch.float64), []
    for _ in range(900):
        ends = end.view(1, -1, 1)
        found = n_step_return(reward.double().view(1, -1, 1), value[after].view(1, -1, 1), ends, ends, gamma, 1)
        q = torch.zeros(64, dtype=torch.float64).index_add(0, 4 * state + action, share * found.flatten())
        value = q.view(16, 4).amax(1)
        sweeps.append(value[0].item())
    assert value[0].item() == pytest.approx(known, abs=1e-6)
    assert sweeps[99] == pytest.approx({0.99: 0.522281, 1.0: 0.744190}[gamma], abs=1e-6)


def test_the_learners_own_targets_lead_to_the_value_of_the_frozen_lake():
    """Q-learning's targets of every transition at once, into a table, gamma 0.99."""
    state, action, share, after, reward, end = lake()
    rows = len(state)
    world = Probe(test_ppo.show_nothing, test_ppo.pay_nothing, actions=spaces.Discrete(4), length=9)
    algorithm, collector, _ = made("iql", world, rows, horizon=1, memory="none", gamma=0.99)
    ended = end.view(1, rows, 1)
    window = replace(
        window_of(algorithm, collector),
        obs={"agent": torch.stack([state, after]).view(2, rows, 1, 1).float()},
        reward=reward.float().view(1, rows, 1),
        terminated=ended,
        episode_terminated=ended[..., 0],
    )
    q = torch.zeros(16, 4)
    algorithm._unrolled = lambda value, seen, carry: {"agent": q[seen.obs["agent"][..., 0].long()]}
    for _ in range(400):
        target = algorithm._batch(window).target.flatten()
        q = torch.zeros(64).index_add(0, 4 * state + action, share.float() * target).view(16, 4)
    assert q[0].max().item() == pytest.approx(0.542026, abs=1e-4)


def fitted(name, mixer, steps, lr):
    """Q_tot of all nine pairs of choices of a matrix game, each learned from once a step, and the squared error."""
    env = make(f"matrix/{name}", {"episode_limit": 1}, 9, 0, CPU, with_state=True)
    settings = {"mixer": mixer, "share": "none", "gamma": 0.0, "hidden": (16,), "horizon": 1, "max_grad_norm": None}
    algorithm, collector = test_qlearning.learner(env, **settings)
    window = window_of(algorithm, collector)
    pairs = torch.tensor(list(itertools.product(range(3), repeat=2)))
    window.action["agent"].discrete[0, ..., 0] = pairs
    pay = {"climbing": test_coma.CLIMBING, "monotonic": MONOTONIC}[name]
    paid = pay.flatten().view(1, 9, 1)
    window = replace(window, reward=torch.zeros_like(window.reward), group_reward=paid.expand_as(window.group_reward))
    for step in range(steps):
        batch = algorithm._batch(window)
        loss = (batch.q - batch.target).square().mean()
        algorithm._optimiser.step(loss, {"value": lr * (1 - step / steps) + 1e-5})
    return batch.q.detach().view(3, 3), (batch.q - batch.target).square().sum().item()


MONOTONIC = torch.tensor([[8.0, -12, -12], [-12, 0, 0], [-12, 0, 0]])


def test_vdn_fits_climbing_and_the_counterexample_by_least_squares():
    """Row means plus column means less the mean: literal. On Climbing the best is then (2, 2), which pays 5."""
    fit, _ = fitted("climbing", "sum", 300, 3e-2)
    known = [[-9.2222, -8.5556, -1.2222], [-10.5556, -9.8889, -2.5556], [0.7778, 1.4444, 8.7778]]
    torch.testing.assert_close(fit, torch.tensor(known), atol=0.02, rtol=0)
    assert (divmod(int(fit.argmax()), 3), test_coma.CLIMBING[2, 2].item()) == ((2, 2), 5)
    fit, error = fitted("monotonic", "sum", 300, 3e-2)
    known = [[-6.2222, -4.8889, -4.8889], [-4.8889, -3.5556, -3.5556], [-4.8889, -3.5556, -3.5556]]
    torch.testing.assert_close(fit, torch.tensor(known), atol=0.02, rtol=0)
    assert error == pytest.approx(455.11, abs=0.1)


def test_qmix_fits_the_counterexample_better_and_cannot_fit_it_well():
    """No monotone table is nearer than 288; a mixer without the restriction, QPLEX, is."""
    assert 287.9 < fitted("monotonic", "monotonic", 300, 2e-2)[1] < 320.5
    assert fitted("monotonic", "duplex", 300, 2e-2)[1] < 280


@pytest.mark.parametrize(("k", "pays"), [(-30.0, 2.0), (0.0, 10.0)])
@pytest.mark.parametrize("name", ["ippo", "coma"])
def test_policy_gradients_are_paid_two_where_a_miss_costs_much(name, k, pays):
    """Penalty from k = -25 on; the control asks for nothing, and the ten are found."""
    env = make("matrix/penalty", {"k": k, "episode_limit": 1}, 64, 0, CPU)
    (team,) = env.spec.default_teams()
    settings = {"hidden": (16,), "horizon": 8, "gamma": 0.0, "lr": 1e-2}
    if name == "ippo":
        algorithm = ppo.PPO(team, PPOConfig(**settings, entropy_coef=0.0, minibatches=1), 64, None, 0, CPU)
    else:
        more = {"critic_lr": 1e-2, "critic_hidden": (16,), "epsilon": 0.05, "target_every": 5}
        algorithm = test_coma.COMA(
            team, test_coma.COMAConfig(**settings, **more, normalise_advantage=True), 64, None, 0, CPU
        )
    collector = Collector(env, {team.name: algorithm.policy}, seed=0)
    for _ in range(25 if name == "ippo" else 60):
        algorithm.update(window_of(algorithm, collector), 0.0)
    algorithm.policy.epsilon = 0.0
    window = window_of(algorithm, collector)
    paid = (window.reward.mean(-1) + window.group_reward[..., 0])[window.acted[:-1]]
    assert paid.median().item() == pays


@pytest.mark.parametrize("name", ["iql", "ddpg", "sac", "maddpg", "masac"])
def test_who_is_cut_alone_is_worth_for_itself_what_it_would_have_been(name):
    """The row behind shows it as it stood, dead to the others; a team's critic, the control, counts on it no more."""
    algorithm, collector, targets = made(name, Everything("discrete", dead=0.0), 16)
    window = window_of(algorithm, collector)
    stays = (window.alive[:-2] & window.alive[1:-1]).all(-1) & window.acted[1:-1] & window.acted[:-2]
    t, b = stays.nonzero()[0].tolist()
    window.truncated[t, b, 0] = True
    alive = window.alive.clone()
    alive[t + 1, b, 0] = False
    found = []
    for shown in (window, replace(window, alive=alive)):
        with torch.no_grad():
            worth = [targets(algorithm, shown)[t, b]]
            if name in {"sac", "masac"}:  # the entropy of what it would have done
                algorithm._noise.manual_seed(0)
                worth.append(algorithm._draw(shown)[1][t + 1, b])
        found.append(torch.cat(worth))
    assert torch.equal(*found) == (name in OF_AGENTS)
