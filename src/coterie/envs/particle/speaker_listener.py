"""simple_speaker_listener: one agent knows the goal and speaks, the other hears and walks.

Rules: mpe2 1.1 `simple_speaker_listener_v4`; `variant="openai"`: the original convention, in which both receive the sum
of both rewards.
"""

from __future__ import annotations

from typing import final

from torch import Tensor

from coterie.envs.particle.physics import Body, Variant
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.render import PALETTE
from coterie.envs.particle.sight import Around, joined, own, same
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld, chosen

_LISTENER, _SPEAKER, _LANDMARKS = 0, 1, range(2, 5)
_COLORS = ("red", "green", "blue")


class SimpleSpeakerListenerConfig(ParticleConfig):
    """Settings of particle/simple_speaker_listener."""

    variant: Variant = "mpe2"
    """Convention: `mpe2`, the maintained package, or `openai`, the original of published results."""


@final
class SimpleSpeakerListener(ParticleWorld):
    """Both are paid minus the square of the listener's distance to the goal; openai: twice that.

    Observation of the speaker: colour of the goal; of the listener: own velocity, offsets to the landmarks, what the
    speaker said. Metric: `distance` at the last step.
    """

    Config = SimpleSpeakerListenerConfig

    def __init__(self, config: SimpleSpeakerListenerConfig, with_state: bool = False):
        self.config = config
        plan = Plan(
            name="simple_speaker_listener",
            bodies=[
                Body("listener_0", 0.075, moves=True, color="dark", kind="agent"),
                Body("speaker_0", 0.075, color="grey", kind="agent"),
                *(Body(f"landmark_{i}", 0.04, color=color) for i, color in enumerate(_COLORS)),
            ],
            roles=[Role("speaker", "team", (_SPEAKER,), 3), Role("listener", "team", (_LISTENER,))],
            measured={"landmarks": ([_LISTENER], _LANDMARKS)},
            memory={"goal": (3,)},
            metrics=("distance",),
        )
        super().__init__(plan, config, with_state, config.variant)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {
            "moving": draws.uniform(-1, 1, 2, 1),
            "rest": draws.uniform(-1, 1, 2, 4),
            "goal": draws.one_hot(3),
        }

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        landmarks = Around(pos, [_LISTENER], [_LANDMARKS]).offset
        return {
            "speaker": same(0.15 + 0.5 * parts["goal"], 1),
            "listener": joined(own(parts["vel"], [0]), landmarks, own(parts["comm"], [0])),
        }

    def pay(self, now: Now) -> Pay:
        distance = chosen(now.between("landmarks"), now.part("goal"))
        reward = distance.square() * (-2 if self.config.variant == "openai" else -1)
        return Pay(reward.expand(2, -1), lambda _: {"distance": distance[0]})

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        """The listener wears the colour of the goal."""
        goal = int(parts["goal"][:, 0].argmax())
        return {
            "listener_0": {"color": PALETTE[_COLORS[goal]]},
            f"landmark_{goal}": {"kind": "goal"},
        }
