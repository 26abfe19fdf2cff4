"""simple_crypto: Alice tells Bob a bit over a public channel, with a key that Eve has not.

Rules: mpe2 1.1 `simple_crypto_v3`.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from coterie.envs.particle.physics import Body
from coterie.envs.particle.plan import Draws, Now, Pay, Plan, Role
from coterie.envs.particle.sight import same
from coterie.envs.particle.task import Looks, ParticleConfig, ParticleWorld, goal_looks

_SYMBOLS = 4
_EVE, _BOB, _ALICE = range(3)


class SimpleCryptoConfig(ParticleConfig):
    """Settings of particle/simple_crypto."""


@final
class SimpleCrypto(ParticleWorld):
    """Nobody moves; Bob and Eve say what they believe the message to be, e being the squared error, 0 for silence.

    alice, bob: r = e_eve - e_bob;   eve: r = -e_eve

    Message and key are one of two labels, shown as one-hot vectors of four. Observation of Alice: message and key; of
    Bob: key and what Alice says; of Eve: what Alice says. Metrics, at the last step: `bob_right`, `eve_right`.
    """

    Config = SimpleCryptoConfig

    def __init__(self, config: SimpleCryptoConfig, with_state: bool = False):
        self.config = config
        plan = Plan(
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
            memory={"goal": (2,), "key": (2,)},
            hidden={"eve": ("goal", "key"), "team": ()},
            metrics=("bob_right", "eve_right"),
        )
        super().__init__(plan, config, with_state)

    def start(self, draws: Draws) -> dict[str, Tensor]:
        return {"rest": draws.uniform(-1, 1, 2, 5), "goal": draws.one_hot(2), "key": draws.one_hot(2)}

    def observe(self, parts: dict[str, Tensor], pos: Tensor) -> dict[str, Tensor]:
        heard, key = parts["comm"][:, _ALICE], _label(parts["key"])
        return {
            "eve": same(heard, 1),
            "bob": same(torch.cat((key, heard)), 1),
            "alice": same(torch.cat((_label(parts["goal"]), key)), 1),
        }

    def pay(self, now: Now) -> Pay:
        goal = now.part("goal")
        belief = now.part("comm")[:, [_EVE, _BOB]]
        error = (belief - _label(goal).unsqueeze(1)).square().sum(0) * (belief != 0).any(0)
        eve, bob = error
        team = eve - bob

        def metrics(score: Tensor) -> dict[str, Tensor]:
            right = (belief.argmax(0) == goal.argmax(0)).to(goal.dtype)
            return {"bob_right": right[1], "eve_right": right[0]}

        return Pay(torch.stack((-eve, team, team)), metrics)

    def looks(self, parts: dict[str, Tensor]) -> Looks:
        return goal_looks(parts["goal"])


def _label(one_hot: Tensor) -> Tensor:
    """[2, B] as [4, B]: labels are shown as vectors as long as what can be said."""
    return torch.cat((one_hot, torch.zeros_like(one_hot)))
