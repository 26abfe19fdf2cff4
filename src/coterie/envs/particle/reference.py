"""simple_reference: two agents tell each other where to go. Rules: mpe2 1.1 `simple_reference_v3`."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.parameters import Parameter
from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.render import PALETTE
from coterie.envs.particle.sight import Around, joined, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld, chosen

_SYMBOLS = 10
_AGENTS, _LANDMARKS = range(2), range(2, 5)
_COLORS = ("red", "green", "blue")


class SimpleReferenceConfig(ParticleConfig):
    """Settings of particle/simple_reference."""

    local_ratio: float = Field(0.5, ge=0, le=1)
    """Weight of an agent's own reward; the rest is the weight of the mean over both."""


@final
class SimpleReference(ParticleWorld):
    """Each agent knows the landmark that the other has to reach, and both move and speak.

    own_i = -d(other of i, its goal);   r_i = (1 - local_ratio) mean_j own_j + local_ratio own_i

    Observation: own velocity, offsets to the landmarks, colour of the other's goal, what the other says.
    Metric: `distance` at the last step, mean of both to their goals.
    """

    Config = SimpleReferenceConfig

    def __init__(self, config: SimpleReferenceConfig, with_state: bool = False):
        self.config = config
        plan = Plan(
            name="simple_reference",
            bodies=[
                *(Body(f"agent_{i}", moves=True, color="dark", kind="agent") for i in _AGENTS),
                *(Body(f"landmark_{i}", color=color) for i, color in enumerate(_COLORS)),
            ],
            roles=[Role("agent", "agent", tuple(_AGENTS), _SYMBOLS)],
            measured={"landmarks": (_AGENTS, _LANDMARKS)},
            memory={"goal": (2, 3)},
            parameters={"local_ratio": Parameter(config.local_ratio, 0, 1, "weight of an agent's own distance")},
            metrics=("distance",),
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {
            "moving": draws.uniform(-1, 1, 2, 2),
            "rest": draws.uniform(-1, 1, 2, 3),
            "goal": torch.stack((draws.one_hot(3), draws.one_hot(3))),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        landmarks = Around(pos, _AGENTS, [_LANDMARKS] * 2).offset
        heard = own(parts["comm"], [1, 0])
        return {"agent": joined(own(parts["vel"], _AGENTS), landmarks, 0.25 + 0.5 * parts["goal"], heard)}

    def pay(self, now: Now) -> Pay:
        distance = chosen(now.between("landmarks").flip(0), now.part("goal"))
        mean = distance.mean(0)
        return Pay(-torch.lerp(mean, distance, now.state["local_ratio"]), lambda _: {"distance": mean})

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        """Each agent wears the colour of the landmark that it has to reach."""
        goals = parts["goal"][..., 0].argmax(1).tolist()
        return {f"agent_{i}": {"color": PALETTE[_COLORS[goals[1 - i]]]} for i in _AGENTS}
