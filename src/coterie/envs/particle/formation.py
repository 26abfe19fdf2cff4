"""simple_formation: agents form a circle around a landmark. Rules: mpe2 1.1 `simple_formation_v1`."""

from __future__ import annotations

import math
from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.particle.assignment import assign
from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld

_RADIUS = 0.5
IN_PLACE = 0.05
"""How near an agent has to be to its place to count as there."""


class SimpleFormationConfig(ParticleConfig):
    """Settings of particle/simple_formation."""

    agents: int = Field(4, ge=1, le=64)
    """How many agents."""
    terminate_on_success: bool = False
    """The episode ends when every agent is within 0.05 of its place."""


def placed(pos: Tensor, places: Tensor) -> Tensor:
    """How far each agent is from the place it has in the cheapest assignment; [2, N, B] both, returns [N, B]."""
    offset = pos.unsqueeze(2) - places.unsqueeze(1)
    distance = torch.hypot(offset[0], offset[1])
    return distance.gather(1, assign(distance).unsqueeze(1)).squeeze(1)


def pay_placed(distance: Tensor, terminate: bool) -> Pay:
    """The shared reward for standing in place: minus the mean distance [N, B], each at most 2."""
    there = distance < IN_PLACE
    reward = -distance.clamp_max(2).mean(0).expand(len(distance), -1)
    return Pay(reward, lambda _: {"in_place": there.to(distance.dtype).mean(0)}, there.all(0) if terminate else None)


@final
class SimpleFormation(ParticleWorld):
    """Places stand evenly on a circle of radius 0.5 around the landmark, the first at the smallest angle of any agent.

    Agents are assigned to places as cheaply as possible; all are paid minus their mean distance. Observation: own
    velocity and position, offset to the landmark. Metric: `in_place`, the part of the agents that is, at the last step.
    """

    Config = SimpleFormationConfig

    def __init__(self, config: SimpleFormationConfig, with_state: bool = False):
        self.config = config
        self._agents = range(config.agents)
        plan = Plan(
            name="simple_formation",
            bodies=[
                *(Body(f"agent_{i}", moves=True, collides=True, color="blue", kind="agent") for i in self._agents),
                Body("landmark_0", 0.03),
            ],
            roles=[Role("agent", "agent", tuple(self._agents))],
            metrics=("in_place",),
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {"moving": draws.uniform(-1, 1, 2, len(self._agents)), "rest": draws.uniform(-0.5, 0.5, 2, 1)}

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        agents = self._agents
        landmark = Around(pos, agents, [[len(agents)]] * len(agents)).offset
        return {"agent": joined(own(parts["vel"], agents), own(pos, agents), landmark)}

    def pay(self, now: Now) -> Pay:
        pos, centre = now.part("moving"), now.part("rest")
        x, y = pos - centre
        first = torch.atan2(y, x).remainder(2 * math.pi).amin(0)
        step = torch.arange(len(x), device=x.device, dtype=x.dtype) * (2 * math.pi / len(x))
        angle = first + step.unsqueeze(1)
        places = centre + _RADIUS * torch.stack((angle.cos(), angle.sin()))
        return pay_placed(placed(pos, places), self.config.terminate_on_success)

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return {}
