"""The probe of memory: a cue is shown once and asked for later."""

from __future__ import annotations

from typing import final

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.envs.probe.task import Known, Pay, Plan, ProbeConfig, ProbeWorld, Taken, chosen, constant, label, line_of
from coterie.envs.world import State


class MemoryConfig(ProbeConfig):
    """Settings of probe/memory."""

    delay: int = Field(1, ge=0)
    """Steps from the cue to the question; 0 asks in the row that shows it, so that no memory is needed."""
    cues: int = Field(2, ge=2)
    """How many there are; an answer is one of them."""


@final
class Memory(ProbeWorld):
    """The first row shows one of several cues, the last one asks: naming the cue pays 1, another -1.

    Observation: the cue as one-hot (zeros after the first row), and 1 in the row that asks.
    """

    Config = MemoryConfig

    def __init__(self, config: MemoryConfig, with_state: bool = False):
        self.config = config
        guess = 2 / config.cues - 1
        known = Known(
            claim="What was seen before is recalled when it is asked for.",
            control="A network without memory can only guess.",
            best=1.0,
            random=guess,
            without=guess if config.delay else 1.0,
        )
        plan = Plan(
            "memory",
            known,
            line_of(config.cues + 1),
            spaces.Discrete(config.cues),
            length=config.delay + 1,
            restart_noise=1,
        )
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {"cue": label(noise[:, 0], self.config.cues)}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        answer = torch.where(taken.choice[:, 0, 0] == state["cue"], 1.0, -1.0)
        return Pay(own=torch.where(state["age"] == self.config.delay, answer, 0.0)[:, None])

    def see(self, state: State) -> Tensor:
        cue = one_hot(state["cue"], self.config.cues).float() * (state["age"] == 0)[:, None]
        asks = (state["age"] >= self.config.delay).float()
        return torch.cat((cue, asks[:, None]), dim=1)[:, None]

    def best(self, state: State) -> Taken:
        return chosen(state["cue"][:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, gamma) ** (self.config.delay - state["age"])
