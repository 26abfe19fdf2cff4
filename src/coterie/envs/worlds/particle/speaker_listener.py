"""simple_speaker_listener: a speaker that knows the goal directs a listener that can move.

Rules: mpe2 1.1 `simple_speaker_listener_v4`. With `variant="openai"`, both agents receive the sum of both rewards.
"""

from __future__ import annotations

from typing import final

from torch import Tensor

from coterie.envs.worlds.drawing.colors import PALETTE
from coterie.envs.worlds.particle.observations import Neighbors, concat_features, own_features, repeat_for
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld, select

_LISTENER, _SPEAKER, _LANDMARKS = 0, 1, range(2, 5)
_COLORS = ("red", "green", "blue")


class SimpleSpeakerListenerConfig(ParticleConfig):
    """Settings of particle/simple_speaker_listener."""

    variant: Variant = "mpe2"
    """Variant: `mpe2`, the maintained package, or `openai`, the original implementation of published results."""


@final
class SimpleSpeakerListener(ParticleWorld):
    """A speaker directs a listener to the goal: r = -d(listener, goal)^2 for both, openai: twice that.

    The speaker observes the color of the goal. The listener observes its velocity, the offsets to the landmarks and the
    speaker's message. Metric: `distance` at the last step.
    """

    Config = SimpleSpeakerListenerConfig

    def __init__(self, config: SimpleSpeakerListenerConfig, with_state: bool = False):
        self.config = config
        scenario = ScenarioSpec(
            name="simple_speaker_listener",
            bodies=[
                Body("listener_0", 0.075, moves=True, color="dark", kind="agent"),
                Body("speaker_0", 0.075, color="gray", kind="agent"),
                *(Body(f"landmark_{i}", 0.04, color=color) for i, color in enumerate(_COLORS)),
            ],
            roles=[Role("speaker", "team", (_SPEAKER,), 3), Role("listener", "team", (_LISTENER,))],
            measured_pairs={"landmarks": ([_LISTENER], _LANDMARKS)},
            extra_parts={"goal": (3,)},
            metrics=("distance",),
        )
        super().__init__(scenario, config, with_state, config.variant)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {
            "moving": noise.uniform(-1, 1, 2, 1),
            "rest": noise.uniform(-1, 1, 2, 4),
            "goal": noise.one_hot(3),
        }

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        landmarks = Neighbors(pos, [_LISTENER], [_LANDMARKS]).offset
        return {
            "speaker": repeat_for(0.15 + 0.5 * parts["goal"], 1),
            "listener": concat_features(own_features(parts["vel"], [0]), landmarks, own_features(parts["comm"], [0])),
        }

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        distance = select(transition.distance("landmarks"), transition.part("goal"))
        reward = distance.square() * (-2 if self.config.variant == "openai" else -1)
        return ScenarioOutcome(reward.expand(2, -1), lambda _: {"distance": distance[0]})

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        """Colors the listener like the goal."""
        goal = int(parts["goal"][:, 0].argmax())
        return {
            "listener_0": {"color": PALETTE[_COLORS[goal]]},
            f"landmark_{goal}": {"kind": "goal"},
        }
