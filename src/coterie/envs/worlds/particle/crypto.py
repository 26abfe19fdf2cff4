"""simple_crypto: Alice sends Bob a bit over a public channel, encrypted with a key that Eve does not know.

Rules: mpe2 1.1 `simple_crypto_v3`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from coterie.envs.worlds.particle.observations import body_indices, repeat_for
from coterie.envs.worlds.particle.physics import Body
from coterie.envs.worlds.particle.scenario import NoiseReader, Role, ScenarioOutcome, ScenarioSpec, Transition
from coterie.envs.worlds.particle.task import DiscOverrides, ParticleConfig, ParticleWorld, highlight_goal

_SYMBOLS = 4
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
                Role("eve", "eve", (_EVE,), _SYMBOLS),
                Role("bob", "team", (_BOB,), _SYMBOLS),
                Role("alice", "team", (_ALICE,), _SYMBOLS),
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
