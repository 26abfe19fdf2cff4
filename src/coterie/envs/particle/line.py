"""simple_line: agents stand in a line between two landmarks. Rules: mpe2 1.1 `simple_line_v1`."""

from __future__ import annotations

import math
from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.particle.formation import pay_placed, placed
from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld

_LENGTH = 1.25
_TURN = math.radians(5)


class SimpleLineConfig(ParticleConfig):
    """Settings of particle/simple_line."""

    agents: int = Field(4, ge=1, le=64)
    """How many agents."""
    terminate_on_success: bool = False
    """The episode ends when every agent is within 0.05 of its place."""


@final
class SimpleLine(ParticleWorld):
    """Places stand evenly from one landmark to the other, 1.25 apart.

    Agents are assigned to places as cheaply as possible; all are paid minus their mean distance. Observation: own
    velocity and position, offsets to both landmarks. Metric: `in_place`, the part of the agents that is, at the last
    step.
    """

    Config = SimpleLineConfig

    def __init__(self, config: SimpleLineConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._agents = range(n)
        plan = Plan(
            name="simple_line",
            bodies=[
                *(Body(f"agent_{i}", 0.03, moves=True, collides=True, color="blue", kind="agent") for i in range(n)),
                Body("landmark_0", 0.02),
                Body("landmark_1", 0.02),
            ],
            roles=[Role("agent", "agent", tuple(self._agents))],
            metrics=("in_place",),
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        """The second landmark lies in a random direction, turned by 5 degrees until it is inside of [-1, 1]^2."""
        first, angle = draws.uniform(-0.25, 0.25, 2), draws.uniform(0, 2 * math.pi)
        angles = angle + torch.arange(72, device=angle.device, dtype=angle.dtype).unsqueeze(1) * _TURN
        ends = first.unsqueeze(1) + _LENGTH * torch.stack((angles.cos(), angles.sin()))
        turns = (ends.abs() < 1).all(0).to(torch.int8).argmax(0)  # the first that is inside
        second = ends.gather(1, turns.expand(2, 1, -1)).squeeze(1)
        return {"moving": draws.uniform(-1, 1, 2, len(self._agents)), "rest": torch.stack((first, second), dim=1)}

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        agents, n = self._agents, len(self._agents)
        landmarks = Around(pos, agents, [[n, n + 1]] * n).offset
        return {"agent": joined(own(parts["vel"], agents), own(pos, agents), landmarks)}

    def pay(self, now: Now) -> Pay:
        pos, ends = now.part("moving"), now.part("rest")
        n = pos.shape[1]
        part = torch.arange(n, device=pos.device, dtype=pos.dtype).view(-1, 1) / max(n - 1, 1)
        places = torch.lerp(ends[:, :1], ends[:, 1:], part)
        return pay_placed(placed(pos, places), self.config.terminate_on_success)

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return {}
