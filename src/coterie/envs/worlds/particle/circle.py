"""simple_formation: agents form a circle around a landmark. Rules: mpe2 1.1 `simple_formation_v1`."""

from __future__ import annotations

import math
from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.worlds.particle.assignment import assign
from coterie.envs.worlds.particle.observations import Neighbors, concat_features, own_features
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld

_RADIUS = 0.5
IN_PLACE = 0.05
"""Distance below which an agent is in place."""


class SimpleFormationConfig(ParticleConfig):
    """Settings of particle/simple_formation."""

    agents: int = Field(4, ge=1, le=64)
    """Number of agents."""
    terminate_on_success: bool = False
    """Terminate the episode when every agent is within 0.05 of its place."""


def assigned_distances(pos: Tensor, places: Tensor) -> Tensor:
    """Returns the distance of each agent to its place in the cheapest assignment.

    Args:
        pos: positions of the agents, [2, N, B].
        places: positions of the places, [2, N, B].

    Returns:
        [N, B].
    """
    offset = pos.unsqueeze(2) - places.unsqueeze(1)
    distance = torch.hypot(offset[0], offset[1])
    return distance.gather(1, assign(distance).unsqueeze(1)).squeeze(1)


def formation_outcome(distance: Tensor, terminate: bool) -> ScenarioOutcome:
    """Returns the outcome for agents at these distances [N, B] to their places.

    The shared reward is minus the mean distance, each at most 2. The episode terminates when all agents are in place if
    `terminate` is True.
    """
    in_place = distance < IN_PLACE
    return ScenarioOutcome(
        reward=-distance.clamp_max(2).mean(0).expand(len(distance), -1),
        metrics=lambda _: {"in_place": in_place.to(distance.dtype).mean(0)},
        terminated=in_place.all(0) if terminate else None,
    )


@final
class SimpleFormation(ParticleWorld):
    """Agents form a circle around a landmark.

    The places are evenly spaced on a circle of radius 0.5 around the landmark, the first at the smallest angle of any
    agent. Each agent has a place in the cheapest assignment, and all receive minus the mean distance to their places.
    Observation: own velocity and position, offset to the landmark. Metric: `in_place`, the fraction of agents within
    0.05 of their place at the last step.
    """

    Config = SimpleFormationConfig

    def __init__(self, config: SimpleFormationConfig, with_state: bool = False):
        self.config = config
        self._agents = range(config.agents)
        scenario = ScenarioSpec(
            name="simple_formation",
            bodies=[
                *(Body(f"agent_{i}", moves=True, collides=True, color="blue", kind="agent") for i in self._agents),
                Body("landmark_0", 0.03),
            ],
            roles=[Role("agent", "agent", tuple(self._agents))],
            metrics=("in_place",),
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {"moving": noise.uniform(-1, 1, 2, len(self._agents)), "rest": noise.uniform(-0.5, 0.5, 2, 1)}

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        agents = self._agents
        landmark = Neighbors(pos, agents, [[len(agents)]] * len(agents)).offset
        return {"agent": concat_features(own_features(parts["vel"], agents), own_features(pos, agents), landmark)}

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        pos, center = transition.part("moving"), transition.part("rest")
        x, y = pos - center
        first = torch.atan2(y, x).remainder(2 * math.pi).amin(0)
        step = torch.arange(len(x), device=x.device, dtype=x.dtype) * (2 * math.pi / len(x))
        angle = first + step.unsqueeze(1)
        places = center + _RADIUS * torch.stack((angle.cos(), angle.sin()))
        return formation_outcome(assigned_distances(pos, places), self.config.terminate_on_success)

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return {}
