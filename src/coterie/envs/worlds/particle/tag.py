"""Pursuit: in simple_tag slow pursuers chase fast prey among obstacles, in simple_world_comm there are also food and
forests to hide in.

Rules: mpe2 1.1 `simple_tag_v3` and `simple_world_comm_v3`.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.device_constants import constant
from coterie.core.specs import Entities, ObservationParts
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.particle.particle_world import DiscOverrides, ParticleConfig, ParticleWorld
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import (
    Neighbors,
    NoiseReader,
    Role,
    ScenarioOutcome,
    ScenarioSpec,
    Transition,
    body_indices,
    concat_features,
    others,
    own_features,
    repeat_for,
)

PREY_SPEED_BY_STAGE = (0.5, 0.75, 1.0)
"""Speed of the prey at each stage of the curriculum, as a fraction of full speed."""


class SimpleTagConfig(ParticleConfig):
    """Settings of particle/simple_tag."""

    good: int = Field(1, ge=1, le=64)
    """Number of prey."""
    adversaries: int = Field(3, ge=1, le=64)
    """Number of pursuers."""
    obstacles: int = Field(2, ge=0, le=64)
    """Number of obstacles."""
    variant: Variant = "mpe2"
    """Variant: `mpe2`, the maintained package, or `openai`, the original implementation of published results."""
    curriculum: bool = False
    """Slow the prey down before the last stage of the curriculum."""
    curriculum_stage: int = Field(0, ge=0, le=2)
    """Initial stage of the curriculum: prey at 0.5, 0.75 or 1 of full speed."""
    prey_speed: float = Field(1.0, gt=0, le=10)
    """Factor on the speed limit and thrust of the prey, in addition to the curriculum."""
    terminate_on_success: bool = False
    """Terminate the episode when all prey are touched at the same time."""
    num_agent_neighbors: int | None = Field(None, ge=1, le=1000)
    """Number of nearest other agents to observe; None for all."""
    num_landmark_neighbors: int | None = Field(None, ge=1, le=1000)
    """Number of nearest obstacles to observe; None for all."""


def boundary_penalty(pos: Tensor) -> Tensor:
    """Returns the penalty for leaving the arena at positions [2, n, B], summed over x and y: [n, B].

    Per coordinate x: 0 below 0.9, 10 (x - 0.9) below 1, and exp(2 x - 2) above, at most 10.
    """
    x = pos.abs()
    return torch.where(x < 1, 10 * (x - 0.9).clamp_min(0), (2 * x - 2).exp().clamp_max(10)).sum(0)


@final
class SimpleTag(ParticleWorld):
    """Slow pursuers chase fast prey among obstacles.

    Every pursuer receives 10 for each contact between any pursuer and prey. Prey lose 10 for each of their contacts,
    and a penalty outside of the arena. Observation: own velocity and position, offsets to obstacles and to other
    agents, velocities of other prey (with a limited number of neighbors: of every slot, zero for pursuers). The
    variants have equal rewards and differ in the order of motion and of actions. Metric: `touches`, the number of
    contacts in the episode.
    """

    Config = SimpleTagConfig

    def __init__(self, config: SimpleTagConfig, with_state: bool = False):
        self.config = config
        pursuers, agents = config.adversaries, config.adversaries + config.good
        self._pursuers, self._prey = range(pursuers), range(pursuers, agents)
        self._agents = range(agents)
        self._obstacles = range(agents, agents + config.obstacles)
        speed = config.prey_speed * (PREY_SPEED_BY_STAGE[config.curriculum_stage] if config.curriculum else 1.0)
        pursuer = {"size": 0.075, "thrust": 3.0, "max_speed": 1.0, "speed_parameter": "pursuer_speed", "color": "red"}
        prey = {"size": 0.05, "thrust": 4.0, "max_speed": 1.3, "speed_parameter": "prey_speed", "color": "green"}
        scenario = ScenarioSpec(
            name="simple_tag",
            bodies=[
                *(Body(f"adversary_{i}", moves=True, collides=True, kind="agent", **pursuer) for i in range(pursuers)),
                *(Body(f"agent_{i}", moves=True, collides=True, kind="agent", **prey) for i in range(config.good)),
                *(
                    Body(f"landmark_{i}", 0.2, collides=True, kind="obstacle", color="dark")
                    for i in range(config.obstacles)
                ),
            ],
            roles=[
                Role("adversary", "adversary", tuple(self._pursuers), parts=self._parts("enemy", "ally")),
                Role("agent", "agent", tuple(self._prey), parts=self._parts("ally", "enemy")),
            ],
            measured_pairs={"catch": (self._pursuers, self._prey)},
            parameters={"prey_speed": Parameter(speed, 0.05, 10, "factor on thrust and speed limit of the prey")},
            optional_parameters={
                "pursuer_speed": Parameter(1, 0.05, 10, "factor on thrust and speed limit of the pursuers")
            },
            metrics=("touches",),
            linear_observations=config.num_agent_neighbors is None and config.num_landmark_neighbors is None,
        )
        super().__init__(scenario, config, with_state, config.variant)

    def _parts(self, prey: str, pursuers: str) -> ObservationParts:
        """Parts of the observation of agents to which prey and pursuers are entities of these kinds."""
        config, first, absent = self.config, 4, (0.0, 0.0)
        limits, counts = (config.num_landmark_neighbors, config.num_agent_neighbors), {"prey": len(self._prey)}
        counts["pursuers"] = len(self._pursuers)
        counts["prey" if prey == "ally" else "pursuers"] -= 1  # the agent itself
        obstacles = limits[0] or len(self._obstacles)
        entities = [
            Entities.rows("own", (0, 4)),
            Entities.rows("object", (first, 2), count=obstacles, absent=None if limits[0] is None else absent),
        ]
        start = first + 2 * obstacles
        if limits[1] is not None:  # the nearest, of both kinds
            runs = (start, 2), (start + 2 * limits[1], 2)
            entities.append(Entities.rows("agent", *runs, count=limits[1], absent=absent * 2))
        else:
            offset, velocity = start + 2 * counts["pursuers"], start + 2 * sum(counts.values())
            entities.append(Entities.rows(pursuers, (start, 2), count=counts["pursuers"]))
            entities.append(Entities.rows(prey, (offset, 2), (velocity, 2), count=counts["prey"]))
        return ObservationParts(tuple(entities), position=(2, 3))

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {
            "moving": noise.uniform(-1, 1, 2, len(self._agents)),
            "rest": noise.uniform(-0.9, 0.9, 2, len(self._obstacles)),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        return {
            "adversary": self._observations_of(self._pursuers, parts["vel"], pos),
            "agent": self._observations_of(self._prey, parts["vel"], pos),
        }

    def _observations_of(self, agents: range, vel: Tensor, pos: Tensor) -> Tensor:
        config = self.config
        obstacles = Neighbors(pos, agents, [self._obstacles] * len(agents), config.num_landmark_neighbors)
        neighbors = Neighbors(pos, agents, others(agents, self._agents), config.num_agent_neighbors)
        if config.num_agent_neighbors is None:
            prey_vel = Neighbors(pos, agents, others(agents, self._prey)).features(vel)
        else:
            prey_only_vel = torch.cat((torch.zeros_like(vel[:, self._pursuers]), vel[:, self._prey]), dim=1)
            prey_vel = neighbors.features(prey_only_vel)
        return concat_features(
            own_features(vel, agents), own_features(pos, agents), obstacles.offset, neighbors.offset, prey_vel
        )

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        contact_distance = self.scenario.bodies[self._pursuers[0]].size + self.scenario.bodies[self._prey[0]].size
        touching = (transition.distance("catch") < contact_distance).to(transition.flat.dtype)
        touches = touching.sum(0)
        total = touches.sum(0)
        prey = -10 * touches - boundary_penalty(transition.part("moving")[:, self._prey.start :])
        reward = torch.cat(((10 * total).expand(len(self._pursuers), -1), prey))
        terminated = (touches > 0).all(0) if self.config.terminate_on_success else None
        return ScenarioOutcome(reward, lambda returns: {"touches": returns[0] / 10}, terminated)

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return {}


_SYMBOLS = 4
_PURSUER, _PREY, _FOOD, _FOREST = 0.075, 0.045, 0.03, 0.3


class SimpleWorldCommConfig(ParticleConfig):
    """Settings of particle/simple_world_comm."""

    good: int = Field(2, ge=1, le=64)
    """Number of prey."""
    adversaries: int = Field(4, ge=1, le=64)
    """Number of pursuers, including their leader."""
    obstacles: int = Field(1, ge=0, le=64)
    """Number of obstacles."""
    food: int = Field(2, ge=1, le=64)
    """Number of food sources."""
    forests: int = Field(2, ge=0, le=64)
    """Number of forests."""


@final
class SimpleWorldComm(ParticleWorld):
    """Pursuers with a leader chase prey among food and forests.

    Every pursuer receives 5 for each contact between any pursuer and prey, minus 0.1 times its distance to the nearest
    prey. Prey lose 5 for each of their contacts, twice the penalty outside of the arena, and 0.05 times the distance to
    the nearest food; they receive 2 for each food source they touch.

    Agents in a forest are visible only from within the same forest and cannot see out. The leader sees all agents.
    Features of invisible agents are zero. Observation: own velocity and position, offsets to obstacles, food and
    forests, offsets to other agents, velocities of other prey, and one feature per forest, 1 inside and -1 outside.
    Pursuers also observe the leader's message. Metric: `touches`, the number of contacts at the last step.
    """

    Config = SimpleWorldCommConfig

    def __init__(self, config: SimpleWorldCommConfig, with_state: bool = False):
        self.config = config
        pursuers, agents = config.adversaries, config.adversaries + config.good
        self._pursuers, self._prey, self._agents = range(pursuers), range(pursuers, agents), range(agents)
        first_food = agents + config.obstacles
        first_forest = first_food + config.food
        self._landmarks = range(agents, first_forest + config.forests)
        self._food = range(first_food, first_forest)
        self._forests = range(first_forest, first_forest + config.forests)
        pursuer = {"size": _PURSUER, "thrust": 3.0, "max_speed": 1.0, "moves": True, "collides": True, "kind": "agent"}
        prey = {**pursuer, "size": _PREY, "thrust": 4.0, "max_speed": 1.3}
        scenario = ScenarioSpec(
            name="simple_world_comm",
            bodies=[
                Body("leadadversary_0", color="orange", **pursuer),
                *(Body(f"adversary_{i}", color="red", **pursuer) for i in range(pursuers - 1)),
                *(Body(f"agent_{i}", color="green", **prey) for i in range(config.good)),
                *(
                    Body(f"landmark_{i}", 0.2, collides=True, kind="obstacle", color="dark")
                    for i in range(config.obstacles)
                ),
                *(Body(f"food_{i}", _FOOD, kind="food", color="blue") for i in range(config.food)),
                *(Body(f"forest_{i}", _FOREST, kind="forest", color="green") for i in range(config.forests)),
            ],
            roles=[
                Role("leadadversary", "adversary", (0,), _SYMBOLS),
                *([Role("adversary", "adversary", tuple(self._pursuers[1:]))] if pursuers > 1 else []),
                Role("agent", "agent", tuple(self._prey)),
            ],
            measured_pairs={"catch": (self._pursuers, self._prey), "food": (self._prey, self._food)},
            metrics=("touches",),
            linear_observations=False,
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {
            "moving": noise.uniform(-1, 1, 2, len(self._agents)),
            "rest": noise.uniform(-0.9, 0.9, 2, len(self._landmarks)),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        vel, n, pursuers = parts["vel"], len(self._agents), len(self._pursuers)
        landmarks = Neighbors(pos, self._agents, [self._landmarks] * n).offset
        forests = landmarks[:, len(self._landmarks) - len(self._forests) :]
        size = constant(tuple(body.size for body in self.scenario.bodies[:n]), pos.device, pos.dtype).view(-1, 1, 1)
        inside = torch.hypot(forests[:, :, 0], forests[:, :, 1]) < _FOREST + size
        visible = self._visible(inside).to(pos.dtype).unsqueeze(1)
        # Offsets and velocities of all agents for every observer, [n, 2, n, B], zero for invisible agents.
        offset = (pos[:, :n].unsqueeze(1) - pos[:, :n].unsqueeze(2)).transpose(0, 1) * visible
        moving = vel.unsqueeze(0) * visible
        sign = 2 * inside.to(pos.dtype) - 1
        common = concat_features(
            own_features(vel, self._agents),
            own_features(pos, self._agents),
            landmarks,
            _of_others(offset, self._agents, self._agents),
        )
        pursuer_obs = concat_features(
            common[:pursuers],
            _of_others(moving, self._pursuers, self._prey),
            sign[:pursuers],
            repeat_for(parts["comm"][:, 0], pursuers),
        )
        prey_velocities = _of_others(moving, self._prey, self._prey)
        obs = {
            "leadadversary": pursuer_obs[:1],
            "agent": concat_features(common[pursuers:], sign[pursuers:], prey_velocities),
        }
        return obs | ({"adversary": pursuer_obs[1:]} if pursuers > 1 else {})

    def _visible(self, inside: Tensor) -> Tensor:
        """Returns which agents see which, [observer, observed, B], given the forests they are in, [n, forests, B]."""
        together = (inside.unsqueeze(1) & inside.unsqueeze(0)).any(2)
        hidden = inside.any(1)
        visible = together | ~(hidden.unsqueeze(1) | hidden.unsqueeze(0))
        leader = torch.zeros(len(inside), 1, 1, dtype=torch.bool, device=inside.device)
        leader[0] = True
        return visible | leader

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        distance, food = transition.distance("catch"), transition.distance("food")
        touches = (distance < _PURSUER + _PREY).to(distance.dtype).sum(0)
        total = touches.sum(0)
        meals = (food < _PREY + _FOOD).to(food.dtype).sum(1)
        penalty = boundary_penalty(transition.part("moving")[:, self._prey.start :])
        prey = 2 * meals - 5 * touches - 2 * penalty - 0.05 * food.amin(1)
        pursuers = 5 * total - 0.1 * distance.amin(1)
        return ScenarioOutcome(torch.cat((pursuers, prey)), lambda _: {"touches": total})

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return {}


def _of_others(value: Tensor, observers: range, observed: range) -> Tensor:
    """Gathers features of the others for every observer: [n, 2, n, B] to [observers, m, 2, B]."""
    targets = body_indices(tuple(map(tuple, others(observers, observed))), value.device).reshape(len(observers), -1)
    return value[body_indices(tuple(observers), value.device).unsqueeze(1), :, targets]
