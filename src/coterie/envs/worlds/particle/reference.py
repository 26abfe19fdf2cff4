"""simple_reference: two agents direct each other to landmarks. Rules: mpe2 1.1 `simple_reference_v3`."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.drawing.colors import PALETTE
from coterie.envs.worlds.particle.observations import Neighbors, concat_features, own_features
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld, select

_SYMBOLS = 10
_AGENTS, _LANDMARKS = range(2), range(2, 5)
_COLORS = ("red", "green", "blue")


class SimpleReferenceConfig(ParticleConfig):
    """Settings of particle/simple_reference."""

    local_ratio: float = Field(0.5, ge=0, le=1)
    """Weight of the agent's own reward; the mean over both agents has the remaining weight."""


@final
class SimpleReference(ParticleWorld):
    """Each agent knows the landmark that the other must reach. Both move and communicate.

    own_i = -d(other of i, its goal);   r_i = (1 - local_ratio) mean_j own_j + local_ratio own_i

    Observation: own velocity, offsets to the landmarks, color of the other's goal, the other's message.
    Metric: `distance` at the last step, the mean distance of both agents to their goals.
    """

    Config = SimpleReferenceConfig

    def __init__(self, config: SimpleReferenceConfig, with_state: bool = False):
        self.config = config
        scenario = ScenarioSpec(
            name="simple_reference",
            bodies=[
                *(Body(f"agent_{i}", moves=True, color="dark", kind="agent") for i in _AGENTS),
                *(Body(f"landmark_{i}", color=color) for i, color in enumerate(_COLORS)),
            ],
            roles=[Role("agent", "agent", tuple(_AGENTS), _SYMBOLS)],
            measured_pairs={"landmarks": (_AGENTS, _LANDMARKS)},
            extra_parts={"goal": (2, 3)},
            parameters={"local_ratio": Parameter(config.local_ratio, 0, 1, "weight of the agent's own distance")},
            metrics=("distance",),
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {
            "moving": noise.uniform(-1, 1, 2, 2),
            "rest": noise.uniform(-1, 1, 2, 3),
            "goal": torch.stack((noise.one_hot(3), noise.one_hot(3))),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        landmarks = Neighbors(pos, _AGENTS, [_LANDMARKS] * 2).offset
        messages = own_features(parts["comm"], [1, 0])
        return {
            "agent": concat_features(
                own_features(parts["vel"], _AGENTS), landmarks, 0.25 + 0.5 * parts["goal"], messages
            )
        }

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        distance = select(transition.distance("landmarks").flip(0), transition.part("goal"))
        mean = distance.mean(0)
        return ScenarioOutcome(
            -torch.lerp(mean, distance, transition.state["local_ratio"]), lambda _: {"distance": mean}
        )

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        """Colors each agent like the landmark that it must reach."""
        goals = parts["goal"][..., 0].argmax(1).tolist()
        return {f"agent_{i}": {"color": PALETTE[_COLORS[goals[1 - i]]]} for i in _AGENTS}
