"""Particle worlds as environments: autoreset, limits, varying parameters, states, pictures."""

from __future__ import annotations

import importlib
from itertools import cycle
from typing import Any

import pytest
import torch

from coterie.config.samplers import parse_sampler
from coterie.core.types import Action, Step, Timestep
from coterie.envs.worlds.particle import SCENARIOS
from coterie.envs.worlds.particle.particle_world import ParticleWorld
from coterie.envs.worlds.world import WorldEnv


def world_class(scenario: str) -> Any:
    module, name = SCENARIOS[scenario].split(":")
    return getattr(importlib.import_module(module), name)


def make_world(scenario: str, with_state: bool = False, **config: Any) -> ParticleWorld:
    world = world_class(scenario)
    return world(world.Config(**config), with_state)


def random_actions(env: WorldEnv, generator: torch.Generator) -> dict[str, Action]:
    action = {}
    for role in env.spec.roles:
        shape = (env.num_envs, role.n)
        if role.action.choices:
            action[role.name] = Action(torch.randint(role.action.choices[0], (*shape, 1), generator=generator))
        else:
            numbers = torch.rand(*shape, role.action.continuous, generator=generator) * 2 - 1
            action[role.name] = Action(continuous=numbers)
    return action


def play(env: WorldEnv, steps: int, seed: int = 0) -> list[tuple[Step, Timestep]]:
    generator = torch.Generator().manual_seed(seed)
    return [env.step(random_actions(env, generator)) for _ in range(steps)]


def test_a_finished_environment_shows_its_final_timestep_and_then_resets() -> None:
    env = WorldEnv(make_world("simple_spread", episode_limit=3), 4, seed=0)
    first = env.reset()
    assert bool(first.first.all())
    assert bool(first.acted.all())
    played = play(env, 8)
    for t, (step, timestep) in enumerate(played, start=1):
        assert bool(step.episode_truncated.all()) == (t % 4 == 3)
        assert not bool(step.episode_terminated.any())
        assert bool(timestep.acted.all()) == (t % 4 != 3)
        assert bool(timestep.first.all()) == (t % 4 == 0)
        assert bool((step.reward == 0).all()) == (t % 4 == 0)
        assert bool((step.truncated == step.episode_truncated[:, None]).all())
    velocity = played[3][1].obs["agent"][..., :2]
    assert bool((velocity == 0).all())
    assert not torch.equal(played[3][1].obs["agent"], first.obs["agent"])


def test_environments_reset_independently() -> None:
    env = WorldEnv(make_world("simple_spread", agents=1, terminate_on_success=True, episode_limit=40), 64, seed=0)
    env.reset()
    lengths, final = set(), torch.zeros(64, dtype=torch.bool)
    age = torch.zeros(64, dtype=torch.long)
    for step, timestep in play(env, 120):
        age = torch.where(final, 0, age + 1)
        assert bool((step.reward[final] == 0).all())
        assert torch.equal(timestep.first[:, 0], final)
        final = step.episode_terminated | step.episode_truncated
        assert not bool((step.episode_terminated & step.episode_truncated).any())
        assert bool((age[step.episode_truncated] == 40).all())
        assert bool((step.metrics["coverage"][step.episode_terminated] == 1).all())
        assert bool((step.metrics["coverage"][~final] == 0).all())
        lengths |= set(age[final].tolist())
    assert len(lengths) > 5


def test_episodes_can_terminate_at_the_limit() -> None:
    env = WorldEnv(make_world("simple_tag", episode_limit=2, terminate_at_limit=True), 3, seed=0)
    env.reset()
    step = play(env, 2)[-1][0]
    assert bool(step.terminated.all())
    assert bool(step.episode_terminated.all())
    assert not bool(step.truncated.any())
    assert not bool(step.episode_truncated.any())


def test_without_a_limit_episodes_do_not_end() -> None:
    env = WorldEnv(make_world("simple", episode_limit=None), 3, seed=0)
    env.reset()
    assert not any(bool(step.episode_truncated.any()) for step, _ in play(env, 60))


def test_parameters_vary_between_environments_and_stay_fixed_within_an_episode() -> None:
    env = WorldEnv(make_world("simple_spread", episode_limit=4), 6, seed=0)
    env.set_samplers({"local_ratio": parse_sampler({"choices": [0, 1]})})
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
    assert {True, False} <= {value for values in drawn for value in values}


def test_a_group_state_excludes_parts_hidden_from_the_group() -> None:
    world = make_world("simple_adversary", with_state=True)
    noise = torch.rand(2, world.reset_noise_size)
    state = world.reset(noise)
    other = world.with_parts(state, goal=1 - world.physics.layout.split(state["flat"].T.contiguous())["goal"])
    before, after = world.observe(state).state, world.observe(other).state
    assert torch.equal(before["adversary"], after["adversary"])
    assert not torch.equal(before["agent"], after["agent"])
    assert not torch.equal(before["global"], after["global"])


def test_bodies_at_the_same_position_give_finite_numbers() -> None:
    world = make_world("simple_spread")
    state = world.reset(torch.full((2, world.reset_noise_size), 0.5))
    for _ in range(3):
        state, outcome = world.step(state, {"agent": Action(torch.zeros(2, 3, 1, dtype=torch.long))}, None)
        assert bool(torch.isfinite(outcome.reward).all())
        assert bool(torch.isfinite(state["flat"]).all())


@pytest.mark.parametrize(("scenario", "kind"), [*zip(SCENARIOS, cycle(["discrete", "continuous"]), strict=False)])
def test_every_scenario_can_be_rendered(scenario: str, kind: str) -> None:
    world = make_world(scenario, actions=kind)
    env = WorldEnv(world, 3, seed=0)
    env.reset()
    play(env, 6)
    assert env.render(env_index=2, size=160).shape[0] > 0
    state = {name: value[2:] for name, value in env.state_dict()["state"].items()}
    scene = world.scene(state)
    assert scene.title == scenario
    assert {disc.label for disc in scene.discs} - {""} == set(world.spec.agents)
    assert len(scene.discs) == len(world.scenario.bodies)
    speakers = [agent for role in world.scenario.roles if role.symbols for agent in role.bodies]
    assert len(scene.messages) == len(speakers)
    teams = {role.group for role in world.spec.roles}
    assert set(scene.score) == ({f"{team} return" for team in teams} if len(teams) > 1 else {"team return"})
    assert sum(scene.score.values()) == pytest.approx(float(state["returns"].sum()), abs=1e-4)


def test_messages_are_shown() -> None:
    world = make_world("simple_speaker_listener")
    state = world.reset(torch.rand(1, world.reset_noise_size))
    action = {"speaker": Action(torch.full((1, 1, 1), 2)), "listener": Action(torch.zeros(1, 1, 1, dtype=torch.long))}
    assert world.scene(state).messages[0].text == "_"
    state, outcome = world.step(state, action, None)
    scene = world.scene(state)
    assert (scene.messages[0].speaker, scene.messages[0].text) == ("speaker_0", "C")
    assert scene.score == {"team return": pytest.approx(float(outcome.reward.sum()))}
