"""simple_push: an adversary pushes an agent away from a goal that only the agent knows.

Rules: mpe2 1.1 `simple_push_v3`; `variant="openai"`: the original convention, which differs in the order of motion and
of actions only.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from coterie.envs.particle.physics import Body, Variant
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, own, same
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld, chosen, goal_looks

_LANDMARK_COLORS = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))


class SimplePushConfig(ParticleConfig):
    """Settings of particle/simple_push."""

    variant: Variant = "mpe2"
    """Convention: `mpe2`, the maintained package, or `openai`, the original of published results."""


@final
class SimplePush(ParticleWorld):
    """good: r = -d(good, goal);   adversary: r = d(good, goal) - d(adversary, goal).

    Observation of both: own velocity, offsets to the two landmarks and to the other agent; of the good agent also the
    offset to the goal, its own colour, which tells the goal, and the landmarks' colours.
    Metrics, at the last step: `distance` of the good agent to the goal, `adversary_distance`.
    """

    Config = SimplePushConfig

    def __init__(self, config: SimplePushConfig, with_state: bool = False):
        self.config = config
        plan = Plan(
            name="simple_push",
            bodies=[
                Body("adversary_0", moves=True, collides=True, color="red", kind="agent"),
                Body("agent_0", moves=True, collides=True, color="blue", kind="agent"),
                Body("landmark_0"),
                Body("landmark_1"),
            ],
            roles=[Role("adversary", "adversary", (0,)), Role("agent", "agent", (1,))],
            measured={"landmarks": ([0, 1], [2, 3])},
            memory={"goal": (2,), "goal_at": (2,)},
            places=("goal_at",),
            hidden={"adversary": ("goal", "goal_at"), "agent": ()},
            metrics=("distance", "adversary_distance"),
        )
        super().__init__(plan, config, with_state, config.variant)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        landmarks, goal = draws.uniform(-1, 1, 2, 2), draws.one_hot(2)
        return {
            "moving": draws.uniform(-1, 1, 2, 2),
            "rest": landmarks,
            "goal": goal,
            "goal_at": chosen(landmarks, goal),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        goal, vel = parts["goal"], parts["vel"]
        grey = torch.full_like(goal[:1], 0.25)
        color = torch.cat((grey, 0.25 + 0.5 * goal))
        palette = goal.new_tensor(_LANDMARK_COLORS).view(-1, 1).expand(-1, goal.shape[1])
        landmarks = Around(pos, [0, 1], [[2, 3]] * 2).offset
        other = Around(pos, [0, 1], [[1], [0]]).offset
        return {
            "adversary": joined(own(vel, [0]), landmarks[:1], other[:1]),
            "agent": joined(
                own(vel, [1]),
                same(parts["goal_at"] - pos[:, 1], 1),
                same(color, 1),
                landmarks[1:],
                same(palette, 1),
                other[1:],
            ),
        }

    def pay(self, now: Now) -> Pay:
        adversary, good = chosen(now.between("landmarks"), now.part("goal"))
        return Pay(
            torch.stack((good - adversary, -good)), lambda _: {"distance": good, "adversary_distance": adversary}
        )

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return goal_looks(parts["goal"])
