"""Known answers through every family's own code, and mistakes of public code put in to see that they are noticed.

What the mathematics say by themselves is in tests/math; here the same numbers have to come out of each learner's own
targets, from windows that a collector made.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces

from algos import test_coma, test_ddpg, test_poca, test_ppo, test_qlearning, test_sac
from algos.test_every import learner as preset
from algos.worlds import Everything, Probe, env_of
from coterie.algos import poca, ppo
from coterie.algos.ppo import PPOConfig
from coterie.collect import Collector
from coterie.envs.make import make
from coterie.math.returns import n_step_return
from coterie.math.running import ema_scale
from coterie.nets.joint import beside
from coterie.replay import Sample
from coterie.types import tree_leaves, tree_map

CPU = torch.device("cpu")


# ------------------------------------------------------------------- every family's targets of a window [T, B, N]


def ppo_targets(algorithm, window):
    return algorithm._targets(window)[0].target[..., 0]


def poca_targets(algorithm, window):
    return algorithm._targets(window)[0].target[..., 0].expand_as(window.reward)


def coma_targets(algorithm, window):
    algorithm._ahead.manual_seed(0)
    vectors = algorithm._joint.vectors(window.action)
    pi = algorithm.policy.choices(window.obs, window.action_mask, None, window.carry, None).exp()
    joint = algorithm._joint_action(vectors, pi[-1], window)
    return algorithm._targets(window, window.obs, joint, None, pi, beside(vectors))


def q_targets(algorithm, window):
    target = algorithm._batch(window).target
    return target if target.ndim == 3 else target.unsqueeze(-1).expand(*target.shape, window.reward.shape[-1])


def ddpg_targets(algorithm, window):
    algorithm._draw.manual_seed(0)
    index = torch.arange(window.copies)
    return algorithm._targets(algorithm._batch(Sample(window, index, torch.ones(window.copies))))


def sac_targets(algorithm, window):
    algorithm._noise.manual_seed(0)
    draw, spread = algorithm._draw(window)
    return algorithm._targets(window, draw, spread, torch.zeros(()))  # no temperature: nothing but rewards and Q


def q_learner(world, copies, **settings):
    return test_qlearning.learner(env_of(world, copies), **settings)


RAW = {"normalise_value": False, "normalise_advantage": False}
GRU = {"memory": "gru"}  # without one, learners from replay have targets of a sequence's first row alone
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "ppo": (test_ppo.learner, ppo_targets, RAW, "gae_lambda"),
    "mappo": (test_ppo.learner, ppo_targets, RAW | {"critic": "joint"}, "gae_lambda"),
    "poca": (test_poca.learner, poca_targets, RAW, "td_lambda"),
    "coma": (test_coma.learner, coma_targets, {}, "td_lambda"),
    "iql": (q_learner, q_targets, GRU, "trace_decay"),
    "vdn": (q_learner, q_targets, GRU | {"mixer": "sum"}, "trace_decay"),
    "ddpg": (test_ddpg.learner, ddpg_targets, GRU, ""),
    "maddpg": (test_ddpg.learner, ddpg_targets, GRU | {"critic": "joint"}, ""),
    "sac": (test_sac.learner, sac_targets, GRU, ""),
    "masac": (test_sac.learner, sac_targets, GRU | {"critic": "joint"}, ""),
}
"""How a learner is made, how its targets are had, with which settings, and the name of its lambda."""
OF_AGENTS = ("ppo", "iql", "ddpg", "sac")
WITH_LAMBDA = [name for name, family in FAMILIES.items() if family[3]]
WITH_STEPS = [name for name in FAMILIES if name in {"iql", "vdn", "ddpg", "maddpg", "sac", "masac"}]


def made(name, world, copies=4, **settings):
    """A learner of a family, its collector and its function of targets."""
    build, targets, own, _ = FAMILIES[name]
    algorithm, collector = build(world, copies, **own | {"horizon": 8} | settings)
    return algorithm, collector, targets


def teach(name, algorithm, worth):
    """From now on the critic that targets ask says worth[x] of who sees the number x, whatever is done."""
    table = torch.tensor(worth)

    def of(obs):
        return table[obs["agent"].long()]  # [.., N, 1]

    def group(obs, window, begins):
        value = of(obs)
        return torch.cat([value[:-1, :, :1], value[:-1]], 2), value[-1:, :, :1], []

    if name in {"ppo", "mappo"}:
        algorithm._values = lambda obs, state, begins: of(obs)
    elif name == "poca":
        algorithm._values = group
    elif name == "coma":
        algorithm.target.module = test_coma.Table(lambda obs, joint: table[obs.long()].expand(*obs.shape[:-1], 2))
    elif name in {"iql", "vdn"}:
        algorithm._worth = lambda value, q, picks, rows: of(rows.obs)[..., 0 if name == "vdn" else slice(None), 0]
    elif name in {"ddpg", "maddpg"}:
        algorithm._read = lambda critic, batch, start, stop: of(batch.rows.obs)[start:stop, ..., 0]
        algorithm._judge = lambda critic, seen, action: seen
    else:
        algorithm._q = lambda critics, window, rows, action, fresh: of(window.obs)[rows].expand(2, -1, -1, -1, 2)


def window_of(algorithm, collector):
    (window,) = collector.advance(algorithm.horizon)[0].values()
    return window


def clock(pay, length, limit, n=1):
    """Shows the age of an episode, and pays what a table says of it."""
    paid = torch.tensor(pay)
    return Probe(
        lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: paid[age.long()].view(-1, 1), n=n, length=length,
        limit=limit,
    )  # fmt: skip


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


# ------------------------------------------------------------------------------------------------------- whose is what


def other_places(one, other):
    """Places [t, copy, agent] where they differ."""
    return {tuple(place) for place in (one != other).nonzero().tolist()}


@pytest.mark.parametrize("name", FAMILIES)
def test_flags_rewards_and_observations_reach_the_targets_of_their_own_copy_and_agent_alone(name):
    """Flattening one of them copy by copy and another agent by agent would mix three copies of two agents. What one
    agent of copy 2 sees next, earns, or the end of its life changes its own target, or its team's, and no other.
    """
    alone = name in OF_AGENTS
    world = Probe(lambda x, age: x.view(-1, 1, 1), test_ppo.pay_nothing, n=2, length=9, start=lambda noise: noise[:, 0])
    settings = {"memory": "none"} if name not in {"ppo", "mappo", "poca", "coma"} else {}
    algorithm, collector, targets = made(name, world, 3, horizon=1, **settings)
    window = window_of(algorithm, collector)
    with torch.no_grad():
        plain = targets(algorithm, window)
        own, team = {(0, 2, 1)}, {(0, 2, 0), (0, 2, 1)}
        obs = window.obs["agent"].clone()
        obs[1, 2, 1] += 5
        assert other_places(plain, targets(algorithm, replace(window, obs={"agent": obs}))) == (own if alone else team)
        reward = window.reward.clone()
        reward[0, 2, 1] += 5
        shared = name in {"vdn", "poca", "coma"}  # the others pay each agent its own
        found = other_places(plain, targets(algorithm, replace(window, reward=reward)))
        assert found == (team if shared else own)
        ended = window.terminated.clone()
        ended[0, 2, 1 if alone else slice(None)] = True
        found = targets(algorithm, replace(window, terminated=ended))
        assert other_places(plain, found) == (own if alone else team)
        assert not found[0, 2, 1 if alone else slice(None)].any()


def weights(algorithm):
    """All that learning moves but what was stored, and memories, which may hold what a life that is over did."""
    state = algorithm.state_dict()
    parts = [part for key, part in state.items() if key not in {"replay", "carry"} and "optimis" not in key]
    return [x.clone() for x in tree_leaves(parts) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


PRESETS = ("ippo", "mappo", "poca", "coma", "iql", "vdn", "qmix", "qplex", "wqmix", "maddpg", "matd3", "sac", "masac")


def poisoned(window, places, actions=True, rewards=True):
    """The window with a million for each reward and note, and the first choice, at `places` [T, B, N]."""

    def done(action, here):
        numbers, choices = action.continuous, action.discrete
        here = here.unsqueeze(-1)
        return replace(
            action,
            continuous=None if numbers is None else torch.where(here, 1e6, numbers),
            discrete=None if choices is None else torch.where(here, 0, choices),
        )

    at, action = 0, dict(window.action)
    for role, x in window.action.items() if actions else ():
        n = (x.discrete if x.discrete is not None else x.continuous).shape[-2]
        action[role] = done(x, places[..., at : at + n])
        at += n
    record = {name: torch.where(places, 1e6, x) for name, x in window.record.items()}
    reward = torch.where(places, 1e6, window.reward) if rewards else window.reward
    return replace(window, reward=reward, action=action, record=record)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("name", PRESETS)
def test_what_was_done_and_paid_in_closing_rows_moves_no_weight(name, memory):
    """Of any learner, to the bit; in the control it is paid in rows that were acted on. What COMA's policy would do
    behind a limit it reads from the closing row.
    """
    moved = []
    for where in ("nowhere", "closing", "acted"):
        algorithm = preset(name, env_of(Everything(dead=0.0), 16), memory)
        collector = Collector(env_of(Everything(dead=0.0), 16), {algorithm.team.name: algorithm.policy}, seed=0)
        for _ in range(2):
            window = window_of(algorithm, collector)
            closing = ~window.acted[:-1].unsqueeze(-1).expand_as(window.reward)
            assert closing.any()
            places = {"nowhere": closing & ~closing, "closing": closing, "acted": ~closing}[where]
            if where == "acted":
                window = replace(window, reward=window.reward + places)
            else:
                window = poisoned(window, places, actions=name != "coma")
            algorithm.update(window, 0.0)
        moved.append(weights(algorithm))
    nowhere, closing, acted = moved
    assert all(x.isfinite().all() for x in closing)
    assert same(nowhere, closing)
    assert not same(nowhere, acted)


@pytest.mark.parametrize("where", ["dead", "live"])
@pytest.mark.parametrize("name", ["ippo", "poca", "iql", "ddpg", "td3", "sac"])
def test_what_the_learner_is_given_of_the_dead_moves_no_weight(name, where):
    """The collector cleans windows; this is put in behind it, so that the learner's own masks have to hold. Only who
    judges by an agent's own observation, or knows who is there, can be asked that.
    """
    found = []
    for poison in (False, True):
        algorithm = preset(name, env_of(Everything("discrete", dead=0.0), 16), "none")
        collector = Collector(env_of(Everything("discrete", dead=0.0), 16), {algorithm.team.name: algorithm.policy}, 0)
        for _ in range(2):
            window = window_of(algorithm, collector)
            alive = window.alive if where == "dead" else ~window.alive
            assert not alive.all()
            if poison:
                obs = {
                    "guard": torch.where(alive[..., :2, None], window.obs["guard"], 1e3),
                    "scout": torch.where(alive[..., 2:, None], window.obs["scout"], 1e3),
                }
                if where == "dead":  # a group is paid what stands there, as it is: collectors leave zeros
                    window = poisoned(window, ~alive[:-1], rewards=name != "poca")
                window = replace(window, obs=obs)
            algorithm.update(window, 0.0)
        found.append(weights(algorithm))
    assert same(*found) == (where == "dead")


# ------------------------------------------------------------------------------------------------------------- ratios

KINDS = list(itertools.product(Everything.KINDS, ("none", "gru", "lstm")))


@pytest.mark.parametrize(("kind", "memory"), KINDS)
@pytest.mark.parametrize("module", [ppo, poca])
def test_every_single_ratio_of_the_first_epoch_is_one(module, kind, memory, monkeypatch):
    """To 1e-5, in every live sample of every part. In the control one agent's note of one row is off by 1e-4."""
    ratios = []
    surrogate = module.clipped_surrogate

    def spy(ratio, *rest):
        ratios.append(ratio.detach() - 1)
        return surrogate(ratio, *rest)

    monkeypatch.setattr(module, "clipped_surrogate", spy)
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


# ----------------------------------------------------------------------------------------------- seeds and exploration

ACTING = ("ippo", "poca", "coma", "iql", "qmix", "maddpg", "masac")


@pytest.mark.parametrize("name", ACTING)
def test_copies_and_agents_that_see_the_same_explore_each_by_itself(name):
    """Three choices, near a uniform policy: two agents agree in a third of the copies. One draw for all copies, or for
    all agents, the mistake, makes them agree everywhere.
    """
    world = Probe(test_ppo.show_nothing, test_ppo.pay_nothing, n=2, actions=spaces.Discrete(3))
    algorithm = preset(name, env_of(world, 600), "none")
    row, policy = env_of(world, 600).reset(), algorithm.policy
    (noise,) = policy.noise(1, 600, torch.Generator().manual_seed(0))
    shares = []
    for mistake in (lambda x: x, lambda x: x[:1].expand_as(x).clone(), lambda x: x[:, :1].expand_as(x).clone()):
        with torch.no_grad():
            action = policy.act(row, policy.start(600), tree_map(mistake, noise), "explore")[0]["agent"].discrete
        shares.append(
            [(action[1:] == action[:-1]).float().mean().item(), (action[:, 0] == action[:, 1]).float().mean()]
        )
    assert shares[0] == pytest.approx([1 / 3, 1 / 3], abs=0.06)
    assert shares[1][0] == 1
    assert shares[2][1] == 1


def test_copies_begin_apart_and_seeds_choose_how():
    """Of a world, and of the same world elsewhere under another seed; the control gives both one seed."""
    first = [env_of(Everything(), 8, seed).reset().obs["guard"][:, 0, 0] for seed in (1, 2, 1)]
    assert len(first[0].unique()) == 8
    assert not torch.isin(first[0], first[1]).any()
    assert torch.equal(first[0], first[2])


# ------------------------------------------------------------------------------------------------------------- resume


REPLAYED = {"learning_starts": 200, "target_every": 2, "priority_exponent": 0.6, "replay": 2000, "updates": 3}
WHOLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (test_ppo.learner, {"minibatches": 2, "entropy_decay": 0.9, "epochs": 2}),
    "poca": (test_poca.learner, {"minibatches": 2, "epochs": 2}),
    "coma": (test_coma.learner, {"minibatches": 2, "epsilon_steps": 3000, "target_every": 2}),
    "qmix": (q_learner, REPLAYED | {"mixer": "monotonic", "reward_scale": "spread", "last_action": True}),
    "matd3": (test_ddpg.learner, REPLAYED | {"critic": "joint", "policy_delay": 2, "twin_critics": True, "batch": 8}),
    "masac": (test_sac.learner, REPLAYED | {"critic": "joint", "reward_scale": "standard", "batch": 8}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_resume_that_forgets_any_part_of_the_state_goes_on_otherwise(name):
    """With all of it: the same metrics and weights to the bit. Each part in turn is left as it was at the start:
    optimisers, targets, replay, counters, statistics, generators.
    """
    build, settings = WHOLE[name]
    settings = settings | {"memory": "gru", "memory_size": 8, "normalise_obs": True}
    whole, collector = build(Everything(), 8, **settings)
    for _ in range(3):
        whole.update(window_of(whole, collector), 0.2)
    state = copy.deepcopy(whole.state_dict())
    windows = [tree_map(torch.clone, window_of(whole, collector)) for _ in range(2)]

    def went_on(algorithm):
        metrics = [algorithm.update(window, 0.6) for window in windows]
        return metrics, weights(algorithm)

    metrics, moved = went_on(whole)
    for forgotten in (None, *state):
        other, _ = build(Everything(), 8, **settings)
        fresh = copy.deepcopy(other.state_dict())
        other.load_state_dict(copy.deepcopy(state | ({} if forgotten is None else {forgotten: fresh[forgotten]})))
        again, weighed = went_on(other)
        assert (again == metrics and same(moved, weighed)) == (forgotten is None), forgotten


# ------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("name", ["ippo", "poca", "coma", "qmix", "maddpg", "masac"])
def test_who_acts_forgets_the_life_before_in_its_first_row_and_not_later(name):
    """What is remembered of another life changes nothing where a life begins; where it does not begin, it does."""
    env = env_of(Everything(dead=0.0), 8)
    policy = preset(name, env, "gru").policy
    row, (noise,) = env.reset(), policy.noise(1, 8, torch.Generator().manual_seed(0))
    strange = {key: torch.ones_like(x) for key, x in policy.start(8).items()}
    for first in (True, False):
        here = replace(row, first=torch.full_like(row.first, first))
        with torch.no_grad():
            (_, one, noted), (_, other, again) = (
                policy.act(here, carry, noise, "explore") for carry in (policy.start(8), strange)
            )
        assert {"h"} <= set(one)
        assert torch.equal(one["h"], other["h"]) == first
        assert all(torch.equal(noted[key], again[key]) for key in noted) or not first


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "coma"])
def test_critics_with_memory_forget_the_life_before_in_the_first_row_of_the_next(name):
    """Lives of three steps and a closing row. What is seen in the first one changes its own targets and none of those
    after it. The control begins lives one row late, in the flag that collectors give.
    """
    world = Probe(lambda x, age: x.view(-1, 1, 1) + age.view(-1, 1, 1), test_ppo.pay_nothing, n=2, length=3)
    settings = GRU | {"memory_size": 8, FAMILIES[name][3] or "n_step": 0.0 if FAMILIES[name][3] else 1}
    for late in (False, True):
        algorithm, collector, targets = made(name, world, horizon=12, **settings)
        window, carry = window_of(algorithm, collector), getattr(algorithm, "_carry", None)
        if late:
            window = replace(window, first=torch.cat([window.first[:1], window.first[:-1]]))
        obs = window.obs["agent"].clone()
        obs[:4] -= 3
        found = []
        for seen in (window.obs, {"agent": obs}):
            if carry is not None:
                algorithm._carry = carry
            with torch.no_grad():
                found.append(targets(algorithm, replace(window, obs=seen)))
        assert (found[0][:2] != found[1][:2]).any(-1).all()
        later = [x[3:] for x in found]  # the target of a closing row is the value of the row after it, the first
        assert torch.allclose(*later, atol=1e-6) != late


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
