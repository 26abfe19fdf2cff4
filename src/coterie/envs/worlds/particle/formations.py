"""Scenarios in which agents take places: simple_formation on a circle, simple_line on a line; and their assignment.

Rules: mpe2 1.1 `simple_formation_v1` and `simple_line_v1`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations
from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.specs import Entities, ObservationParts
from coterie.envs.worlds.particle.particle_world import DiscOverrides, ParticleConfig, ParticleWorld
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import (
    Neighbors,
    NoiseReader,
    Role,
    ScenarioOutcome,
    ScenarioSpec,
    Transition,
    concat_features,
    own_features,
)

_MAX_ENUMERATED = 5  # up to this number of agents, trying every permutation is fastest


def assign(cost: Tensor) -> Tensor:
    """Returns the assignment of minimum total cost.

    Args:
        cost: [N agents, N places, B].

    Returns:
        The place of every agent, [N, B] int64.
    """
    return _by_enumeration(cost) if len(cost) <= _MAX_ENUMERATED else _by_augmenting_paths(cost)


@lru_cache(maxsize=4 * _MAX_ENUMERATED)
def _permutations(n: int, device: torch.device) -> Tensor:
    """Returns all permutations: [n!, n]."""
    return torch.tensor(list(permutations(range(n))), device=device)


def _by_enumeration(cost: Tensor) -> Tensor:
    assignments = _permutations(len(cost), cost.device)
    agents = torch.arange(len(cost), device=cost.device)
    best = cost[agents, assignments].sum(1).argmin(0)
    return assignments[best].T


def _by_augmenting_paths(cost: Tensor) -> Tensor:
    """Hungarian method: shortest augmenting paths with potentials, agent by agent, in all environments at once.

    Place 0 means "unassigned"; `agent_at[j]` is the agent (1-based) at place j. Source: Kuhn 1955, in the form of
    Jonker and Volgenant 1987.
    """
    n, _, num_envs = cost.shape
    envs = torch.arange(num_envs, device=cost.device)
    padded = cost.new_zeros(n + 1, n + 1, num_envs)
    padded[1:, 1:] = cost
    agent_potential, place_potential = cost.new_zeros(n + 1, num_envs), cost.new_zeros(n + 1, num_envs)
    agent_at = torch.zeros(n + 1, num_envs, dtype=torch.long, device=cost.device)
    for agent in range(1, n + 1):
        agent_at[0] = agent
        place = torch.zeros_like(agent_at[0])
        min_slack = torch.full_like(place_potential, torch.inf)
        previous_place = torch.zeros_like(agent_at)
        visited = torch.zeros_like(agent_at, dtype=torch.bool)
        for _ in range(agent):
            searching = agent_at[place, envs] != 0
            visited[place, envs] |= searching
            current = agent_at[place, envs]
            slack = padded[current, :, envs].T - agent_potential[current, envs] - place_potential
            improves = ~visited & (slack < min_slack) & searching
            min_slack = torch.where(improves, slack, min_slack)
            previous_place = torch.where(improves, place, previous_place)
            step, nearest = min_slack.masked_fill(visited, torch.inf)[1:].min(0)
            step = step.where(searching, 0)
            # Update the potentials of the visited places and of the agents assigned to them.
            agent_potential.index_put_((agent_at, envs.expand_as(agent_at)), step * visited, accumulate=True)
            place_potential -= step * visited
            min_slack -= step * ~visited
            place = torch.where(searching, nearest + 1, place)
        for _ in range(agent):  # augment: each place takes the agent of the previous one
            before = previous_place[place, envs]
            moves = place != 0
            agent_at[place, envs] = torch.where(moves, agent_at[before, envs], agent_at[place, envs])
            place = torch.where(moves, before, place)
    result = torch.zeros_like(agent_at)
    result.scatter_(0, agent_at, torch.arange(n + 1, device=cost.device).unsqueeze(1).expand_as(agent_at))
    return result[1:] - 1


_RADIUS = 0.5
IN_PLACE = 0.05
"""Distance below which an agent is in place."""


def _parts(landmarks: int) -> ObservationParts:
    """Parts of the observation: own velocity and position, then offsets to landmarks."""
    entities = Entities.rows("own", (0, 4)), Entities.rows("object", (4, 2), count=landmarks)
    return ObservationParts(entities, position=(2, 3))


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
            roles=[Role("agent", "agent", tuple(self._agents), parts=_parts(1))],
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
            roles=[Role("agent", "agent", tuple(self._agents), parts=_parts(2))],
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
