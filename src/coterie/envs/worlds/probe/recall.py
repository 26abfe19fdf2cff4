"""The probe of memory: a cue is shown once and asked for later."""

from __future__ import annotations

from typing import final

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.envs.worlds.probe.task import (
    ProbeAction,
    ProbeConfig,
    ProbeOutcome,
    ProbeSpec,
    ProbeWorld,
    Reference,
    discrete_action,
    feature_space,
    filled,
    random_label,
)
from coterie.envs.worlds.world import State


class MemoryConfig(ProbeConfig):
    """Settings of probe/memory."""

    delay: int = Field(1, ge=0, le=10**6)
    """Steps between the cue and the question; with 0 the cue is still visible and no memory is needed."""
    cues: int = Field(2, ge=2, le=1000)
    """Number of cues, and of answers."""


@final
class MemoryProbe(ProbeWorld):
    """The first timestep shows a cue and the last one asks for it: the right answer gives 1, a wrong one -1.

    Observation: the cue as a one-hot vector (zeros after the first timestep), and 1 in the timestep of the question.
    """

    Config = MemoryConfig

    def __init__(self, config: MemoryConfig, with_state: bool = False):
        self.config = config
        guess = 2 / config.cues - 1
        reference = Reference(
            requirement="Remember an earlier observation until it is needed.",
            negative_control="A feedforward policy can only guess.",
            best_return=1.0,
            random_return=guess,
            control_return=guess if config.delay else 1.0,
        )
        probe = ProbeSpec(
            name="memory",
            reference=reference,
            observation_space=feature_space(config.cues + 1),
            action_space=spaces.Discrete(config.cues),
            episode_length=config.delay + 1,
            reset_noise_size=1,
        )
        super().__init__(probe, with_state)

    def initial_state(self, noise: Tensor) -> State:
        return {"cue": random_label(noise[:, 0], self.config.cues)}

    def outcome(self, state: State, action: ProbeAction, noise: Tensor) -> ProbeOutcome:
        answer = torch.where(action.discrete[:, 0, 0] == state["cue"], 1.0, -1.0)
        return ProbeOutcome(reward=torch.where(state["step"] == self.config.delay, answer, 0.0)[:, None])

    def observation(self, state: State) -> Tensor:
        cue = one_hot(state["cue"], self.config.cues).float() * (state["step"] == 0)[:, None]
        question = (state["step"] >= self.config.delay).float()
        return torch.cat((cue, question[:, None]), dim=1)[:, None]

    def best_action(self, state: State) -> ProbeAction:
        return discrete_action(state["cue"][:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return filled(state, gamma) ** (self.config.delay - state["step"])
