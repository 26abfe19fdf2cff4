"""Every scenario against the maintained package: the same state and actions, over whole episodes.

Both sides run in double precision, because bodies in contact multiply a rounding error many times in an episode. Single
precision is held to it over every single step, from the same state.
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

from coterie.envs.particle import SCENARIOS
from coterie.envs.particle.task import ParticleWorld
from coterie.envs.world import Outcome, State
from coterie.types import Action

COPIES, STEPS = 3, 25
Parts = dict[str, Tensor]


def world_of(scenario: str, **config: Any) -> ParticleWorld:
    module, name = SCENARIOS[scenario].split(":")
    world = getattr(importlib.import_module(module), name)
    return world(world.Config(**config), with_state=True)


# ------------------------------------------------------------------------------------------------------ starts


def crowd(world: ParticleWorld, parts: Parts) -> Parts:
    """Half of the copies start with the agents close together and moving, so that they collide."""
    crowded = torch.arange(COPIES) % 2
    near = torch.where(crowded == 1, 0.2, 1.0)
    vel = torch.rand(parts["vel"].shape, dtype=parts["vel"].dtype, generator=torch.Generator().manual_seed(3)) - 0.5
    return {"moving": parts["moving"] * near, "vel": vel * crowded}


def crowd_all(world: ParticleWorld, parts: Parts) -> Parts:
    """As `crowd`, and what rests is close as well."""
    near = torch.where(torch.arange(COPIES) % 2 == 1, 0.3, 1.0)
    return {**crowd(world, parts), "rest": parts["rest"] * near}


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


# -------------------------------------------------------------------------------------------------- the package


def set_goals(raw: Any, scenario: str, parts: Parts, copy: int) -> None:
    """Gives the package's world what our copy drew beside places."""
    agents, landmarks = raw.world.agents, raw.world.landmarks
    goals = parts["goal"][..., copy].argmax(-1) if "goal" in parts else None
    if scenario in ("simple_adversary", "simple_push", "simple_crypto"):
        assert goals is not None
        for agent in agents:
            agent.goal_a = landmarks[int(goals)]
    if scenario == "simple_push":
        agents[1].color = np.array([0.25, 0.25, 0.25])
        agents[1].color[int(goals) + 1] += 0.5
    elif scenario == "simple_crypto":
        agents[1].color = landmarks[int(goals)].color
        agents[2].key = landmarks[int(parts["key"][:, copy].argmax())].color
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
            landmark.type = int(parts["kind"][:, i, copy].argmax())


def set_state(raw: Any, scenario: str, world: ParticleWorld, parts: Parts, copy: int) -> None:
    pos = world.physics.positions(parts)[..., copy].numpy()
    vel = parts["vel"][..., copy].numpy()
    agents = {agent.name: agent for agent in raw.world.agents}
    landmarks = iter(raw.world.landmarks)
    for i, body in enumerate(world.plan.bodies):
        entity = agents[body.name] if body.name in agents else next(landmarks)
        entity.state.p_pos = pos[:, i].astype(np.float64)
        entity.state.p_vel = vel[:, i].astype(np.float64) if i < vel.shape[1] else np.zeros(2)
        assert entity.size == body.size, body.name
        assert entity.collide == body.collides, body.name
    assert next(landmarks, None) is None
    set_goals(raw, scenario, parts, copy)


class Respawn:
    """Stands in for the package's generator: new treasures come where ours came."""

    def __init__(self, raw: Any, parts: Parts, copy: int):
        back = [i for i, landmark in enumerate(raw.world.landmarks) if not landmark.alive]
        self._place = iter([parts["rest"][:, i, copy].numpy() for i in back])
        self._kind = iter([int(parts["kind"][:, i, copy].argmax()) for i in back])

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
    theirs: dict[str, Any] = field(default_factory=dict)
    stage: int | None = None
    arrange: Callable[[ParticleWorld, Parts], Parts] = crowd
    ends: bool = False

    def __str__(self) -> str:
        return "-".join([self.scenario, *(f"{key}_{value}" for key, value in self.config.items())])


def neighbours(agents: int, landmarks: int) -> dict[str, int]:
    return {"num_agent_neighbors": agents, "num_landmark_neighbors": landmarks}


def curriculum(stage: int) -> dict[str, Any]:
    return {"curriculum": True, "curriculum_stage": stage}


SUCCESS = {"terminate_on_success": True}
CASES = [
    Case("simple", 3),
    Case("simple_adversary", 3),
    Case("simple_adversary", 3, {"agents": 4, **neighbours(2, 3)}, {"N": 4, **neighbours(2, 3)}),
    Case("simple_adversary", 3, neighbours(4, 5), neighbours(4, 5)),
    Case("simple_crypto", 3),
    Case("simple_push", 3),
    Case("simple_reference", 3),
    Case("simple_reference", 3, {"local_ratio": 0.2}, {"local_ratio": 0.2}),
    Case("simple_speaker_listener", 4),
    Case("simple_spread", 3),
    Case("simple_spread", 3, {"agents": 1}, {"N": 1}),
    Case("simple_spread", 3, {"agents": 5, "local_ratio": 0.8}, {"N": 5, "local_ratio": 0.8}),
    Case("simple_spread", 3, {"agents": 4, **neighbours(2, 1)}, {"N": 4, **neighbours(2, 1)}),
    Case("simple_spread", 3, neighbours(5, 4), neighbours(5, 4)),
    Case("simple_spread", 3, curriculum(0), {"curriculum": True}, stage=0),
    Case("simple_spread", 3, curriculum(1), {"curriculum": True}, stage=1),
    Case("simple_spread", 3, {"agents": 2, **SUCCESS}, {"N": 2, **SUCCESS}, arrange=on_landmarks, ends=True),
    Case("simple_tag", 3),
    Case(
        "simple_tag",
        3,
        {"good": 2, "adversaries": 2, "obstacles": 3},
        {"num_good": 2, "num_adversaries": 2, "num_obstacles": 3},
    ),
    Case("simple_tag", 3, {"obstacles": 0}, {"num_obstacles": 0}),
    Case("simple_tag", 3, {"good": 2, **neighbours(3, 1)}, {"num_good": 2, **neighbours(3, 1)}),
    Case("simple_tag", 3, neighbours(6, 4), neighbours(6, 4)),
    *(Case("simple_tag", 3, curriculum(stage), {"curriculum": True}, stage=stage) for stage in range(3)),
    Case("simple_tag", 3, SUCCESS, SUCCESS, arrange=on_prey, ends=True),
    Case("simple_world_comm", 3, arrange=crowd_all),
    Case(
        "simple_world_comm",
        3,
        {"good": 3, "adversaries": 2, "obstacles": 2, "food": 1, "forests": 3},
        {"num_good": 3, "num_adversaries": 2, "num_obstacles": 2, "num_food": 1, "num_forests": 3},
        arrange=crowd_all,
    ),
    Case("simple_world_comm", 3, {"adversaries": 1, "forests": 0}, {"num_adversaries": 1, "num_forests": 0}),
    Case("collect_treasure", 1, arrange=crowd_all),
    Case(
        "collect_treasure",
        1,
        {"collectors": 4, "deposits": 3, "treasures": 2},
        {"num_collectors": 4, "num_deposits": 3, "num_treasures": 2},
        arrange=crowd_all,
    ),
    Case(
        "collect_treasure",
        1,
        {"deposits": 1, "treasures": 1},
        {"num_deposits": 1, "num_treasures": 1},
        arrange=crowd_all,
    ),
    Case("simple_formation", 1),
    Case("simple_formation", 1, {"agents": 7}, {"N": 7}),
    Case("simple_formation", 1, SUCCESS, SUCCESS, arrange=on_circle, ends=True),
    Case("simple_line", 1),
    Case("simple_line", 1, {"agents": 1}, {"N": 1}),
    Case("simple_line", 1, {"agents": 3, **SUCCESS}, {"N": 3, **SUCCESS}, arrange=on_line, ends=True),
]


def draw_actions(world: ParticleWorld, still: bool) -> tuple[dict[str, Action], list[dict[str, Any]]]:
    """Random actions in our form and in the package's, a dict a copy."""
    ours, theirs = {}, [{} for _ in range(COPIES)]
    for role in world.spec.roles:
        spec = role.action
        if spec.choices:
            chosen = torch.randint(spec.choices[0], (COPIES, role.n, 1)) * (not still)
            ours[role.name] = Action(discrete=chosen)
            given = chosen[..., 0].numpy()
        else:
            numbers = torch.rand(COPIES, role.n, spec.continuous) * (not still)
            ours[role.name] = Action(continuous=numbers.double() * 2 - 1)
            given = numbers.numpy()
        for copy in range(COPIES):
            for i, agent in enumerate(role.agents):
                theirs[copy][agent] = given[copy, i] if spec.continuous else int(given[copy, i])
    return ours, theirs


def start_both(
    case: Case, actions: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[ParticleWorld, dict[str, Tensor], list[Any]]:
    world = world_of(case.scenario, actions=actions, **case.config)
    state = world.restart(torch.rand(COPIES, world.restart_noise, dtype=torch.float64))
    parts = world.physics.rows.split(state["rows"].T.contiguous())
    state = world.arranged(state, **case.arrange(world, parts))
    parts = world.physics.rows.split(state["rows"].T.contiguous())
    module = importlib.import_module(f"mpe2.{case.scenario}_v{case.version}")
    envs = []
    for copy in range(COPIES):
        env = module.parallel_env(continuous_actions=actions == "continuous", max_cycles=STEPS, **case.theirs)
        raw = env.aec_env.unwrapped
        if case.stage is not None:
            # The package's own setter does nothing in 1.1.1: a property of its base class swallows the assignment.
            monkeypatch.setattr(type(raw.scenario), "curriculum_stage", case.stage)
            raw.scenario.curriculum_stage = case.stage
        env.reset(seed=copy)
        set_state(raw, case.scenario, world, parts, copy)
        envs.append(env)
    return world, state, envs


def check_observations(world: ParticleWorld, state: dict[str, Tensor], theirs: dict[int, dict[str, Any]]) -> None:
    """theirs: by copy, what the package shows every agent."""
    obs = world.view(state).obs
    for role in world.spec.roles:
        for copy, seen in theirs.items():
            expected = np.stack([seen[agent] for agent in role.agents])
            assert np.allclose(obs[role.name][copy].numpy(), expected, atol=1e-5, rtol=1e-6), role.name


def check_single_precision(
    world: ParticleWorld, state: State, action: dict[str, Action], noise: Tensor | None, expected: tuple[State, Outcome]
) -> None:
    single = {name: value.float() for name, value in state.items()}
    after, outcome = world.step(single, action, None if noise is None else noise.float())
    assert after["rows"].dtype == torch.float32
    assert torch.allclose(after["rows"], expected[0]["rows"].float(), atol=1e-5)
    assert torch.allclose(outcome.reward, expected[1].reward.float(), atol=1e-5)


@pytest.mark.parametrize("actions", ["discrete", "continuous"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_observations_and_rewards_are_the_packages(case: Case, actions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(11)
    world, state, envs = start_both(case, actions, monkeypatch)
    for role in world.spec.roles:
        for agent in role.agents:
            theirs = envs[0].action_space(agent)
            assert role.action_space == theirs
            assert role.observation_space.shape == envs[0].observation_space(agent).shape
    shown = [{agent: env.aec_env.unwrapped.observe(agent) for agent in world.spec.agents} for env in envs]
    check_observations(world, state, dict(enumerate(shown)))
    going, ended_early = list(range(COPIES)), 0
    for step in range(STEPS):
        ours, theirs = draw_actions(world, still=case.ends)
        noise = torch.rand(COPIES, world.step_noise, dtype=torch.float64) if world.step_noise else None
        before, (state, outcome) = state, world.step(state, ours, noise)
        check_single_precision(world, before, ours, noise, (state, outcome))
        seen = {}
        for copy in going:
            env = envs[copy]
            if case.scenario == "collect_treasure":
                parts = world.physics.rows.split(state["rows"].T.contiguous())
                env.aec_env.unwrapped.world._np_random = Respawn(env.aec_env.unwrapped, parts, copy)
            seen[copy], rewards, terminations, truncations, _ = env.step(theirs[copy])
            expected = [rewards[agent] for agent in world.spec.agents]
            assert np.allclose(outcome.reward[copy].numpy(), expected, atol=1e-5, rtol=1e-6), (step, copy)
            assert any(truncations.values()) == (step == STEPS - 1)
            if step < STEPS - 1:
                ended = outcome.ended is not None and bool(outcome.ended[copy])
                assert any(terminations.values()) == ended
                ended_early += ended
        check_observations(world, state, seen)
        going = [copy for copy in going if outcome.ended is None or not outcome.ended[copy]]
    assert (ended_early > 0) == case.ends
