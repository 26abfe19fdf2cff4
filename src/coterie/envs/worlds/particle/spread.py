"""simple_spread: agents cover landmarks and avoid collisions.

Rules: mpe2 1.1 `simple_spread_v3`. With `variant="openai"`, every agent receives the sum of all agents' rewards and
counts a collision with itself.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.specs import Entities, ObservationParts
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.drawing import PALETTE
from coterie.envs.worlds.particle.particle_world import DiscOverrides, ParticleConfig, ParticleWorld
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import (
    Coverage,
    Neighbors,
    NoiseReader,
    Role,
    ScenarioOutcome,
    ScenarioSpec,
    Transition,
    concat_features,
    others,
    own_features,
)
from coterie.envs.worlds.world import State

_STAGE = "0: collisions are free; 1: collisions are penalized"
COVERED = 0.1
"""Distance below which an agent covers a landmark."""


class SimpleSpreadConfig(ParticleConfig):
    """Settings of particle/simple_spread."""

    agents: int = Field(3, ge=1, le=64)
    """Number of agents."""
    landmarks: int | None = Field(None, ge=1, le=64)
    """Number of landmarks; None for one per agent."""
    local_ratio: float = Field(0.5, ge=0, le=1)
    """Weight of the agent's own collisions; the shared distances have the remaining weight (mpe2 variant)."""
    variant: Variant = "mpe2"
    """Variant: `mpe2`, the maintained package, or `openai`, the original implementation of published results."""
    curriculum: bool = False
    """Do not penalize collisions before stage 1 of the curriculum."""
    curriculum_stage: int = Field(0, ge=0, le=1)
    """Initial stage of the curriculum."""
    terminate_on_success: bool = False
    """Terminate the episode when every landmark is covered (an agent within 0.1)."""
    num_agent_neighbors: int | None = Field(None, ge=1, le=1000)
    """Number of nearest other agents to observe; None for all."""
    num_landmark_neighbors: int | None = Field(None, ge=1, le=1000)
    """Number of nearest landmarks to observe; None for all."""


@final
class SimpleSpread(ParticleWorld):
    """Agents cover landmarks and avoid collisions.

    mpe2:   r_i = -(1 - local_ratio) sum_l min_j d(j, l) - local_ratio c_i
    openai: r_i = sum_j ( -sum_l min_k d(k, l) - c_j - 1 ), the same for all

    where c_i is the number of agents in contact with agent i. Observation: own velocity and position, offsets to
    landmarks and to other agents, and two zeros per other agent, which the original reserves for communication. Metrics
    at the last step: `coverage`, the fraction of covered landmarks; `collisions`, the number of pairs in contact.
    """

    Config = SimpleSpreadConfig

    def __init__(self, config: SimpleSpreadConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._agents = range(n)
        self._landmarks = range(n, n + (config.landmarks or n))
        self._others = others(self._agents, self._agents)
        scenario = ScenarioSpec(
            name="simple_spread",
            bodies=[
                *(
                    Body(f"agent_{i}", 0.15, moves=True, collides=True, color="blue", kind="agent")
                    for i in self._agents
                ),
                *(Body(f"landmark_{i}") for i in range(len(self._landmarks))),
            ],
            roles=[Role("agent", "agent", tuple(self._agents), parts=self._parts())],
            measured_pairs={"cover": (self._agents, self._landmarks)},
            parameters={"local_ratio": Parameter(config.local_ratio, 0, 1, "weight of the agent's own collisions")}
            | (
                {"curriculum_stage": Parameter(config.curriculum_stage, 0, 1, _STAGE, integer=True)}
                if config.curriculum
                else {}
            ),
            optional_parameters={"collision_cost": Parameter(1, 0, 100, "factor on the penalty for collisions")},
            metrics=("coverage", "collisions"),
            linear_observations=config.num_agent_neighbors is None and config.num_landmark_neighbors is None,
            coverage=Coverage(
                pairs="cover",
                covered=COVERED,
                shared=config.variant == "openai",
                terminates=config.terminate_on_success,
                ratio="local_ratio",
                weight=self._collision_weight,
                metrics=self._metrics_of_counts,
            ),
        )
        super().__init__(scenario, config, with_state, config.variant)

    def _parts(self) -> ObservationParts:
        config, landmarks, teammates = self.config, len(self._landmarks), len(self._agents) - 1
        seen = config.num_landmark_neighbors or landmarks, config.num_agent_neighbors or teammates
        absent = [
            None if limit is None else (0.0, 0.0)
            for limit in (config.num_landmark_neighbors, config.num_agent_neighbors)
        ]
        entities = (
            Entities.rows("own", (0, 4)),
            Entities.rows("object", (4, 2), count=seen[0], absent=absent[0]),
            Entities.rows("ally", (4 + 2 * seen[0], 2), count=seen[1], absent=absent[1]),
        )
        return ObservationParts(entities, position=(2, 3))

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {
            "moving": noise.uniform(-1, 1, 2, len(self._agents)),
            "rest": noise.uniform(-1, 1, 2, len(self._landmarks)),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        n, config = len(self._agents), self.config
        landmarks = Neighbors(pos, self._agents, [self._landmarks] * n, config.num_landmark_neighbors)
        teammates = Neighbors(pos, self._agents, self._others, config.num_agent_neighbors)
        no_messages = torch.zeros_like(teammates.offset)
        own_state = own_features(parts["vel"], self._agents), own_features(pos, self._agents)
        return {"agent": concat_features(*own_state, landmarks.offset, teammates.offset, no_messages)}

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        nearest = transition.distance("cover").amin(0)
        touching = transition.touching()
        distance, collisions = nearest.sum(0), transition.sum_by_mover(touching)
        if self.config.variant == "openai":
            collisions = collisions + 1  # with itself
        weight = self._collision_weight(transition.state)
        if weight is not None:
            collisions = collisions * weight
        if self.config.variant == "openai":
            reward = -(collisions + distance).sum(0).expand(len(self._agents), -1)
        else:
            reward = -torch.lerp(distance, collisions, transition.state["local_ratio"])
        terminated = (nearest < COVERED).all(0) if self.config.terminate_on_success else None
        return ScenarioOutcome(reward, lambda _: self._metrics(nearest, touching), terminated)

    def _collision_weight(self, state: State) -> Tensor | None:
        """Returns the factor on collisions [B]; None for 1."""
        cost = state.get("collision_cost")
        if not self.config.curriculum:
            return cost
        counts = (state["curriculum_stage"] >= 1).to(state["flat"].dtype)
        return counts if cost is None else cost * counts

    def _metrics(self, nearest: Tensor, touching: Tensor) -> dict[str, Tensor]:
        return {"coverage": (nearest < COVERED).to(nearest.dtype).mean(0), "collisions": touching.sum(0)}

    def _metrics_of_counts(self, covered: Tensor, touching: Tensor) -> dict[str, Tensor]:
        return {"coverage": covered / len(self._landmarks), "collisions": touching}

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        pos = self.physics.positions(parts)[..., 0]
        offset = pos[:, self._landmarks][:, :, None] - pos[:, self._agents][:, None]
        covered = (torch.hypot(offset[0], offset[1]) < COVERED).any(1).tolist()
        return {f"landmark_{i}": {"color": PALETTE["green"]} for i, is_covered in enumerate(covered) if is_covered}
