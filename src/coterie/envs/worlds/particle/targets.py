"""Scenarios in which agents move to a landmark: simple, simple_push and simple_adversary.

Rules: mpe2 1.1 `simple_v3`, `simple_push_v3` and `simple_adversary_v3`. With `variant="openai"`, only the order of
motion and of actions differs in simple_push, and the penalty of the adversary of simple_adversary is its squared
distance.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.worlds.particle.particle_world import (
    DiscOverrides,
    ParticleConfig,
    ParticleWorld,
    highlight_goal,
    select,
)
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import (
    Neighbors,
    NoiseReader,
    Role,
    ScenarioOutcome,
    ScenarioSpec,
    Transition,
    concat_features,
    others,
    own_features,
    repeat_for,
)


class SimpleConfig(ParticleConfig):
    """Settings of particle/simple."""


@final
class Simple(ParticleWorld):
    """One agent moves to a landmark: r = -d(agent, landmark)^2.

    Observation: own velocity, offset to the landmark. Metric: `distance` at the last step.
    """

    Config = SimpleConfig

    def __init__(self, config: SimpleConfig, with_state: bool = False):
        self.config = config
        scenario = ScenarioSpec(
            name="simple",
            bodies=[
                Body("agent_0", moves=True, color="blue", kind="agent"),
                Body("landmark_0", color="red", kind="goal"),
            ],
            roles=[Role("agent", "agent", (0,))],
            measured_pairs={"goal": ([0], [1])},
            metrics=("distance",),
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {"moving": noise.uniform(-1, 1, 2, 1), "rest": noise.uniform(-1, 1, 2, 1)}

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        return {"agent": concat_features(own_features(parts["vel"], [0]), Neighbors(pos, [0], [[1]]).offset)}

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        distance = transition.distance("goal")[0]
        return ScenarioOutcome(-distance.square(), lambda _: {"distance": distance[0]})

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return {}


_LANDMARK_COLORS = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))


class SimplePushConfig(ParticleConfig):
    """Settings of particle/simple_push."""

    variant: Variant = "mpe2"
    """Variant: `mpe2`, the maintained package, or `openai`, the original implementation of published results."""


@final
class SimplePush(ParticleWorld):
    """An adversary pushes an agent away from its goal.

    good: r = -d(good, goal);   adversary: r = d(good, goal) - d(adversary, goal)

    Both observe their velocity and the offsets to the landmarks and to the other agent. The good agent also observes
    the offset to the goal, its own color, which identifies the goal, and the colors of the landmarks. Metrics at the
    last step: `distance` of the good agent to the goal, `adversary_distance`.
    """

    Config = SimplePushConfig

    def __init__(self, config: SimplePushConfig, with_state: bool = False):
        self.config = config
        scenario = ScenarioSpec(
            name="simple_push",
            bodies=[
                Body("adversary_0", moves=True, collides=True, color="red", kind="agent"),
                Body("agent_0", moves=True, collides=True, color="blue", kind="agent"),
                Body("landmark_0"),
                Body("landmark_1"),
            ],
            roles=[Role("adversary", "adversary", (0,)), Role("agent", "agent", (1,))],
            measured_pairs={"landmarks": ([0, 1], [2, 3])},
            extra_parts={"goal": (2,), "goal_at": (2,)},
            position_parts=("goal_at",),
            hidden_parts={"adversary": ("goal", "goal_at"), "agent": ()},
            metrics=("distance", "adversary_distance"),
        )
        super().__init__(scenario, config, with_state, config.variant)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        landmarks, goal = noise.uniform(-1, 1, 2, 2), noise.one_hot(2)
        return {
            "moving": noise.uniform(-1, 1, 2, 2),
            "rest": landmarks,
            "goal": goal,
            "goal_at": select(landmarks, goal),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        goal, vel = parts["goal"], parts["vel"]
        gray = torch.full_like(goal[:1], 0.25)
        color = torch.cat((gray, 0.25 + 0.5 * goal))
        palette = goal.new_tensor(_LANDMARK_COLORS).view(-1, 1).expand(-1, goal.shape[1])
        landmarks = Neighbors(pos, [0, 1], [[2, 3]] * 2).offset
        other = Neighbors(pos, [0, 1], [[1], [0]]).offset
        return {
            "adversary": concat_features(own_features(vel, [0]), landmarks[:1], other[:1]),
            "agent": concat_features(
                own_features(vel, [1]),
                repeat_for(parts["goal_at"] - pos[:, 1], 1),
                repeat_for(color, 1),
                landmarks[1:],
                repeat_for(palette, 1),
                other[1:],
            ),
        }

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        adversary, good = select(transition.distance("landmarks"), transition.part("goal"))
        return ScenarioOutcome(
            torch.stack((good - adversary, -good)), lambda _: {"distance": good, "adversary_distance": adversary}
        )

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return highlight_goal(parts["goal"])


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
