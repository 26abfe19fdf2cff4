"""simple_push: an adversary pushes an agent away from a goal that only the agent knows.

Rules: mpe2 1.1 `simple_push_v3`. With `variant="openai"`, only the order of motion and of actions differs.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from coterie.envs.worlds.particle.observations import Neighbors, concat_features, own_features, repeat_for
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld, highlight_goal, select

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
