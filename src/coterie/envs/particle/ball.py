"""simple_ball: two equal sides push a ball into each other's goal. A world of this project's own."""

from __future__ import annotations

from typing import Any, final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.parameters import Parameter
from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, others, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld

SIZE, THRUST, MAX_SPEED = 0.075, 4.0, 1.2
"""Of a player."""
BALL_SIZE = 0.1
GOAL_SIZE = 0.3
"""How near the ball's middle has to come to a goal's, which lies in the middle of its side's wall."""
_BOUNCE = 0.8  # of its speed that a ball keeps at a wall; players keep none


class SimpleBallConfig(ParticleConfig):
    """Settings of particle/simple_ball."""

    agents: int = Field(2, ge=1, le=32)
    """How many players a side has."""
    shaping: float = Field(0.5, ge=0, le=100)
    """What moving the ball from the middle to a goal brings a player beside the goal itself, which brings 1."""
    approach: float = Field(0.2, ge=0, le=100)
    """What a player earns for each length that the nearest of its side comes nearer to the ball, and the others pay."""
    episode_limit: int | None = Field(75, ge=1)
    """Steps after which a game without a goal is cut: nobody won; None: never."""


@final
class SimpleBall(ParticleWorld):
    """A player of the side that scores earns 1, one of the other side pays 1, and the game is over. On the way, a
    player earns `shaping` times what the ball came nearer to the other goal along the field, and `approach` times what
    the nearest of its side came nearer to the ball, less what the nearest of the other side did.

    Walls stand at +-1; the goals lie at their middles, left's at -1 and right's at +1. Everybody sees the field as left
    does: for right, x is turned round, in observations and moves alike. So the sides are equal, and a policy of one can
    play the other. Observation: own velocity and position, offset to the ball, its velocity, offsets to the goal to
    score in and to the own one, to mates, their velocities, offsets to opponents, their velocities. Copies can differ
    in `shaping`. Metrics: `left_won`, `right_won`.
    """

    Config = SimpleBallConfig

    def __init__(self, config: SimpleBallConfig, with_state: bool = False):
        self.config = config
        n = config.agents
        self._sides = {"left": range(n), "right": range(n, 2 * n)}
        self._ball, self._goals = 2 * n, {"left": 2 * n + 1, "right": 2 * n + 2}
        color = {"left": "blue", "right": "red"}
        player: dict[str, Any] = {"size": SIZE, "thrust": THRUST, "max_speed": MAX_SPEED}
        plan = Plan(
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
            roles=[Role(side, side, tuple(bodies), mirrored=side == "right") for side, bodies in self._sides.items()],
            measured={
                "score": ([self._ball], [self._goals["left"], self._goals["right"]]),
                "near": (range(2 * n), [self._ball]),
            },
            parameters={
                "shaping": Parameter(config.shaping, 0.0, 100.0, "pay for moving the ball from the middle to a goal")
            },
            metrics=("left_won", "right_won"),
            walls=(tuple([1 - SIZE] * 2 * n + [1 - BALL_SIZE]), tuple([0.0] * 2 * n + [_BOUNCE])),
            equal_sides=True,
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        n = self.config.agents
        x = torch.cat((draws.uniform(-0.8, -0.3, n), draws.uniform(0.3, 0.8, n), draws.uniform(-0.05, 0.05, 1)))
        y = torch.cat((draws.uniform(-0.8, 0.8, 2 * n), draws.uniform(-0.4, 0.4, 1)))
        goals = torch.tensor([[-1.0, 1.0], [0.0, 0.0]], dtype=x.dtype, device=x.device)
        return {"moving": torch.stack((x, y)), "rest": goals.unsqueeze(-1).expand(-1, -1, x.shape[-1])}

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        turned = pos.new_tensor((-1.0, 1.0)).view(2, 1, 1)
        return {
            "left": self._seen_by("left", "right", parts["vel"], pos),
            "right": self._seen_by("right", "left", parts["vel"] * turned, pos * turned),
        }

    def _seen_by(self, side: str, other: str, vel: Tensor, pos: Tensor) -> Tensor:
        players, n = self._sides[side], self.config.agents
        places = Around(pos, players, [[self._ball, self._goals[other], self._goals[side]]] * n).offset
        ball = Around(pos, players, [[self._ball]] * n)
        mates, foes = Around(pos, players, others(players, players)), Around(pos, players, [self._sides[other]] * n)
        return joined(
            *(own(vel, players), own(pos, players), places[:, :1], ball.of(vel), places[:, 1:]),
            *(mates.offset, mates.of(vel), foes.offset, foes.of(vel)),
        )

    def pay(self, now: Now) -> Pay:
        scored = now.between("score")[0] < GOAL_SIZE
        left_won, right_won = scored[1].to(now.flat.dtype), scored[0].to(now.flat.dtype)
        n, before = self.config.agents, self.physics.rows.part(now.state["rows"].T, "moving")
        advance = now.part("moving")[0, self._ball] - before[0, self._ball]
        left = left_won - right_won + now.state["shaping"] * advance
        if self.config.approach:
            apart = before[:, : self._ball] - before[:, self._ball :]
            nearer = torch.hypot(apart[0], apart[1]).view(2, n, -1).amin(1)
            nearer = nearer - now.between("near").view(2, n, -1).amin(1)
            left = left + self.config.approach * (nearer[0] - nearer[1])
        reward = torch.cat((left.expand(n, -1), -left.expand(n, -1)))
        return Pay(reward, lambda _: {"left_won": left_won, "right_won": right_won}, scored.any(0))

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return {}
