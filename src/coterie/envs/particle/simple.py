"""simple: one agent walks to a landmark. Rules: mpe2 1.1 `simple_v3`."""

from __future__ import annotations

from typing import final

from torch import Tensor

from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import Around, joined, own
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld


class SimpleConfig(ParticleConfig):
    """Settings of particle/simple."""


@final
class Simple(ParticleWorld):
    """The agent pays the square of its distance to the landmark.

    Observation: own velocity, offset to the landmark. Metric: `distance` at the last step.
    """

    Config = SimpleConfig

    def __init__(self, config: SimpleConfig, with_state: bool = False):
        self.config = config
        plan = Plan(
            name="simple",
            bodies=[
                Body("agent_0", moves=True, color="blue", kind="agent"),
                Body("landmark_0", color="red", kind="goal"),
            ],
            roles=[Role("agent", "agent", (0,))],
            measured={"goal": ([0], [1])},
            metrics=("distance",),
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {"moving": draws.uniform(-1, 1, 2, 1), "rest": draws.uniform(-1, 1, 2, 1)}

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        return {"agent": joined(own(parts["vel"], [0]), Around(pos, [0], [[1]]).offset)}

    def pay(self, now: Now) -> Pay:
        distance = now.between("goal")[0]
        return Pay(-distance.square(), lambda _: {"distance": distance[0]})

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return {}
