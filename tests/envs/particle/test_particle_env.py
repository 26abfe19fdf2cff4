"""Particle worlds as environments: restarts, limits, parameters a copy, exact resume, states, pictures, settings."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from coterie.envs.particle import SCENARIOS
from coterie.envs.particle.assignment import assign
from coterie.envs.particle.task import ParticleWorld
from coterie.envs.samplers import sampler
from coterie.envs.world import WorldEnv
from coterie.types import Action, Row, Step, tree_leaves


def class_of(scenario: str) -> Any:
    module, name = SCENARIOS[scenario].split(":")
    return getattr(importlib.import_module(module), name)


def world_of(scenario: str, with_state: bool = False, **config: Any) -> ParticleWorld:
    world = class_of(scenario)
    return world(world.Config(**config), with_state)


def actions_of(env: WorldEnv, draws: torch.Generator) -> dict[str, Action]:
    action = {}
    for role in env.spec.roles:
        shape = (env.copies, role.n)
        if role.action.choices:
            action[role.name] = Action(torch.randint(role.action.choices[0], (*shape, 1), generator=draws))
        else:
            numbers = torch.rand(*shape, role.action.continuous, generator=draws) * 2 - 1
            action[role.name] = Action(continuous=numbers)
    return action


def play(env: WorldEnv, steps: int, seed: int = 0) -> list[tuple[Step, Row]]:
    draws = torch.Generator().manual_seed(seed)
    return [env.step(actions_of(env, draws)) for _ in range(steps)]


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rows_and_steps_have_the_shapes_of_the_spec(scenario: str, kind: str) -> None:
    world = world_of(scenario, with_state=True, actions=kind)
    env = WorldEnv(world, 5, seed=0)
    spec = env.spec
    assert spec.name == f"particle/{scenario}"
    env.reset()
    for step, row in play(env, 28):
        assert step.reward.shape == (5, spec.n)
        assert set(step.metrics) == set(spec.metrics)
        assert {name: state.shape for name, state in row.state.items()} == {
            name: (5, size) for name, size in spec.state_sizes.items()
        }
        for role in spec.roles:
            assert row.obs[role.name].shape == (5, role.n, *role.observation_space.shape)
            assert row.obs[role.name].dtype == torch.float32
        assert all(bool(torch.isfinite(leaf).all()) for leaf in tree_leaves((step, row)) if leaf.is_floating_point())


def test_a_finished_copy_shows_its_last_row_and_then_begins_anew() -> None:
    env = WorldEnv(world_of("simple_spread", episode_limit=3), 4, seed=0)
    first = env.reset()
    assert bool(first.first.all())
    assert bool(first.acted.all())
    played = play(env, 8)
    for t, (step, row) in enumerate(played, start=1):
        assert bool(step.episode_truncated.all()) == (t % 4 == 3)
        assert not bool(step.episode_terminated.any())
        assert bool(row.acted.all()) == (t % 4 != 3)
        assert bool(row.first.all()) == (t % 4 == 0)
        assert bool((step.reward == 0).all()) == (t % 4 == 0)
        assert bool((step.truncated == step.episode_truncated[:, None]).all())
    velocity = played[3][1].obs["agent"][..., :2]
    assert bool((velocity == 0).all())
    assert not torch.equal(played[3][1].obs["agent"], first.obs["agent"])


def test_copies_that_end_alone_restart_alone() -> None:
    env = WorldEnv(world_of("simple_spread", agents=1, terminate_on_success=True, episode_limit=40), 64, seed=0)
    env.reset()
    lengths, closing = set(), torch.zeros(64, dtype=torch.bool)
    age = torch.zeros(64, dtype=torch.long)
    for step, row in play(env, 120):
        age = torch.where(closing, 0, age + 1)
        assert bool((step.reward[closing] == 0).all())
        assert torch.equal(row.first[:, 0], closing)
        closing = step.episode_terminated | step.episode_truncated
        assert not bool((step.episode_terminated & step.episode_truncated).any())
        assert bool((age[step.episode_truncated] == 40).all())
        assert bool((step.metrics["coverage"][step.episode_terminated] == 1).all())
        assert bool((step.metrics["coverage"][~closing] == 0).all())
        lengths |= set(age[closing].tolist())
    assert len(lengths) > 5


def test_the_limit_can_count_as_an_end() -> None:
    env = WorldEnv(world_of("simple_tag", episode_limit=2, limit_ends=True), 3, seed=0)
    env.reset()
    step = play(env, 2)[-1][0]
    assert bool(step.terminated.all())
    assert bool(step.episode_terminated.all())
    assert not bool(step.truncated.any())
    assert not bool(step.episode_truncated.any())


def test_without_a_limit_an_episode_goes_on() -> None:
    env = WorldEnv(world_of("simple", episode_limit=None), 3, seed=0)
    env.reset()
    assert not any(bool(step.episode_truncated.any()) for step, _ in play(env, 60))


def test_copies_can_differ_in_their_parameters_until_their_episodes_end() -> None:
    env = WorldEnv(world_of("simple_spread", episode_limit=4), 6, seed=0)
    env.vary({"local_ratio": sampler({"choices": [0, 1]})})
    env.reset()
    drawn = []
    for _ in range(3):
        own = env.state_dict()["state"]["local_ratio"] == 1
        drawn.append(own.tolist())
        for step, _ in play(env, 4):
            assert bool((step.reward[~own].amax(1) == step.reward[~own].amin(1)).all())
            assert bool((step.reward[own] == step.reward[own].round()).all())
        assert bool((env.state_dict()["state"]["local_ratio"] == own).all())
        play(env, 1)
    assert drawn[0] != drawn[1] != drawn[2]
    assert {True, False} <= {one for each in drawn for one in each}


def test_prey_can_be_of_different_speed() -> None:
    world = world_of("simple_tag", curriculum=True, curriculum_stage=2)
    state = world.restart(torch.full((2, world.restart_noise), 0.5))
    apart = torch.tensor([[[-0.8], [-0.8], [0.8], [0.0]], [[-0.8], [0.8], [0.8], [0.1]]]).expand(-1, -1, 2)
    away = torch.full((2, 2, 2), 0.85)
    state = world.arranged({**state, "prey_speed": torch.tensor([0.5, 1.0])}, moving=apart, rest=away)
    action = {"adversary": Action(torch.zeros(2, 3, 1, dtype=torch.long)), "agent": Action(torch.ones(2, 1, 1).long())}
    for _ in range(20):
        state, _ = world.step(state, action, None)
    speed = world.view(state).obs["agent"][:, 0, :2].norm(dim=-1)
    assert torch.allclose(speed, torch.tensor([0.65, 1.3]), atol=1e-3)


@pytest.mark.parametrize("scenario", ["simple_spread", "collect_treasure", "simple_world_comm", "simple_reference"])
def test_going_on_from_a_state_dict_gives_the_same_bits(scenario: str) -> None:
    env = WorldEnv(world_of(scenario, with_state=True, episode_limit=5), 7, seed=3)
    env.reset()
    play(env, 8)
    saved = env.state_dict()
    # As a checkpoint would bring it back: contiguous copies.
    state = {name: value.clone(memory_format=torch.contiguous_format) for name, value in saved["state"].items()}
    saved = {**{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in saved.items()}, "state": state}
    other = WorldEnv(world_of(scenario, with_state=True, episode_limit=5), 7, seed=99)
    other.load_state_dict(saved)
    for ours, theirs in zip(play(env, 13, seed=4), play(other, 13, seed=4), strict=True):
        left, right = tree_leaves(ours), tree_leaves(theirs)
        assert len(left) == len(right)
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_state_costs_nothing_unless_asked_for() -> None:
    env = WorldEnv(world_of("simple_adversary"), 2, seed=0)
    assert env.spec.state_sizes == {}
    assert env.reset().state == {}


def test_a_group_state_holds_no_more_than_the_group_knows() -> None:
    world = world_of("simple_adversary", with_state=True)
    noise = torch.rand(2, world.restart_noise)
    state = world.restart(noise)
    other = world.arranged(state, goal=1 - world.physics.rows.split(state["rows"].T.contiguous())["goal"])
    before, after = world.view(state).state, world.view(other).state
    assert torch.equal(before["adversary"], after["adversary"])
    assert not torch.equal(before["agent"], after["agent"])
    assert not torch.equal(before["global"], after["global"])


def test_bodies_in_the_same_place_do_not_break_the_world() -> None:
    world = world_of("simple_spread")
    state = world.restart(torch.full((2, world.restart_noise), 0.5))
    for _ in range(3):
        state, outcome = world.step(state, {"agent": Action(torch.zeros(2, 3, 1, dtype=torch.long))}, None)
        assert bool(torch.isfinite(outcome.reward).all())
        assert bool(torch.isfinite(state["rows"]).all())


@pytest.mark.parametrize("n", [1, 2, 4, 6, 9])
def test_assignment_is_the_cheapest(n: int) -> None:
    from scipy.optimize import linear_sum_assignment

    cost = torch.rand(n, n, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    expected = np.stack([linear_sum_assignment(cost[..., copy].numpy())[1] for copy in range(20)], axis=1)
    assert np.array_equal(assign(cost).numpy(), expected)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_can_be_drawn(scenario: str, kind: str) -> None:
    world = world_of(scenario, actions=kind)
    env = WorldEnv(world, 3, seed=0)
    env.reset()
    play(env, 6)
    assert env.render(copy=2, size=160).shape[0] > 0
    state = {name: value[2:] for name, value in env.state_dict()["state"].items()}
    scene = world.scene(state)
    assert scene.title == scenario
    assert {disc.label for disc in scene.discs} - {""} == set(world.spec.agents)
    assert len(scene.discs) == len(world.plan.bodies)
    speakers = [agent for role in world.plan.roles if role.symbols for agent in role.bodies]
    assert len(scene.messages) == len(speakers)
    assert set(scene.score) == {role.name for role in world.spec.roles}


def test_what_is_said_is_shown() -> None:
    world = world_of("simple_speaker_listener")
    state = world.restart(torch.rand(1, world.restart_noise))
    action = {"speaker": Action(torch.full((1, 1, 1), 2)), "listener": Action(torch.zeros(1, 1, 1, dtype=torch.long))}
    assert world.scene(state).messages[0].text == "_"
    state, outcome = world.step(state, action, None)
    scene = world.scene(state)
    assert (scene.messages[0].speaker, scene.messages[0].text) == ("speaker_0", "C")
    assert scene.score["speaker"] == pytest.approx(float(outcome.reward[0, 0]))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_settings_are_documented_and_closed(scenario: str) -> None:
    config = class_of(scenario).Config
    assert all(field.description for field in config.model_fields.values())
    assert inspect.getdoc(class_of(scenario))
    with pytest.raises(ValidationError):
        config(no_such_key=1)
    with pytest.raises(ValidationError):
        config(episode_limit=0)
    with pytest.raises(ValidationError):
        config().episode_limit = 3
