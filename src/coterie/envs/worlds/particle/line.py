"""simple_line: agents form a line between two landmarks. Rules: mpe2 1.1 `simple_line_v1`."""

from __future__ import annotations

import math
from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.worlds.particle.circle import assigned_distances, formation_outcome
from coterie.envs.worlds.particle.observations import Neighbors, concat_features, own_features
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld

_LENGTH = 1.25
_TURN = math.radians(5)


class SimpleLineConfig(ParticleConfig):
    """Settings of particle/simple_line."""

    agents: int = Field(4, ge=1, le=64)
    """Number of agents."""
    terminate_on_success: bool = False
    """Terminate the episode when every agent is within 0.05 of its place."""


@final
class SimpleLine(ParticleWorld):
    """Agents form a line between two landmarks.

    The places are evenly spaced between the landmarks, which are 1.25 apart. Each agent has a place in the cheapest
    assignment, and all receive minus the mean distance to their places. Observation: own velocity and position, offsets
    to both landmarks. Metric: `in_place`, the fraction of agents within 0.05 of their place at the last step.
    """

    Config = SimpleLineConfig

    def __init__(self, config: SimpleLineConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._agents = range(n)
        scenario = ScenarioSpec(
            name="simple_line",
            bodies=[
                *(Body(f"agent_{i}", 0.03, moves=True, collides=True, color="blue", kind="agent") for i in range(n)),
                Body("landmark_0", 0.02),
                Body("landmark_1", 0.02),
            ],
            roles=[Role("agent", "agent", tuple(self._agents))],
            metrics=("in_place",),
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        """Places the second landmark in a random direction, rotated in steps of 5 degrees into [-1, 1]^2."""
        first, angle = noise.uniform(-0.25, 0.25, 2), noise.uniform(0, 2 * math.pi)
        angles = angle + torch.arange(72, device=angle.device, dtype=angle.dtype).unsqueeze(1) * _TURN
        ends = first.unsqueeze(1) + _LENGTH * torch.stack((angles.cos(), angles.sin()))
        turns = (ends.abs() < 1).all(0).to(torch.int8).argmax(0)  # the first inside
        second = ends.gather(1, turns.expand(2, 1, -1)).squeeze(1)
        return {"moving": noise.uniform(-1, 1, 2, len(self._agents)), "rest": torch.stack((first, second), dim=1)}

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        agents, n = self._agents, len(self._agents)
        landmarks = Neighbors(pos, agents, [[n, n + 1]] * n).offset
        return {"agent": concat_features(own_features(parts["vel"], agents), own_features(pos, agents), landmarks)}

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        pos, ends = transition.part("moving"), transition.part("rest")
        n = pos.shape[1]
        fraction = torch.arange(n, device=pos.device, dtype=pos.dtype).view(-1, 1) / max(n - 1, 1)
        places = torch.lerp(ends[:, :1], ends[:, 1:], fraction)
        return formation_outcome(assigned_distances(pos, places), self.config.terminate_on_success)

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return {}
