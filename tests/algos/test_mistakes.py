"""Mistakes that public code made, for every family: each test fails where the mistake is put in."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces

from algos import test_coma, test_ddpg, test_poca, test_ppo, test_sac
from algos.families import FAMILIES, GRU, OF_AGENTS, made, q_learner, window_of
from algos.test_every import learner as preset
from algos.worlds import Everything, Probe, env_of
from coterie.algos import onpolicy
from coterie.collect import Collector
from coterie.types import tree_leaves, tree_map

# ------------------------------------------------------------------------------------------------------- whose is what


def other_places(one, other):
    """Places [t, copy, agent] where they differ."""
    return {tuple(place) for place in (one != other).nonzero().tolist()}


@pytest.mark.parametrize("name", FAMILIES)
def test_flags_rewards_and_observations_reach_the_targets_of_their_own_copy_and_agent_alone(name):
    """Flattening one of them copy by copy and another agent by agent would mix three copies of two agents. What one
    agent of copy 1 sees next, earns, or the end of its life changes its own target, or its team's, and no other.
    """
    alone = name in OF_AGENTS
    world = Probe(lambda x, age: x.view(-1, 1, 1), test_ppo.pay_nothing, n=2, length=9, start=lambda noise: noise[:, 0])
    settings = {"memory": "none"} if name not in {"ppo", "mappo", "poca", "coma"} else {}
    algorithm, collector, targets = made(name, world, 3, horizon=1, **settings)
    window = window_of(algorithm, collector)
    with torch.no_grad():
        plain = targets(algorithm, window)
        own, team = {(0, 1, 0)}, {(0, 1, 0), (0, 1, 1)}  # the second place of six, or the third
        obs = window.obs["agent"].clone()
        obs[1, 1, 0] += 5
        assert other_places(plain, targets(algorithm, replace(window, obs={"agent": obs}))) == (own if alone else team)
        reward = window.reward.clone()
        reward[0, 1, 0] += 5
        shared = name in {"vdn", "poca", "coma"}  # the others pay each agent its own
        found = other_places(plain, targets(algorithm, replace(window, reward=reward)))
        assert found == (team if shared else own)
        ended = window.terminated.clone()
        ended[0, 1, 0 if alone else slice(None)] = True
        found = targets(algorithm, replace(window, terminated=ended))
        assert other_places(plain, found) == (own if alone else team)
        assert not found[0, 1, 0 if alone else slice(None)].any()


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


@pytest.mark.parametrize("name", PRESETS)
def test_the_reward_of_a_last_step_moves_the_critic(name):
    """Every step is the last. Paid or not, a critic whose loss leaves ended rows out would learn the same."""
    found = []
    for pay in (0.0, 1.0):
        world = Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c, p=pay: p * x.view(-1, 1), n=2)
        algorithm = preset(name, env_of(world, 16), "none")
        collector = Collector(env_of(world, 16), {algorithm.team.name: algorithm.policy}, seed=0)
        for _ in range(2):
            window = window_of(algorithm, collector)
            assert window.terminated[window.acted[:-1]].all()
            algorithm.update(window, 0.0)
        state = algorithm.state_dict()
        found.append(tree_leaves(state["critic"] if "critic" in state else state["module"]))
    assert not same(*found)


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
def test_critics_with_memory_forget_the_life_before_in_the_first_row_of_the_next(name, monkeypatch):
    """Lives of three steps and a closing row. What is seen in the first one changes its own targets and none of those
    after it. The control begins lives one row late: in the flag that collectors give, and in what critics of a team
    take from the closing rows.
    """
    begins = onpolicy.begins

    def begins_late(window, as_team):
        rows = begins(window, as_team)
        return torch.cat([rows[:1], rows[:-1]]) if as_team else rows

    world = Probe(lambda x, age: x.view(-1, 1, 1) + age.view(-1, 1, 1), test_ppo.pay_nothing, n=2, length=3)
    settings = GRU | {"memory_size": 8, FAMILIES[name][3] or "n_step": 0.0 if FAMILIES[name][3] else 1}
    for late in (False, True):
        algorithm, collector, targets = made(name, world, horizon=12, **settings)
        window, carry = window_of(algorithm, collector), getattr(algorithm, "_carry", None)
        if late:
            window = replace(window, first=torch.cat([window.first[:1], window.first[:-1]]))
            monkeypatch.setattr(onpolicy, "begins", begins_late)
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


# ------------------------------------------------------------------------------------------------- probes of MA-POCA


@pytest.mark.parametrize("masked", [True, False])
def test_poca_leaves_a_best_action_that_is_masked(masked):
    """The control masks nothing, and the best is taken."""
    mask = torch.tensor([True, True, not masked])
    world = Probe(test_ppo.show_nothing, lambda x, age, d, c: d.float(), n=2, actions=spaces.Discrete(3), mask=mask)
    found = test_poca.mean_reward(*test_poca.train(world, 20))
    assert found == pytest.approx(1.0 if masked else 2.0, abs=0.05)


@pytest.mark.parametrize("agent_id", [True, False])
def test_poca_tells_agents_that_see_the_same_apart_by_their_id(agent_id):
    """Agent 0 is to choose 0, agent 1 is to choose 1; without the id one policy cannot."""
    world = Probe(test_ppo.show_nothing, lambda x, age, d, c: (d == torch.tensor([0, 1])).float(), n=2)
    found = test_poca.mean_reward(*test_poca.train(world, 20, agent_id=agent_id))
    assert found > 0.95 if agent_id else found < 0.7
