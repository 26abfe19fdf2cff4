"""Probes of kinds of actions and observations: numbers, several choices, both at once, pictures."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.envs.probe.task import (
    BlindConfig,
    Known,
    Pay,
    Plan,
    ProbeConfig,
    ProbeWorld,
    Taken,
    chosen,
    constant,
    label,
    line_of,
    numbered,
    sign,
)
from coterie.envs.world import State


class ContinuousConfig(ProbeConfig):
    """Settings of probe/continuous."""

    target: float = Field(0.5, gt=-2, lt=2)
    """The best number; the range is -2 to 2."""
    follow: bool = False
    """The best number is drawn from -1 to 1 and observed, in place of `target`."""


@final
class Continuous(ProbeWorld):
    """A number in [-2, 2] pays the square of its distance to the best one, which lies inside."""

    Config = ContinuousConfig

    def __init__(self, config: ContinuousConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The number comes to rest at the best one, inside the range.",
            control="A policy that is driven to a bound pays (2 - target)^2 or more.",
            best=0.0,
            random=-(4 / 3 + (1 / 3 if config.follow else config.target**2)),
            without=-13 / 3 if config.follow else -((2 - abs(config.target)) ** 2),
        )
        seen = line_of(1, -1.0)
        super().__init__(Plan("continuous", known, seen, spaces.Box(-2.0, 2.0, (1,)), restart_noise=1), with_state)

    def begin(self, noise: Tensor) -> State:
        drawn = 2 * noise[:, 0] - 1
        return {"target": drawn if self.config.follow else torch.full_like(drawn, self.config.target)}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=-(taken.number[..., 0] - state["target"][:, None]).square())

    def see(self, state: State) -> Tensor:
        return (state["target"] if self.config.follow else constant(state, 1))[:, None, None]

    def best(self, state: State) -> Taken:
        return numbered(state["target"][:, None, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, 0)


class FlatConfig(ProbeConfig):
    """Settings of probe/flat."""

    actions: Literal["discrete", "continuous"] = "discrete"
    """Four choices, or a number in [-1, 1]."""
    reward: float = 1.0
    """What every action pays."""


@final
class Flat(ProbeWorld):
    """One step, and every action pays the same."""

    Config = FlatConfig

    def __init__(self, config: FlatConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="Nothing is preferred: with a learned temperature the entropy reaches its target.",
            control="A fixed temperature lets it rise to that of uniform play; a wrong sign drives it away.",
            best=config.reward,
            random=config.reward,
        )
        self._numbers = config.actions == "continuous"
        space = spaces.Box(-1.0, 1.0, (1,)) if self._numbers else spaces.Discrete(4)
        super().__init__(Plan("flat", known, line_of(1), space), with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=constant(state, self.config.reward)[:, None])

    def see(self, state: State) -> Tensor:
        return constant(state, 1)[:, None, None]

    def best(self, state: State) -> Taken:
        if self._numbers:
            return numbered(constant(state, 0)[:, None, None])
        return chosen(torch.zeros_like(state["age"])[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, self.config.reward)


class MultiDiscreteConfig(BlindConfig):
    """Settings of probe/multi_discrete."""


@final
class MultiDiscrete(ProbeWorld):
    """Three choices at once, of 3, 2 and 4; the observation shows the right ones. Their share is paid."""

    Config = MultiDiscreteConfig
    CHOICES = (3, 2, 4)

    def __init__(self, config: MultiDiscreteConfig, with_state: bool = False):
        self.config = config
        random = sum(1 / count for count in self.CHOICES) / len(self.CHOICES)
        known = Known(
            claim="All choices of an action are right at once.",
            control="blind=true: all are guesses. A log-probability of the first choice alone leaves the rest at that.",
            best=1.0,
            random=random,
            without=random,
        )
        plan = Plan("multi_discrete", known, line_of(9), spaces.MultiDiscrete(list(self.CHOICES)), restart_noise=3)
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {"right": label(noise, torch.tensor(self.CHOICES, device=noise.device))}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=(taken.choice == state["right"][:, None]).float().mean(-1))

    def see(self, state: State) -> Tensor:
        parts = [one_hot(x, count) for x, count in zip(state["right"].unbind(1), self.CHOICES, strict=True)]
        return (torch.cat(parts, dim=1).float() * (not self.config.blind))[:, None]

    def best(self, state: State) -> Taken:
        return chosen(state["right"][:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, self.known.random if self.config.blind else 1)


class HybridConfig(BlindConfig):
    """Settings of probe/hybrid."""


@final
class Hybrid(ProbeWorld):
    """A choice of two and a number in [-1, 1] at once. With the observation x, -1 or 1: 1 for the right choice (1 where
    x > 0), less the square of the number's distance to x / 2.
    """

    Config = HybridConfig

    def __init__(self, config: HybridConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The choice and the number are right at once.",
            control="blind=true: a guess and the number 0.",
            best=1.0,
            random=1 / 2 - (1 / 3 + 1 / 4),
            without=1 / 2 - 1 / 4,
        )
        space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))])
        super().__init__(Plan("hybrid", known, line_of(1, -1.0), space, restart_noise=1), with_state)

    def begin(self, noise: Tensor) -> State:
        return {"x": sign(noise[:, 0])}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        x = state["x"][:, None]
        right = taken.choice[..., 0] == (x > 0)
        return Pay(own=right.float() - (taken.number[..., 0] - x / 2).square())

    def see(self, state: State) -> Tensor:
        return (state["x"] * (not self.config.blind))[:, None, None]

    def best(self, state: State) -> Taken:
        x = state["x"][:, None, None]
        return Taken((x > 0).long(), x / 2)

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, 0.25 if self.config.blind else 1)


class ImageConfig(BlindConfig):
    """Settings of probe/image."""

    size: int = Field(16, ge=8, le=256)
    """Height and width of the picture in pixels."""
    channels: int = Field(1, ge=1, le=4)
    """Channels of the picture; the blob is in all of them."""


@final
class Image(ProbeWorld):
    """A bright blob stands in one quarter of a grey picture; the choice of that quarter pays 1, another 0.

    Quarters are 0 upper left, 1 upper right, 2 lower left, 3 lower right. Observation: uint8 [size, size, channels].
    """

    Config = ImageConfig

    def __init__(self, config: ImageConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The choice depends on where something is in a picture.",
            control="blind=true: a black picture, and a guess.",
            best=1.0,
            random=0.25,
            without=0.25,
        )
        seen = spaces.Box(0, 255, (config.size, config.size, config.channels), np.uint8)
        super().__init__(Plan("image", known, seen, spaces.Discrete(4), restart_noise=4), with_state)

    def begin(self, noise: Tensor) -> State:
        quarter = label(noise[:, 0], 4)
        low = torch.stack((quarter // 2, quarter % 2), dim=-1) / 2
        place = (low + 0.1 + 0.3 * noise[:, 1:3]) * self.config.size  # at least a tenth of the picture off the lines
        return {"quarter": quarter, "place": place, "grey": 80 * noise[:, 3]}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=(taken.choice[..., 0] == state["quarter"][:, None]).float())

    def see(self, state: State) -> Tensor:
        if self.config.blind:
            form = (len(state["age"]), 1, *self.plan.observation.shape)
            return torch.zeros(form, dtype=torch.uint8, device=state["age"].device)
        centre = torch.arange(self.config.size, device=state["place"].device) + 0.5
        y, x = ((centre - place[:, None]).square() for place in state["place"].unbind(1))
        blob = torch.exp(-(y[:, :, None] + x[:, None, :]) / (2 * (0.08 * self.config.size) ** 2))
        grey = state["grey"][:, None, None]
        picture = (grey + (255 - grey) * blob).round().to(torch.uint8)
        return picture[:, None, :, :, None].expand(-1, -1, -1, -1, self.config.channels)

    def best(self, state: State) -> Taken:
        return chosen(state["quarter"][:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, 0.25 if self.config.blind else 1)
