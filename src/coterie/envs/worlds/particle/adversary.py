"""simple_adversary: agents approach a goal without revealing it to an adversary.

Rules: mpe2 1.1 `simple_adversary_v3`. With `variant="openai"`, the adversary's penalty is its squared distance.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.worlds.particle.observations import Neighbors, concat_features, others
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld, highlight_goal, select


class SimpleAdversaryConfig(ParticleConfig):
    """Settings of particle/simple_adversary."""

    agents: int = Field(2, ge=1, le=64)
    """Number of good agents, and of landmarks."""
    variant: Variant = "mpe2"
    """Variant: `mpe2`, the maintained package, or `openai`, the original implementation of published results."""
    num_agent_neighbors: int | None = Field(None, ge=1, le=1000)
    """Number of nearest other agents to observe; None for all."""
    num_landmark_neighbors: int | None = Field(None, ge=1, le=1000)
    """Number of nearest landmarks to observe; None for all. Good agents always observe the goal."""


@final
class SimpleAdversary(ParticleWorld):
    """One of the good agents must reach the goal, and the adversary, which does not know the goal, must not.

    good: r = d(adversary, goal) - min_i d(i, goal);   adversary: r = -d(adversary, goal), openai: -d(adversary, goal)^2

    Observation: offsets to the goal (good agents only), to the landmarks and to the other agents. Metrics at the last
    step: `distance` of the nearest good agent to the goal, `adversary_distance`.
    """

    Config = SimpleAdversaryConfig

    def __init__(self, config: SimpleAdversaryConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._agents = range(1 + n)
        self._landmarks = range(1 + n, 1 + 2 * n)
        scenario = ScenarioSpec(
            name="simple_adversary",
            bodies=[
                Body("adversary_0", 0.15, moves=True, color="red", kind="agent"),
                *(Body(f"agent_{i}", 0.15, moves=True, color="blue", kind="agent") for i in range(n)),
                *(Body(f"landmark_{i}", 0.08) for i in range(n)),
            ],
            roles=[Role("adversary", "adversary", (0,)), Role("agent", "agent", tuple(self._agents[1:]))],
            measured_pairs={"landmarks": (self._agents, self._landmarks)},
            extra_parts={"goal": (n,), "goal_at": (2,)},
            position_parts=("goal_at",),
            hidden_parts={"adversary": ("goal", "goal_at"), "agent": ()},
            metrics=("distance", "adversary_distance"),
            linear_observations=config.num_agent_neighbors is None and config.num_landmark_neighbors is None,
        )
        super().__init__(scenario, config, with_state, config.variant)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        landmarks, goal = noise.uniform(-1, 1, 2, len(self._landmarks)), noise.one_hot(len(self._landmarks))
        return {
            "moving": noise.uniform(-1, 1, 2, len(self._agents)),
            "rest": landmarks,
            "goal": goal,
            "goal_at": select(landmarks, goal),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        goal = (parts["goal_at"].unsqueeze(1) - pos[:, self._agents[1:]]).transpose(0, 1)
        return {
            "adversary": self._observations_of(self._agents[:1], pos),
            "agent": concat_features(goal, self._observations_of(self._agents[1:], pos)),
        }

    def _observations_of(self, agents: range, pos: Tensor) -> Tensor:
        config = self.config
        landmarks = Neighbors(pos, agents, [self._landmarks] * len(agents), config.num_landmark_neighbors)
        neighbors = Neighbors(pos, agents, others(agents, self._agents), config.num_agent_neighbors)
        return concat_features(landmarks.offset, neighbors.offset)

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        distance = select(transition.distance("landmarks"), transition.part("goal"))
        adversary, nearest = distance[:1], distance[1:].amin(0, keepdim=True)
        good_reward = (adversary - nearest).expand(len(self._agents) - 1, -1)
        adversary_reward = -adversary.square() if self.config.variant == "openai" else -adversary
        return ScenarioOutcome(
            torch.cat((adversary_reward, good_reward)),
            lambda _: {"distance": nearest[0], "adversary_distance": adversary[0]},
        )

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return highlight_goal(parts["goal"])
