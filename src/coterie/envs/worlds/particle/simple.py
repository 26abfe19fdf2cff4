"""simple: one agent moves to a landmark. Rules: mpe2 1.1 `simple_v3`."""

from __future__ import annotations

from typing import final

from torch import Tensor

from coterie.envs.worlds.particle.observations import Neighbors, concat_features, own_features
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld


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
