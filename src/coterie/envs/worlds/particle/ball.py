"""simple_ball: a symmetric ball game of two teams, specific to Coterie."""

from __future__ import annotations

from typing import Any, final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.device_constants import constant
from coterie.core.specs import Entities, ObservationParts
from coterie.envs.contract.parameters import Parameter
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
    others,
    own_features,
)

SIZE, THRUST, MAX_SPEED = 0.075, 4.0, 1.2
"""Radius, thrust and speed limit of a player."""
BALL_SIZE = 0.1
"""Radius of the ball."""
GOAL_SIZE = 0.3
"""Distance between the centers of ball and goal below which a goal is scored."""
_BOUNCE = 0.8  # fraction of its speed that the ball keeps at a wall; players stop


def _parts(n: int) -> ObservationParts:
    """Parts of the observation of a player in sides of `n`."""
    mates, opponents = 12, 12 + 4 * (n - 1)
    entities = (
        Entities.rows("own", (0, 4)),
        Entities.rows("ball", (4, 4)),
        Entities.rows("their goal", (8, 2)),
        Entities.rows("own goal", (10, 2)),
        Entities.rows("ally", (mates, 2), (mates + 2 * (n - 1), 2), count=n - 1),
        Entities.rows("enemy", (opponents, 2), (opponents + 2 * n, 2), count=n),
    )
    return ObservationParts(entities, position=(2, 3))


class SimpleBallConfig(ParticleConfig):
    """Settings of particle/simple_ball."""

    agents: int = Field(2, ge=1, le=32)
    """Number of players per side."""
    shaping: float = Field(0.5, ge=0, le=100)
    """Shaping reward for moving the ball from the center to a goal. The goal itself gives 1."""
    approach: float = Field(0.2, ge=0, le=100)
    """Shaping reward per unit of distance by which the side's nearest player approaches the ball; opponents lose it."""
    episode_limit: int | None = Field(75, ge=1, le=10**9)
    """Maximum number of steps per game, which then ends without a winner; None for no limit."""


@final
class SimpleBall(ParticleWorld):
    """Two teams push a ball into each other's goal.

    A goal gives 1 to every player of the scoring side and -1 to every opponent, and ends the game. Players also receive
    `shaping` times the ball's progress toward the opponents' goal, and `approach` times the progress of their side's
    nearest player toward the ball, minus that of the opponents' nearest player.

    Walls are at +-1. The goals are at the centers of the left and the right wall. Both sides observe the field as the
    left side does: for the right side, x is mirrored in observations and moves. The game is therefore symmetric, and a
    policy for one side can play the other. Observation: own velocity and position, offset to the ball, its velocity,
    offsets to the opponents' and to the own goal, then offsets and velocities of teammates and of opponents. `shaping`
    can vary. Metrics: `left_won`, `right_won`.
    """

    Config = SimpleBallConfig

    def __init__(self, config: SimpleBallConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._sides = {"left": range(n), "right": range(n, 2 * n)}
        self._ball, self._goals = 2 * n, {"left": 2 * n + 1, "right": 2 * n + 2}
        color = {"left": "blue", "right": "red"}
        player: dict[str, Any] = {"size": SIZE, "thrust": THRUST, "max_speed": MAX_SPEED}
        scenario = ScenarioSpec(
            name="simple_ball",
            bodies=[
                *(
                    Body(f"{side}_{i}", moves=True, collides=True, kind="agent", color=color[side], **player)
                    for side in self._sides
                    for i in range(n)
                ),
                Body("ball", BALL_SIZE, moves=True, collides=True, mass=0.6, max_speed=2.5, kind="ball", color="dark"),
                *(Body(f"{side}_goal", GOAL_SIZE, kind="forest", color=color[side]) for side in self._sides),
            ],
            roles=[
                Role(side, side, tuple(bodies), mirrored=side == "right", parts=_parts(n))
                for side, bodies in self._sides.items()
            ],
            measured_pairs={
                "score": ([self._ball], [self._goals["left"], self._goals["right"]]),
                "ball": (range(2 * n), [self._ball]),
            },
            parameters={
                "shaping": Parameter(config.shaping, 0.0, 100.0, "reward for moving the ball from the center to a goal")
            },
            metrics=("left_won", "right_won"),
            walls=(tuple([1 - SIZE] * 2 * n + [1 - BALL_SIZE]), tuple([0.0] * 2 * n + [_BOUNCE])),
            symmetric=True,
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        n = self.config.agents
        x = torch.cat((noise.uniform(-0.8, -0.3, n), noise.uniform(0.3, 0.8, n), noise.uniform(-0.05, 0.05, 1)))
        y = torch.cat((noise.uniform(-0.8, 0.8, 2 * n), noise.uniform(-0.4, 0.4, 1)))
        goals = constant(((-1.0, 1.0), (0.0, 0.0)), x.device, x.dtype)
        return {"moving": torch.stack((x, y)), "rest": goals.unsqueeze(-1).expand(-1, -1, x.shape[-1])}

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        mirror = constant((-1.0, 1.0), pos.device, pos.dtype).view(2, 1, 1)
        return {
            "left": self._observations_of("left", "right", parts["vel"], pos),
            "right": self._observations_of("right", "left", parts["vel"] * mirror, pos * mirror),
        }

    def _observations_of(self, side: str, other: str, vel: Tensor, pos: Tensor) -> Tensor:
        players, n = self._sides[side], self.config.agents
        targets = Neighbors(pos, players, [[self._ball, self._goals[other], self._goals[side]]] * n).offset
        ball = Neighbors(pos, players, [[self._ball]] * n)
        teammates, opponents = (
            Neighbors(pos, players, others(players, players)),
            Neighbors(pos, players, [self._sides[other]] * n),
        )
        return concat_features(
            *(own_features(vel, players), own_features(pos, players)),
            *(targets[:, :1], ball.features(vel), targets[:, 1:]),
            *(teammates.offset, teammates.features(vel), opponents.offset, opponents.features(vel)),
        )

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        scored = transition.distance("score")[0] < GOAL_SIZE
        left_won, right_won = scored[1].to(transition.flat.dtype), scored[0].to(transition.flat.dtype)
        n, previous_pos = self.config.agents, self.physics.layout.part(transition.state["flat"].T, "moving")
        advance = transition.part("moving")[0, self._ball] - previous_pos[0, self._ball]
        left_reward = left_won - right_won + transition.state["shaping"] * advance
        if self.config.approach:
            offset = previous_pos[:, : self._ball] - previous_pos[:, self._ball :]
            previous_distance = torch.hypot(offset[0], offset[1]).view(2, n, -1).amin(1)
            progress = previous_distance - transition.distance("ball").view(2, n, -1).amin(1)
            left_reward = left_reward + self.config.approach * (progress[0] - progress[1])
        reward = torch.cat((left_reward.expand(n, -1), -left_reward.expand(n, -1)))
        return ScenarioOutcome(reward, lambda _: {"left_won": left_won, "right_won": right_won}, scored.any(0))

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return {}
