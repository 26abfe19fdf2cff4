"""Behavior cloning: every family of algorithms learns a rule, recurrent ones also from earlier observations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

from algo_worlds import Everything, Probe, env_of
from coterie.config.imitation import ImitationConfig
from coterie.core.types import Action
from coterie.imitation.cloning import BehaviorCloner
from coterie.imitation.demo_batches import DemoBatches
from coterie.imitation.recorder import DemoSource, record
from coterie.policies.base import Policy
from preset_learners import preset_learner
from rule_policy import Rule

CPU = torch.device("cpu")
FAMILIES = ("mappo", "happo", "coma", "iql", "maddpg", "masac")
"""One algorithm for each kind of cloning loss and optimizer."""


def played(world, does, episodes=40, memory=False):
    env = env_of(world, 8)
    (team,) = env.spec.default_teams()
    rule: dict[str, Policy] = {team.name: Rule(team, does, memory)}
    return env, record(env, rule, DemoSource("some/world", {}), episodes=episodes, modes={team.name: "greedy"}, seed=0)


def follow_rule(row):
    """Chooses the first available choice, starting at 1 if the last observed number is larger than the first, otherwise
    at 2; continuous actions are half the difference of the two.
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


def pretrained(name, env, demos, memory, steps, **settings):
    """Returns a learner's accuracy after a number of steps, and the learner."""
    learner = preset_learner(name, env, memory)
    config = ImitationConfig(steps=steps, **{"batch_size": 128, "lr": 5e-3} | settings)
    cloner = BehaviorCloner(learner, config, demos, default_lr=1e-3, seed=0, device=CPU)
    reports: list[tuple[int, int]] = []
    line = cloner.pretrain(lambda done, total: reports.append((done, total)))
    assert reports[-1:] == ([(steps, steps)] if steps else [])
    return float(line.rpartition(" ")[2].removesuffix("%")) / 100, learner


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAMILIES, "mat"])
def test_every_family_clones_a_rule_with_roles_masks_and_death(name):
    world = Everything("multi_discrete" if name in {"coma", "iql"} else "hybrid")
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, follow_rule)
    untrained, _ = pretrained(name, env, demos, "none", 0)
    lr, steps = (4e-3, 500) if name == "mat" else (1e-2, 200)  # a transformer
    accuracy, _ = pretrained(name, env, demos, "none", steps, lr=lr, batch_size=64)
    assert untrained < 0.7, "negative control: without training it acts differently"
    assert accuracy > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mappo", "iql", "masac"])
def test_only_recurrent_policies_clone_a_rule_about_the_past(name):
    """The rule repeats the previous observation; observations are independent, so that only the past helps."""

    class Coins(Probe):
        step_noise_size = 1

        def step(self, state, action, noise):
            state, outcome = super().step(state, action, torch.zeros(len(noise), 0))
            return state | {"x": (noise[:, 0] > 0.5).float()}, outcome

    world = Coins(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1), n=2, length=6)
    env, demos = played(world, lambda row, seen: {"agent": Action(seen.long())}, 60, memory=True)
    with_memory, _ = pretrained(name, env, demos, "gru", 150, lr=2e-2)
    without, _ = pretrained(name, env, demos, "none", 100)
    assert with_memory > 0.95
    assert without < 0.8


def test_actions_of_dead_agents_have_no_effect():
    world = Everything()
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, follow_rule)
    demos.tensors.pop("guard/action_mask")
    dead = ~demos.tensors["guard/alive"]
    other = demos.tensors["guard/discrete"].clone()
    other[dead] = 1 - other[dead].clamp(max=1)
    changed = replace(demos, tensors=demos.tensors | {"guard/discrete": other})
    weights = []
    for shown in (demos, changed):
        _, learner = pretrained("mappo", env, shown, "none", 20)
        weights.append(torch.cat([p.flatten() for p in learner.policy.actor.parameters()]))
    assert dead.any()
    assert torch.equal(*weights)
    other[~dead] = 1 - other[~dead].clamp(max=1)
    _, learner = pretrained("mappo", env, changed, "none", 20)
    moved = torch.cat([p.flatten() for p in learner.policy.actor.parameters()])
    assert not torch.equal(weights[0], moved), "negative control: actions of living agents have an effect"


def test_sequences_start_with_episodes_and_continue_into_the_next():
    world = Probe(lambda x, age: age.view(-1, 1, 1), lambda x, age, d, c: age.view(-1, 1), length=3)
    env, demos = played(world, lambda row: {"agent": Action((row.obs["agent"] > 1).long())}, episodes=5)
    (team,) = env.spec.default_teams()
    batches = DemoBatches(demos, team, recurrent=True, timesteps=7, seed=0, device=CPU)
    batch = batches.draw()
    assert batch.obs["agent"][..., 0, 0].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert batch.first[..., 0].tolist() == [[True, True], [False, False], [False, False]]
    rows = DemoBatches(demos, team, recurrent=False, timesteps=7, seed=0, device=CPU).draw()
    assert rows.valid.shape == (1, 7, 1)
    before = torch.where(rows.first[0, :, 0], 0, (rows.obs["agent"][0, :, 0, 0] - 1 > 1).long())
    done = rows.last_action["agent"].discrete
    assert done is not None
    given = torch.where(rows.first[0, :, 0], 0, done[:, 0, 0])
    assert given.tolist() == before.tolist(), "the previous action is part of every timestep"


def test_imitation_keeps_the_moments_of_the_algorithms_own_optimizer():
    world = Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1))
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, follow_rule, episodes=4)
    for name in FAMILIES:
        learner = preset_learner(name, env, "none")
        before = [p.clone() for p in learner.policy.networks[0].parameters()]
        kept = repr({key: value for key, value in learner.state_dict().items() if "optimizer" in key})
        cloner = BehaviorCloner(learner, ImitationConfig(steps=3), demos, default_lr=1e-3, seed=0, device=CPU)
        cloner.pretrain(lambda done, total: None)
        assert repr({key: value for key, value in learner.state_dict().items() if "optimizer" in key}) == kept
        assert any(not torch.equal(a, b) for a, b in zip(before, learner.policy.networks[0].parameters(), strict=True))


def test_the_standard_deviation_is_trained_only_on_request():
    world = Probe(
        lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1), actions=spaces.Box(-1.0, 1.0, (1,))
    )
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, follow_rule, episodes=4)
    stds = []
    for fit_std in (False, True):
        _, learner = pretrained("mappo", env, demos, "none", 30, fit_std=fit_std)
        stds.append(float(learner.policy.actor.log_std["agent"].detach().exp().mean()))
    assert stds[0] == pytest.approx(preset_learner("mappo", env, "none").config.init_std)
    assert stds[1] < 0.9 * stds[0]


def test_target_networks_equal_the_trained_networks():
    world = Probe(lambda x, age: x.view(-1, 1, 1), lambda x, age, d, c: x.view(-1, 1))
    SPECS.update({role.name: role.action for role in world.spec.roles})
    env, demos = played(world, follow_rule, episodes=4)
    _, q = pretrained("iql", env, demos, "none", 3)
    _, actor = pretrained("ddpg", env, demos, "none", 3)
    for online, target in ((q.module, q.target), (actor.policy.net, actor.target_policy)):
        pairs = zip(online.parameters(), target.module.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_the_weight_decreases_to_zero_at_the_end_fraction():
    config = ImitationConfig(weight=0.5, end_fraction=0.4)
    assert [config.weight_at(p) for p in (0.0, 0.1, 0.2, 0.4, 0.9)] == pytest.approx([0.5, 0.375, 0.25, 0.0, 0.0])
    constant = ImitationConfig(weight=0.5, end_fraction=1.0, weight_schedule="constant")
    assert [constant.weight_at(p) for p in (0.0, 0.99, 1.0)] == [0.5, 0.5, 0.0]


def test_epochs_are_passes_over_the_timesteps():
    assert ImitationConfig(epochs=2, batch_size=100).pretraining_steps(500) == 10
    assert ImitationConfig(steps=7).pretraining_steps(500) == 7
