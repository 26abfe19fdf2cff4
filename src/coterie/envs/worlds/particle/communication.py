"""Scenarios in which agents send symbols: simple_speaker_listener, simple_reference and simple_crypto.

Rules: mpe2 1.1 `simple_speaker_listener_v4`, `simple_reference_v3` and `simple_crypto_v3`. With `variant="openai"`,
both agents of simple_speaker_listener receive the sum of both rewards.
"""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.drawing import PALETTE
from coterie.envs.worlds.particle.particle_world import (
    DiscOverrides,
    ParticleConfig,
    ParticleWorld,
    highlight_goal,
    select,
)
from coterie.envs.worlds.particle.physics import Body, Variant
from coterie.envs.worlds.particle.scenario import (
    Neighbors,
    NoiseReader,
    Role,
    ScenarioOutcome,
    ScenarioSpec,
    Transition,
    body_indices,
    concat_features,
    own_features,
    repeat_for,
)

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


_REFERENCE_SYMBOLS = 10
_REFERENCE_AGENTS, _REFERENCE_LANDMARKS = range(2), range(2, 5)


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
                *(Body(f"agent_{i}", moves=True, color="dark", kind="agent") for i in _REFERENCE_AGENTS),
                *(Body(f"landmark_{i}", color=color) for i, color in enumerate(_COLORS)),
            ],
            roles=[Role("agent", "agent", tuple(_REFERENCE_AGENTS), _REFERENCE_SYMBOLS)],
            measured_pairs={"landmarks": (_REFERENCE_AGENTS, _REFERENCE_LANDMARKS)},
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
        landmarks = Neighbors(pos, _REFERENCE_AGENTS, [_REFERENCE_LANDMARKS] * 2).offset
        messages = own_features(parts["comm"], [1, 0])
        return {
            "agent": concat_features(
                own_features(parts["vel"], _REFERENCE_AGENTS), landmarks, 0.25 + 0.5 * parts["goal"], messages
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
        return {f"agent_{i}": {"color": PALETTE[_COLORS[goals[1 - i]]]} for i in _REFERENCE_AGENTS}


_CRYPTO_SYMBOLS = 4
_EVE, _BOB, _ALICE = range(3)


class SimpleCryptoConfig(ParticleConfig):
    """Settings of particle/simple_crypto."""


@final
class SimpleCrypto(ParticleWorld):
    """Bob and Eve reconstruct Alice's message. Agents do not move.

    alice, bob: r = e_eve - e_bob;   eve: r = -e_eve

    where e is the squared error of a reconstruction, 0 for silence. Message and key are one of two labels, observed as
    one-hot vectors of size four. Alice observes message and key, Bob the key and what Alice sends, Eve what Alice
    sends. Metrics at the last step: `bob_right`, `eve_right`.
    """

    Config = SimpleCryptoConfig

    def __init__(self, config: SimpleCryptoConfig, with_state: bool = False):
        self.config = config
        scenario = ScenarioSpec(
            name="simple_crypto",
            bodies=[
                Body("eve_0", color="red", kind="agent"),
                Body("bob_0", color="blue", kind="agent"),
                Body("alice_0", color="sky", kind="agent"),
                Body("landmark_0"),
                Body("landmark_1"),
            ],
            roles=[
                Role("eve", "eve", (_EVE,), _CRYPTO_SYMBOLS),
                Role("bob", "team", (_BOB,), _CRYPTO_SYMBOLS),
                Role("alice", "team", (_ALICE,), _CRYPTO_SYMBOLS),
            ],
            extra_parts={"goal": (2,), "key": (2,)},
            hidden_parts={"eve": ("goal", "key"), "team": ()},
            metrics=("bob_right", "eve_right"),
        )
        super().__init__(scenario, config, with_state)

    def initial_parts(self, noise: NoiseReader) -> dict[str, Tensor]:
        return {"rest": noise.uniform(-1, 1, 2, 5), "goal": noise.one_hot(2), "key": noise.one_hot(2)}

    def role_observations(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        message, key = parts["comm"][:, _ALICE], _label(parts["key"])
        return {
            "eve": repeat_for(message, 1),
            "bob": repeat_for(torch.cat((key, message)), 1),
            "alice": repeat_for(torch.cat((_label(parts["goal"]), key)), 1),
        }

    def outcome(self, transition: Transition) -> ScenarioOutcome:
        goal = transition.part("goal")
        guess = transition.part("comm")[:, body_indices((_EVE, _BOB), goal.device)]
        error = (guess - _label(goal).unsqueeze(1)).square().sum(0) * (guess != 0).any(0)
        eve, bob = error
        team = eve - bob

        def metrics(returns: Tensor) -> dict[str, Tensor]:
            right = (guess.argmax(0) == goal.argmax(0)).to(goal.dtype)
            return {"bob_right": right[1], "eve_right": right[0]}

        return ScenarioOutcome(torch.stack((-eve, team, team)), metrics)

    def disc_overrides(self, parts: dict[str, Tensor]) -> DiscOverrides:
        return highlight_goal(parts["goal"])


def _label(one_hot: Tensor) -> Tensor:
    """Pads one-hot vectors [2, B] to the size of the vocabulary, [4, B]."""
    return torch.cat((one_hot, torch.zeros_like(one_hot)))
