"""simple_spread: agents cover landmarks and keep from touching.

Rules: mpe2 1.1 `simple_spread_v3`; `variant="openai"`: the original convention, in which every agent receives the sum
of all agents' rewards and counts a collision with itself.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.parameters import Parameter
from coterie.envs.particle.physics import Body, Variant
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.render import PALETTE
from coterie.envs.particle.sight import Around, joined, others, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld

_STAGE = "0: collisions cost nothing; 1: they do"
COVERED = 0.1
"""How near an agent has to be for a landmark to count as covered."""


class SimpleSpreadConfig(ParticleConfig):
    """Settings of particle/simple_spread."""

    agents: int = Field(3, ge=1, le=64)
    """How many agents."""
    landmarks: int | None = Field(None, ge=1, le=64)
    """How many landmarks; None: as many as agents."""
    local_ratio: float = Field(0.5, ge=0, le=1)
    """Weight of an agent's own collisions; the rest is the weight of the shared distances (mpe2 variant)."""
    variant: Variant = "mpe2"
    """Convention: `mpe2`, the maintained package, or `openai`, the original of published results."""
    curriculum: bool = False
    """Collisions cost nothing before stage 1 of the curriculum."""
    curriculum_stage: int = Field(0, ge=0, le=1)
    """The stage that copies begin with."""
    terminate_on_success: bool = False
    """The episode ends when every landmark is covered (an agent within 0.1)."""
    num_agent_neighbors: int | None = Field(None, ge=1)
    """How many other agents are seen, the nearest; None: all."""
    num_landmark_neighbors: int | None = Field(None, ge=1)
    """How many landmarks are seen, the nearest; None: all."""


@final
class SimpleSpread(ParticleWorld):
    """Agents are paid for the distance from every landmark to the nearest of them, and pay for collisions.

    mpe2:   r_i = -(1 - local_ratio) sum_l min_j d(j, l) - local_ratio c_i
    openai: r_i = sum_j ( -sum_l min_k d(k, l) - c_j - 1 ), the same for all

    c_i: the agents that touch agent i. Observation: own velocity and position, offsets to landmarks and to the other
    agents, and two zeros for each of them, where the original has room for speech.
    Metrics, at the last step: `coverage`, the part of the landmarks that is covered; `collisions`, touching pairs.
    """

    Config = SimpleSpreadConfig

    def __init__(self, config: SimpleSpreadConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._agents = range(n)
        self._landmarks = range(n, n + (config.landmarks or n))
        self._others = others(self._agents, self._agents)
        plan = Plan(
            name="simple_spread",
            bodies=[
                *(
                    Body(f"agent_{i}", 0.15, moves=True, collides=True, color="blue", kind="agent")
                    for i in self._agents
                ),
                *(Body(f"landmark_{i}") for i in range(len(self._landmarks))),
            ],
            roles=[Role("agent", "agent", tuple(self._agents))],
            measured={"cover": (self._agents, self._landmarks)},
            parameters={"local_ratio": Parameter(config.local_ratio, 0, 1, "weight of an agent's own collisions")}
            | (
                {"curriculum_stage": Parameter(config.curriculum_stage, 0, 1, _STAGE, True)}
                if config.curriculum
                else {}
            ),
            optional={"collision_cost": Parameter(1, 0, 100, "factor on what collisions cost")},
            metrics=("coverage", "collisions"),
            linear=config.num_agent_neighbors is None and config.num_landmark_neighbors is None,
        )
        super().__init__(plan, config, with_state, config.variant)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {
            "moving": draws.uniform(-1, 1, 2, len(self._agents)),
            "rest": draws.uniform(-1, 1, 2, len(self._landmarks)),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        n, config = len(self._agents), self.config
        landmarks = Around(pos, self._agents, [self._landmarks] * n, config.num_landmark_neighbors)
        mates = Around(pos, self._agents, self._others, config.num_agent_neighbors)
        silence = torch.zeros_like(mates.offset)
        own_state = own(parts["vel"], self._agents), own(pos, self._agents)
        return {"agent": joined(*own_state, landmarks.offset, mates.offset, silence)}

    def pay(self, now: Now) -> Pay:
        near = now.between("cover").amin(0)
        touching = now.touching()
        cost, collisions = near.sum(0), now.by_mover(touching)
        if self.config.variant == "openai":
            collisions = collisions + 1  # with itself
        if "collision_cost" in now.state:
            collisions = collisions * now.state["collision_cost"]
        if self.config.curriculum:
            collisions = collisions * (now.state["curriculum_stage"] >= 1)
        if self.config.variant == "openai":
            reward = -(collisions + cost).sum(0).expand(len(self._agents), -1)
        else:
            reward = -torch.lerp(cost, collisions, now.state["local_ratio"])
        ended = (near < COVERED).all(0) if self.config.terminate_on_success else None
        return Pay(reward, lambda _: self._metrics(near, touching), ended)

    def _metrics(self, near: Tensor, touching: Tensor) -> dict[str, Tensor]:
        return {"coverage": (near < COVERED).to(near.dtype).mean(0), "collisions": touching.sum(0)}

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        pos = self.physics.positions(parts)[..., 0]
        offset = pos[:, self._landmarks][:, :, None] - pos[:, self._agents][:, None]
        covered = (torch.hypot(offset[0], offset[1]) < COVERED).any(1).tolist()
        return {f"landmark_{i}": {"color": PALETTE["green"]} for i, is_covered in enumerate(covered) if is_covered}
