"""simple_tag: slower pursuers hunt faster prey among obstacles. Rules: mpe2 1.1 `simple_tag_v3`."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.parameters import Parameter
from coterie.envs.particle.physics import Body, Variant
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, others, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld

PREY_SPEED_BY_STAGE = (0.5, 0.75, 1.0)
"""Prey speed at each stage of the curriculum, as a part of full speed."""


class SimpleTagConfig(ParticleConfig):
    """Settings of particle/simple_tag."""

    good: int = Field(1, ge=1, le=64)
    """How many prey."""
    adversaries: int = Field(3, ge=1, le=64)
    """How many pursuers."""
    obstacles: int = Field(2, ge=0, le=64)
    """How many obstacles."""
    variant: Variant = "mpe2"
    """Convention: `mpe2`, the maintained package, or `openai`, the original of published results."""
    curriculum: bool = False
    """Prey are slower before the last stage of the curriculum."""
    curriculum_stage: int = Field(0, ge=0, le=2)
    """The stage that copies begin with: prey at 0.5, 0.75 or 1 of full speed."""
    prey_speed: float = Field(1.0, gt=0, le=10)
    """Factor on the speed limit and thrust of prey, on top of the curriculum's."""
    terminate_on_success: bool = False
    """The episode ends when every prey is touched at the same time."""
    num_agent_neighbors: int | None = Field(None, ge=1)
    """How many other agents are seen, the nearest; None: all."""
    num_landmark_neighbors: int | None = Field(None, ge=1)
    """How many obstacles are seen, the nearest; None: all."""


def fence(pos: Tensor) -> Tensor:
    """The cost of being far out, summed over x and y: [2, n, B] to [n, B].

    0 below 0.9, 10 (x - 0.9) below 1, then exp(2 x - 2), at most 10.
    """
    x = pos.abs()
    return torch.where(x < 1, 10 * (x - 0.9).clamp_min(0), (2 * x - 2).exp().clamp_max(10)).sum(0)


@final
class SimpleTag(ParticleWorld):
    """Every pursuer earns 10 for each touch of any of them with prey; prey pay 10 for each of theirs, and the fence.

    Observation: own velocity and position, offsets to obstacles and to the other agents, velocities of the other prey
    (with neighbours limited: of every slot, zero for pursuers). Both conventions pay alike; they differ in the order of
    motion and of actions. Metric: `touches` of the episode, pursuers on prey.
    """

    Config = SimpleTagConfig

    def __init__(self, config: SimpleTagConfig, with_state: bool = False):
        self.config = config
        chase, agents = config.adversaries, config.adversaries + config.good
        self._pursuers, self._prey = range(chase), range(chase, agents)
        self._agents = range(agents)
        self._obstacles = range(agents, agents + config.obstacles)
        speed = config.prey_speed * (PREY_SPEED_BY_STAGE[config.curriculum_stage] if config.curriculum else 1.0)
        pursuer = {"size": 0.075, "thrust": 3.0, "max_speed": 1.0, "pace": "pursuer_speed", "color": "red"}
        prey = {"size": 0.05, "thrust": 4.0, "max_speed": 1.3, "pace": "prey_speed", "color": "green"}
        plan = Plan(
            name="simple_tag",
            bodies=[
                *(Body(f"adversary_{i}", moves=True, collides=True, kind="agent", **pursuer) for i in range(chase)),
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
            measured={"hunt": (self._pursuers, self._prey)},
            parameters={"prey_speed": Parameter(speed, 0.05, 10, "factor on thrust and speed limit of prey")},
            optional={"pursuer_speed": Parameter(1, 0.05, 10, "factor on thrust and speed limit of pursuers")},
            metrics=("touches",),
            linear=config.num_agent_neighbors is None and config.num_landmark_neighbors is None,
        )
        super().__init__(plan, config, with_state, config.variant)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {
            "moving": draws.uniform(-1, 1, 2, len(self._agents)),
            "rest": draws.uniform(-0.9, 0.9, 2, len(self._obstacles)),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        return {
            "adversary": self._seen_by(self._pursuers, parts["vel"], pos),
            "agent": self._seen_by(self._prey, parts["vel"], pos),
        }

    def _seen_by(self, agents: range, vel: Tensor, pos: Tensor) -> Tensor:
        config = self.config
        obstacles = Around(pos, agents, [self._obstacles] * len(agents), config.num_landmark_neighbors)
        rest = Around(pos, agents, others(agents, self._agents), config.num_agent_neighbors)
        if config.num_agent_neighbors is None:
            prey_vel = Around(pos, agents, others(agents, self._prey)).of(vel)
        else:
            hidden = torch.cat((torch.zeros_like(vel[:, self._pursuers]), vel[:, self._prey]), dim=1)
            prey_vel = rest.of(hidden)
        return joined(own(vel, agents), own(pos, agents), obstacles.offset, rest.offset, prey_vel)

    def pay(self, now: Now) -> Pay:
        reach = self.plan.bodies[self._pursuers[0]].size + self.plan.bodies[self._prey[0]].size
        touch = (now.between("hunt") < reach).to(now.flat.dtype)
        caught = touch.sum(0)
        touches = caught.sum(0)
        prey = -10 * caught - fence(now.part("moving")[:, self._prey.start :])
        reward = torch.cat(((10 * touches).expand(len(self._pursuers), -1), prey))
        ended = (caught > 0).all(0) if self.config.terminate_on_success else None
        return Pay(reward, lambda score: {"touches": score[0] / 10}, ended)

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return {}
