"""simple_tag: slow pursuers chase fast prey among obstacles. Rules: mpe2 1.1 `simple_tag_v3`."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.particle.observations import Neighbors, concat_features, others, own_features
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld

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
                Role("adversary", "adversary", tuple(self._pursuers)),
                Role("agent", "agent", tuple(self._prey)),
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
