"""Behavioural cloning: every family fits a rule, with memory what has to be remembered, and masked places count not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algos import test_every
from algos.worlds import Everything, Probe, env_of
from coterie import registry
from coterie.imitation.batches import DemoBatches
from coterie.imitation.cloning import Pupil
from coterie.imitation.config import ImitationConfig
from coterie.imitation.recording import record
from coterie.policy import Policy
from coterie.types import Action

CPU = torch.device("cpu")
LEARNERS = [name for name in registry.ALGOS if registry.algorithm(name).capabilities.learns]
FAMILIES = ("mappo", "poca", "coma", "iql", "qmix", "maddpg", "masac")
"""One algorithm of each way of fitting, and of each optimiser."""


class Rule(Policy):
    """Does what a function of the team's observations, masks and its own memory says."""

    def __init__(self, team, does, memory=False):
        self.team, self._does, self._memory = team, does, memory

    def start(self, copies):
        return {"seen": torch.zeros(copies, self.team.n, 1)} if self._memory else {}

    def noise(self, steps, copies, generator):
        return [None] * steps

    def act(self, row, carry, noise, mode):
        if self._memory:
            (seen,) = row.obs.values()
            return self._does(row, carry["seen"].masked_fill(row.first[..., None], 0)), {"seen": seen[..., :1]}, {}
        return self._does(row), carry, {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def played(world, does, episodes=40, memory=False):
    env = env_of(world, 8)
    (team,) = env.spec.default_teams()
    rule: dict[str, Policy] = {team.name: Rule(team, does, memory)}
    return env, record(env, rule, episodes, {team.name: "greedy"}, 0, "some/world", {}, {})


def by_sight(row):
    """The first choice that is free, from 1 on if a number seen is larger than another, else from 2; and half the
    difference of the two.
    """
    found = {}
    for role, obs in row.obs.items():
        spec = SPECS[role]
        apart = obs[..., -1:] - obs[..., :1]
        picks, at = [], 0
        mask = row.action_mask.get(role)
        for choices in spec.choices:
            wanted = (2 - (apart > 0).long() + torch.arange(choices)) % choices
            free = torch.ones_like(wanted, dtype=torch.bool) if mask is None else mask[..., at : at + choices]
            picks.append(wanted.gather(-1, free.gather(-1, wanted).long().argmax(-1, keepdim=True)))
            at += choices
        number = (0.5 * apart).expand(*obs.shape[:-1], spec.continuous)
        found[role] = Action(torch.cat(picks, -1) if picks else None, number if spec.continuous else None)
    return found


SPECS = {}


def fitted(name, env, demos, memory, steps, **settings):
    """The share of demonstrated actions that a learner finds likeliest after so many steps, and the learner."""
    learner = test_every.learner(name, env, memory)
    pupil = Pupil(learner, ImitationConfig(steps=steps, **{"batch": 128, "lr": 5e-3} | settings), 1e-3, demos, 0, CPU)
    told: list[tuple[int, int]] = []
    line = pupil.warm_up(lambda done, total: told.append((done, total)))
    assert told[-1:] == ([(steps, steps)] if steps else [])
    return float(line.split(": ")[-1].partition("%")[0]) / 100, learner


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_clones_a_rule_with_roles_masks_and_death(name):
    world = Everything("multi_discrete" if name in {"coma", "iql", "qmix"} else "hybrid")
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, by_sight)
    untaught, _ = fitted(name, env, demos, "none", 0)
    agreement, _ = fitted(name, env, demos, "none", 500, lr=1e-2, batch=64)
    assert untaught < 0.7, "the negative control: without a step it does something else"
    assert agreement > 0.95


@pytest.mark.parametrize("name", FAMILIES)
def test_with_memory_what_was_seen_before_is_cloned_and_without_it_is_not(name):
    """The rule does what the row before showed; rows show fresh numbers, so that nothing else tells it."""

    class Coins(Probe):
        step_noise = 1

        def step(self, state, action, noise):
            state, outcome = super().step(state, action, torch.zeros(len(noise), 0))
            return state | {"x": (noise[:, 0] > 0.5).float()}, outcome

    world = Coins(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1), n=2, length=6)
    env, demos = played(world, lambda row, seen: {"agent": Action(seen.long())}, 60, memory=True)
    with_memory, _ = fitted(name, env, demos, "gru", 150, lr=2e-2)
    without, _ = fitted(name, env, demos, "none", 100)
    assert with_memory > 0.95
    assert without < 0.8


@pytest.mark.parametrize("name", LEARNERS)
def test_all_algorithms_can_be_fitted(name):
    world = Everything("continuous" if "discrete" not in registry.algorithm(name).capabilities.actions else "discrete")
    learner = registry.algorithm(name)
    if not learner.capabilities.team:
        world = Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1))
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, by_sight, episodes=4)
    agreement, built = fitted(name, env, demos, "none", 2)
    assert 0 <= agreement <= 1
    assert built.policy.misfit


def test_the_dead_and_what_they_did_count_for_nothing():
    world = Everything()
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, by_sight)
    demos.tensors.pop("guard/action_mask")
    dead = ~demos.tensors["guard/alive"]
    other = demos.tensors["guard/discrete"].clone()
    other[dead] = 1 - other[dead].clamp(max=1)
    changed = replace(demos, tensors=demos.tensors | {"guard/discrete": other})
    weights = []
    for shown in (demos, changed):
        _, learner = fitted("mappo", env, shown, "none", 20)
        weights.append(torch.cat([p.flatten() for p in learner.policy.module.parameters()]))
    assert dead.any()
    assert torch.equal(*weights)
    other[~dead] = 1 - other[~dead].clamp(max=1)
    _, learner = fitted("mappo", env, changed, "none", 20)
    moved = torch.cat([p.flatten() for p in learner.policy.module.parameters()])
    assert not torch.equal(weights[0], moved), "the negative control: what the living do counts"


def test_sequences_begin_with_episodes_and_run_on_into_the_next():
    world = Probe(lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: age.view(-1, 1), length=3)
    env, demos = played(world, lambda row: {"agent": Action((row.obs["agent"] > 1).long())}, episodes=5)
    (team,) = env.spec.default_teams()
    batches = DemoBatches(demos, team, remembers=True, rows=7, seed=0, device=CPU)
    batch = batches.draw()
    assert batch.obs["agent"][..., 0, 0].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert batch.first[..., 0].tolist() == [[True, True], [False, False], [False, False]]
    rows = DemoBatches(demos, team, remembers=False, rows=7, seed=0, device=CPU).draw()
    assert rows.live.shape == (1, 7, 1)
    before = torch.where(rows.first[0, :, 0], 0, (rows.obs["agent"][0, :, 0, 0] - 1 > 1).long())
    done = rows.before["agent"].discrete
    assert done is not None
    given = torch.where(rows.first[0, :, 0], 0, done[:, 0, 0])
    assert given.tolist() == before.tolist(), "what was done in the row before stands beside every row"


def test_imitation_leaves_the_learners_own_moments_as_they_are():
    world = Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1))
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, by_sight, episodes=4)
    for name in FAMILIES:
        learner = test_every.learner(name, env, "none")
        before = [p.clone() for p in learner.policy.networks[0].parameters()]
        kept = repr({key: value for key, value in learner.state_dict().items() if "optimiser" in key})
        Pupil(learner, ImitationConfig(steps=3), 1e-3, demos, 0, CPU).warm_up(lambda done, total: None)
        assert repr({key: value for key, value in learner.state_dict().items() if "optimiser" in key}) == kept
        assert any(not torch.equal(a, b) for a, b in zip(before, learner.policy.networks[0].parameters(), strict=True))


def test_a_spread_is_fitted_only_where_that_is_asked_for():
    world = Probe(
        lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1), actions=spaces.Box(-1.0, 1.0, (1,))
    )
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, by_sight, episodes=4)
    spreads = []
    for asked in (False, True):
        _, learner = fitted("mappo", env, demos, "none", 30, fit_spread=asked)
        spreads.append(float(learner.policy.log_std["agent"].detach().exp().mean()))
    assert spreads[0] == pytest.approx(test_every.learner("mappo", env, "none").config.init_std)
    assert spreads[1] < 0.9 * spreads[0]


def test_targets_are_where_the_fitted_policy_is():
    world = Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1))
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, by_sight, episodes=4)
    _, q = fitted("iql", env, demos, "none", 3)
    _, actor = fitted("ddpg", env, demos, "none", 3)
    for online, target in ((q.module, q.target), (actor.policy.net, actor._target_net)):
        pairs = zip(online.parameters(), target.module.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_the_strength_falls_to_nothing_at_its_share_of_the_run():
    config = ImitationConfig(strength=0.5, until=0.4)
    assert [config.strength_at(p) for p in (0.0, 0.1, 0.2, 0.4, 0.9)] == pytest.approx([0.5, 0.375, 0.25, 0.0, 0.0])
    constant = ImitationConfig(strength=0.5, until=1.0, schedule="constant")
    assert [constant.strength_at(p) for p in (0.0, 0.99, 1.0)] == [0.5, 0.5, 0.0]


def test_epochs_are_passes_over_the_rows():
    assert ImitationConfig(epochs=2, batch=100).warm_steps(500) == 10
    assert ImitationConfig(steps=7).warm_steps(500) == 7
