"""Every scenario against mpe2: equal states and actions over whole episodes.

Both implementations run in double precision, because contacts amplify rounding errors over an episode. Single precision
is compared over every single step, from the same state.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.worlds.particle import SCENARIOS
from coterie.envs.worlds.particle.particle_world import ParticleWorld
from coterie.envs.worlds.world import Outcome, State

NUM_ENVS, STEPS = 3, 25
Parts = dict[str, Tensor]


def make_world(scenario: str, **config: Any) -> ParticleWorld:
    module, name = SCENARIOS[scenario].split(":")
    world = getattr(importlib.import_module(module), name)
    return world(world.Config(**config), with_state=True)


# ------------------------------------------------------------------------------------------------------ starts


def crowd_movers(world: ParticleWorld, parts: Parts) -> Parts:
    """In half of the environments, agents start close together and moving, so that they collide."""
    crowded = torch.arange(NUM_ENVS) % 2
    factor = torch.where(crowded == 1, 0.2, 1.0)
    vel = torch.rand(parts["vel"].shape, dtype=parts["vel"].dtype, generator=torch.Generator().manual_seed(3)) - 0.5
    return {"moving": parts["moving"] * factor, "vel": vel * crowded}


def crowd_all(world: ParticleWorld, parts: Parts) -> Parts:
    """As `crowd_movers`, with resting bodies close as well."""
    factor = torch.where(torch.arange(NUM_ENVS) % 2 == 1, 0.3, 1.0)
    return {**crowd_movers(world, parts), "rest": parts["rest"] * factor}


def on_landmarks(world: ParticleWorld, parts: Parts) -> Parts:
    return {"moving": parts["rest"] + 0.12, "vel": torch.full_like(parts["rest"], -0.6)}


def on_prey(world: ParticleWorld, parts: Parts) -> Parts:
    return {"moving": parts["moving"] * 0.08}


def on_circle(world: ParticleWorld, parts: Parts) -> Parts:
    n = parts["moving"].shape[1]
    angle = 0.3 + torch.arange(n, dtype=parts["rest"].dtype) * 2 * math.pi / n
    circle = 0.5 * torch.stack((angle.cos(), angle.sin())).unsqueeze(2)
    return {"moving": parts["rest"] + circle.flip(1) * 1.06}


def on_line(world: ParticleWorld, parts: Parts) -> Parts:
    n = parts["moving"].shape[1]
    part = torch.linspace(0, 1, n, dtype=parts["rest"].dtype).view(-1, 1)
    places = torch.lerp(parts["rest"][:, :1], parts["rest"][:, 1:], part.flip(0))
    return {"moving": places + 0.04, "vel": torch.full_like(places, -0.2)}


# -------------------------------------------------------------------------------------------------- mpe2


def set_goals(raw: Any, scenario: str, parts: Parts, env_index: int) -> None:
    """Copies everything except positions from our environment to the one of mpe2."""
    agents, landmarks = raw.world.agents, raw.world.landmarks
    goals = parts["goal"][..., env_index].argmax(-1) if "goal" in parts else None
    if scenario in ("simple_adversary", "simple_push", "simple_crypto"):
        assert goals is not None
        for agent in agents:
            agent.goal_a = landmarks[int(goals)]
    if scenario == "simple_push":
        agents[1].color = np.array([0.25, 0.25, 0.25])
        agents[1].color[int(goals) + 1] += 0.5
    elif scenario == "simple_crypto":
        agents[1].color = landmarks[int(goals)].color
        agents[2].key = landmarks[int(parts["key"][:, env_index].argmax())].color
    elif scenario == "simple_speaker_listener":
        agents[0].goal_b = landmarks[int(goals)]
    elif scenario == "simple_reference":
        for agent, goal in zip(agents, goals, strict=True):
            agent.goal_b = landmarks[int(goal)]
    elif scenario == "simple_line":
        first, last = (landmark.state.p_pos for landmark in landmarks)
        raw.scenario._expected_positions = list(np.linspace(first, last, len(agents)))
    elif scenario == "collect_treasure":
        for i, landmark in enumerate(landmarks):
            landmark.type = int(parts["kind"][:, i, env_index].argmax())


def set_state(raw: Any, world: ParticleWorld, parts: Parts, env_index: int) -> None:
    """Copies the state of our environment to the one of mpe2."""
    pos = world.physics.positions(parts)[..., env_index].numpy()
    vel = parts["vel"][..., env_index].numpy()
    agents = {agent.name: agent for agent in raw.world.agents}
    landmarks = iter(raw.world.landmarks)
    for i, body in enumerate(world.scenario.bodies):
        entity = agents[body.name] if body.name in agents else next(landmarks)
        entity.state.p_pos = pos[:, i].astype(np.float64)
        entity.state.p_vel = vel[:, i].astype(np.float64) if i < vel.shape[1] else np.zeros(2)
        assert entity.size == body.size, body.name
        assert entity.collide == body.collides, body.name
    assert next(landmarks, None) is None
    set_goals(raw, world.scenario.name, parts, env_index)


class Respawn:
    """Replaces the generator of mpe2, so that its treasures reappear where ours did."""

    def __init__(self, raw: Any, parts: Parts, env_index: int):
        absent = [i for i, landmark in enumerate(raw.world.landmarks) if not landmark.alive]
        self._place = iter([parts["rest"][:, i, env_index].numpy() for i in absent])
        self._kind = iter([int(parts["kind"][:, i, env_index].argmax()) for i in absent])

    def uniform(self, *bounds: Any) -> Any:
        return next(self._place).copy() if bounds else 0.5

    def integers(self, *bounds: Any) -> int:
        return next(self._kind)


# -------------------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    scenario: str
    version: int
    config: dict[str, Any] = field(default_factory=dict)
    mpe2_settings: dict[str, Any] = field(default_factory=dict)
    stage: int | None = None
    arrange: Callable[[ParticleWorld, Parts], Parts] = crowd_movers
    terminates: bool = False

    def __str__(self) -> str:
        return "-".join([self.scenario, *(f"{key}_{value}" for key, value in self.config.items())])


def neighbors(agents: int, landmarks: int) -> dict[str, int]:
    return {"num_agent_neighbors": agents, "num_landmark_neighbors": landmarks}


def curriculum(stage: int) -> dict[str, Any]:
    return {"curriculum": True, "curriculum_stage": stage}


SUCCESS = {"terminate_on_success": True}
CASES = [
    Case("simple", 3),
    Case("simple_adversary", 3),
    Case("simple_adversary", 3, {"agents": 4, **neighbors(2, 3)}, {"N": 4, **neighbors(2, 3)}),
    Case("simple_crypto", 3),
    Case("simple_push", 3),
    Case("simple_reference", 3),
    Case("simple_reference", 3, {"local_ratio": 0.2}, {"local_ratio": 0.2}),
    Case("simple_speaker_listener", 4),
    Case("simple_spread", 3),
    Case("simple_spread", 3, {"agents": 1}, {"N": 1}),
    Case("simple_spread", 3, {"agents": 5, "local_ratio": 0.8}, {"N": 5, "local_ratio": 0.8}),
    Case("simple_spread", 3, {"agents": 4, **neighbors(2, 1)}, {"N": 4, **neighbors(2, 1)}),
    Case("simple_spread", 3, curriculum(0), {"curriculum": True}, stage=0),
    Case("simple_spread", 3, curriculum(1), {"curriculum": True}, stage=1),
    Case("simple_spread", 3, {"agents": 2, **SUCCESS}, {"N": 2, **SUCCESS}, arrange=on_landmarks, terminates=True),
    Case("simple_tag", 3),
    Case("simple_tag", 3, {"obstacles": 0}, {"num_obstacles": 0}),
    Case("simple_tag", 3, {"good": 2, **neighbors(3, 1)}, {"num_good": 2, **neighbors(3, 1)}),
    Case("simple_tag", 3, neighbors(6, 4), neighbors(6, 4)),
    *(Case("simple_tag", 3, curriculum(stage), {"curriculum": True}, stage=stage) for stage in range(3)),
    Case("simple_tag", 3, SUCCESS, SUCCESS, arrange=on_prey, terminates=True),
    Case("simple_world_comm", 3, arrange=crowd_all),
    Case("simple_world_comm", 3, {"adversaries": 1, "forests": 0}, {"num_adversaries": 1, "num_forests": 0}),
    Case("collect_treasure", 1, arrange=crowd_all),
    Case("collect_treasure", 1, {"deposits": 1}, {"num_deposits": 1}, arrange=crowd_all),
    Case("simple_formation", 1),
    Case("simple_formation", 1, {"agents": 7}, {"N": 7}),
    Case("simple_formation", 1, SUCCESS, SUCCESS, arrange=on_circle, terminates=True),
    Case("simple_line", 1),
    Case("simple_line", 1, {"agents": 1}, {"N": 1}),
    Case("simple_line", 1, {"agents": 3, **SUCCESS}, {"N": 3, **SUCCESS}, arrange=on_line, terminates=True),
]


def draw_actions(world: ParticleWorld, stay: bool) -> tuple[dict[str, Action], list[dict[str, Any]]]:
    """Draws random actions in our format and in that of mpe2, one dict per environment."""
    our_actions, mpe2_actions = {}, [{} for _ in range(NUM_ENVS)]
    for role in world.spec.roles:
        spec = role.action
        if spec.choices:
            choice = torch.randint(spec.choices[0], (NUM_ENVS, role.n, 1)) * (not stay)
            our_actions[role.name] = Action(discrete=choice)
            given = choice[..., 0].numpy()
        else:
            numbers = torch.rand(NUM_ENVS, role.n, spec.continuous) * (not stay)
            our_actions[role.name] = Action(continuous=numbers.double() * 2 - 1)
            given = numbers.numpy()
        for env_index in range(NUM_ENVS):
            for i, agent in enumerate(role.agents):
                mpe2_actions[env_index][agent] = given[env_index, i] if spec.continuous else int(given[env_index, i])
    return our_actions, mpe2_actions


def start_both(
    case: Case, actions: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[ParticleWorld, dict[str, Tensor], list[Any]]:
    world = make_world(case.scenario, actions=actions, **case.config)
    state = world.reset(torch.rand(NUM_ENVS, world.reset_noise_size, dtype=torch.float64))
    parts = world.physics.layout.split(state["flat"].T.contiguous())
    state = world.with_parts(state, **case.arrange(world, parts))
    parts = world.physics.layout.split(state["flat"].T.contiguous())
    module = importlib.import_module(f"mpe2.{case.scenario}_v{case.version}")
    envs = []
    for env_index in range(NUM_ENVS):
        env = module.parallel_env(continuous_actions=actions == "continuous", max_cycles=STEPS, **case.mpe2_settings)
        raw = env.aec_env.unwrapped
        if case.stage is not None:
            # The setter of mpe2 1.1.1 has no effect: a property of the base class ignores the assignment.
            monkeypatch.setattr(type(raw.scenario), "curriculum_stage", case.stage)
            raw.scenario.curriculum_stage = case.stage
        env.reset(seed=env_index)
        set_state(raw, world, parts, env_index)
        envs.append(env)
    return world, state, envs


def check_observations(world: ParticleWorld, state: dict[str, Tensor], expected_obs: dict[int, dict[str, Any]]) -> None:
    """Compares with the observations of every agent in mpe2, by environment."""
    obs = world.observe(state).obs
    for role in world.spec.roles:
        for env_index, observations in expected_obs.items():
            expected = np.stack([observations[agent] for agent in role.agents])
            assert np.allclose(obs[role.name][env_index].numpy(), expected, atol=1e-5, rtol=1e-6), role.name


def check_single_precision(
    world: ParticleWorld, state: State, action: dict[str, Action], noise: Tensor | None, expected: tuple[State, Outcome]
) -> None:
    single = {name: value.float() for name, value in state.items()}
    after, outcome = world.step(single, action, None if noise is None else noise.float())
    assert after["flat"].dtype == torch.float32
    assert torch.allclose(after["flat"], expected[0]["flat"].float(), atol=1e-5)
    assert torch.allclose(outcome.reward, expected[1].reward.float(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "actions"),
    [*((case, "discrete") for case in CASES), *((case, "continuous") for case in CASES if not case.config)],
    ids=str,
)
def test_observations_and_rewards_match_mpe2(case: Case, actions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(11)
    world, state, envs = start_both(case, actions, monkeypatch)
    for role in world.spec.roles:
        for agent in role.agents:
            expected_space = envs[0].action_space(agent)
            assert role.action_space == expected_space
            assert role.observation_space.shape == envs[0].observation_space(agent).shape
    shown = [{agent: env.aec_env.unwrapped.observe(agent) for agent in world.spec.agents} for env in envs]
    check_observations(world, state, dict(enumerate(shown)))
    running, early_terminations = list(range(NUM_ENVS)), 0
    for step in range(STEPS):
        our_actions, mpe2_actions = draw_actions(world, stay=case.terminates)
        noise = torch.rand(NUM_ENVS, world.step_noise_size, dtype=torch.float64) if world.step_noise_size else None
        before, (state, outcome) = state, world.step(state, our_actions, noise)
        check_single_precision(world, before, our_actions, noise, expected=(state, outcome))
        observations = {}
        for env_index in running:
            env = envs[env_index]
            if case.scenario == "collect_treasure":
                parts = world.physics.layout.split(state["flat"].T.contiguous())
                env.aec_env.unwrapped.world._np_random = Respawn(env.aec_env.unwrapped, parts, env_index)
            observations[env_index], rewards, terminations, truncations, _ = env.step(mpe2_actions[env_index])
            expected = [rewards[agent] for agent in world.spec.agents]
            assert np.allclose(outcome.reward[env_index].numpy(), expected, atol=1e-5, rtol=1e-6), (step, env_index)
            assert any(truncations.values()) == (step == STEPS - 1)
            if step < STEPS - 1:
                terminated = outcome.terminated is not None and bool(outcome.terminated[env_index])
                assert any(terminations.values()) == terminated
                early_terminations += terminated
        check_observations(world, state, observations)
        running = [
            env_index for env_index in running if outcome.terminated is None or not outcome.terminated[env_index]
        ]
    assert (early_terminations > 0) == case.terminates
