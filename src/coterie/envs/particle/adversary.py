"""simple_adversary: agents hide from an adversary which of the landmarks is the goal.

Rules: mpe2 1.1 `simple_adversary_v3`; `variant="openai"`: the original convention.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.particle.physics import Body, Variant
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, others
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld, chosen, goal_looks


class SimpleAdversaryConfig(ParticleConfig):
    """Settings of particle/simple_adversary."""

    agents: int = Field(2, ge=1, le=64)
    """How many good agents, and how many landmarks."""
    variant: Variant = "mpe2"
    """Convention: `mpe2`, the maintained package, or `openai`, the original of published results."""
    num_agent_neighbors: int | None = Field(None, ge=1)
    """How many other agents are seen, the nearest; None: all."""
    num_landmark_neighbors: int | None = Field(None, ge=1)
    """How many landmarks are seen, the nearest; None: all. Good agents always see the goal."""


@final
class SimpleAdversary(ParticleWorld):
    """Good agents want one of them near the goal and the adversary far from it; the adversary wants to be near.

    good: r = d(adversary, goal) - min_i d(i, goal);   adversary: r = -d(adversary, goal), openai: -d(adversary, goal)^2

    Observation: offsets to the goal (good agents only), to the landmarks and to the other agents.
    Metrics, at the last step: `distance` of the nearest good agent to the goal, `adversary_distance`.
    """

    Config = SimpleAdversaryConfig

    def __init__(self, config: SimpleAdversaryConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._agents = range(1 + n)
        self._landmarks = range(1 + n, 1 + 2 * n)
        plan = Plan(
            name="simple_adversary",
            bodies=[
                Body("adversary_0", 0.15, moves=True, color="red", kind="agent"),
                *(Body(f"agent_{i}", 0.15, moves=True, color="blue", kind="agent") for i in range(n)),
                *(Body(f"landmark_{i}", 0.08) for i in range(n)),
            ],
            roles=[Role("adversary", "adversary", (0,)), Role("agent", "agent", tuple(self._agents[1:]))],
            measured={"landmarks": (self._agents, self._landmarks)},
            memory={"goal": (n,), "goal_at": (2,)},
            places=("goal_at",),
            hidden={"adversary": ("goal", "goal_at"), "agent": ()},
            metrics=("distance", "adversary_distance"),
            linear=config.num_agent_neighbors is None and config.num_landmark_neighbors is None,
        )
        super().__init__(plan, config, with_state, config.variant)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        landmarks, goal = draws.uniform(-1, 1, 2, len(self._landmarks)), draws.one_hot(len(self._landmarks))
        return {
            "moving": draws.uniform(-1, 1, 2, len(self._agents)),
            "rest": landmarks,
            "goal": goal,
            "goal_at": chosen(landmarks, goal),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        goal = (parts["goal_at"].unsqueeze(1) - pos[:, self._agents[1:]]).transpose(0, 1)
        return {
            "adversary": self._seen_by(self._agents[:1], pos),
            "agent": joined(goal, self._seen_by(self._agents[1:], pos)),
        }

    def _seen_by(self, agents: range, pos: Tensor) -> Tensor:
        config = self.config
        landmarks = Around(pos, agents, [self._landmarks] * len(agents), config.num_landmark_neighbors)
        rest = Around(pos, agents, others(agents, self._agents), config.num_agent_neighbors)
        return joined(landmarks.offset, rest.offset)

    def pay(self, now: Now) -> Pay:
        distance = chosen(now.between("landmarks"), now.part("goal"))
        enemy, nearest = distance[:1], distance[1:].amin(0, keepdim=True)
        good = (enemy - nearest).expand(len(self._agents) - 1, -1)
        adversary = -enemy.square() if self.config.variant == "openai" else -enemy
        return Pay(torch.cat((adversary, good)), lambda _: {"distance": nearest[0], "adversary_distance": enemy[0]})

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return goal_looks(parts["goal"])
