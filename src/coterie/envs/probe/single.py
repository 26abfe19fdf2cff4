"""Probes of one agent: values, discounts, actions, observations, limits, masks."""

from __future__ import annotations

from typing import final

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
    line_of,
    sign,
)
from coterie.envs.world import State


class ConstantConfig(ProbeConfig):
    """Settings of probe/constant."""

    reward: float = 1.0
    """What the only step pays."""


@final
class Constant(ProbeWorld):
    """One step, one observation, one reward."""

    Config = ConstantConfig

    def __init__(self, config: ConstantConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The value of the only row is the reward.",
            control="A target that bootstraps past the end tells more than the reward.",
            best=config.reward,
            random=config.reward,
        )
        super().__init__(Plan("constant", known, line_of(1), spaces.Discrete(2)), with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=constant(state, self.config.reward)[:, None])

    def see(self, state: State) -> Tensor:
        return constant(state, 1)[:, None, None]

    def best(self, state: State) -> Taken:
        return chosen(torch.zeros_like(state["age"])[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, self.config.reward)


class ObservationConfig(BlindConfig):
    """Settings of probe/observation."""


@final
class Observation(ProbeWorld):
    """One step; the observation is -1 or 1, and so is the reward."""

    Config = ObservationConfig

    def __init__(self, config: ObservationConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The value is what is observed, -1 or 1.",
            control="blind=true: every value is 0, wrong by 1 in every row.",
            best=0.0,
            random=0.0,
        )
        plan = Plan("observation", known, line_of(1, -1.0), spaces.Discrete(2), restart_noise=1)
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {"x": sign(noise[:, 0])}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=state["x"][:, None])

    def see(self, state: State) -> Tensor:
        return (state["x"] * (not self.config.blind))[:, None, None]

    def best(self, state: State) -> Taken:
        return chosen(torch.zeros_like(state["age"])[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return state["x"] * (not self.config.blind)


class DelayedConfig(ProbeConfig):
    """Settings of probe/delayed."""

    length: int = Field(2, ge=2)
    """Steps; the last one pays 1."""


@final
class Delayed(ProbeWorld):
    """The last step pays 1; the agent observes which step it is."""

    Config = DelayedConfig

    def __init__(self, config: DelayedConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The value falls by gamma for every step that the reward is away.",
            control="With gamma=1, or a target that leaves gamma out, the first value is 1.",
            best=1.0,
            random=1.0,
        )
        plan = Plan("delayed", known, line_of(config.length), spaces.Discrete(2), length=config.length)
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=(state["age"] == self.config.length - 1).float()[:, None])

    def see(self, state: State) -> Tensor:
        last = self.config.length - 1  # a closing row looks like the last
        return one_hot(state["age"].clamp(max=last), self.config.length).float()[:, None]

    def best(self, state: State) -> Taken:
        return chosen(torch.zeros_like(state["age"])[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, gamma) ** (self.config.length - 1 - state["age"])


class ActionConfig(ProbeConfig):
    """Settings of probe/action."""

    choices: int = Field(2, ge=2)
    """How many there are."""
    good: int = Field(1, ge=0)
    """The one that pays 1; the others pay -1."""


@final
class ActionProbe(ProbeWorld):
    """One step, one observation; one choice pays 1, the others -1."""

    Config = ActionConfig

    def __init__(self, config: ActionConfig, with_state: bool = False):
        self.config = config
        if config.good >= config.choices:
            raise ValueError(f"good={config.good}: expected one of the choices 0 to {config.choices - 1}")
        known = Known(
            claim="The choice that pays is made.",
            control="An update with the sign reversed makes another one.",
            best=1.0,
            random=2 / config.choices - 1,
            without=-1.0,
        )
        super().__init__(Plan("action", known, line_of(1), spaces.Discrete(config.choices)), with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=torch.where(taken.choice[..., 0] == self.config.good, 1.0, -1.0))

    def see(self, state: State) -> Tensor:
        return constant(state, 1)[:, None, None]

    def best(self, state: State) -> Taken:
        return chosen(torch.full_like(state["age"], self.config.good)[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, 1)


class BothConfig(BlindConfig):
    """Settings of probe/both."""


@final
class Both(ProbeWorld):
    """One step; the observation, -1 or 1, says which of two choices pays 1, the other pays -1."""

    Config = BothConfig

    def __init__(self, config: BothConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The choice depends on what is observed.",
            control="blind=true: whatever is chosen earns 0 on average.",
            best=1.0,
            random=0.0,
            without=0.0,
        )
        plan = Plan("both", known, line_of(1, -1.0), spaces.Discrete(2), restart_noise=1)
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {"x": sign(noise[:, 0])}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=state["x"][:, None] * (2 * taken.choice[..., 0] - 1))

    def see(self, state: State) -> Tensor:
        return (state["x"] * (not self.config.blind))[:, None, None]

    def best(self, state: State) -> Taken:
        return chosen((state["x"] > 0).long()[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, not self.config.blind)


class EndlessConfig(ProbeConfig):
    """Settings of probe/endless."""

    episode_limit: int = Field(10, ge=1)
    """Steps after which an episode is cut."""
    limit_ends: bool = False
    """The negative control: the limit is told as an end of the task."""


@final
class Endless(ProbeWorld):
    """Every step pays 1 for ever; a limit that nobody can see cuts the episodes."""

    Config = EndlessConfig

    def __init__(self, config: EndlessConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The value is 1 / (1 - gamma) in every row: a limit is no end.",
            control="limit_ends=true, or a learner that takes the limit for an end: the value stays well below.",
            best=float(config.episode_limit),
            random=float(config.episode_limit),
        )
        plan = Plan(
            "endless",
            known,
            line_of(1),
            spaces.Discrete(2),
            length=config.episode_limit,
            cut=not config.limit_ends,
        )
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(own=constant(state, 1)[:, None])

    def see(self, state: State) -> Tensor:
        return constant(state, 1)[:, None, None]

    def best(self, state: State) -> Taken:
        return chosen(torch.zeros_like(state["age"])[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        """1 / (1 - gamma); where the limit ends the task, what is left of it, told by a clock that agents lack."""
        if not self.config.limit_ends:
            return constant(state, 1 / (1 - gamma))
        return (1 - constant(state, gamma) ** (self.config.episode_limit - state["age"])) / (1 - gamma)


class MaskedConfig(ProbeConfig):
    """Settings of probe/masked."""

    length: int = Field(2, ge=1)
    """Steps; in each the best choice is barred or not, as likely."""


@final
class Masked(ProbeWorld):
    """Choices pay 0, 0.5 and 1. In half of the rows the last is masked; who makes it there pays 1.

    The observation says whether it is, 1 or 0.
    """

    Config = MaskedConfig

    def __init__(self, config: MaskedConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The best choice is made where it can be, else the next best; values of successors know it too.",
            control="A learner that takes the greatest value over all choices, masked ones included, tells too much; "
            "one that makes them earns 0 on average.",
            best=0.75 * config.length,
            random=0.375 * config.length,
            without=0.0,
        )
        plan = Plan(
            "masked",
            known,
            line_of(1),
            spaces.Discrete(3),
            length=config.length,
            restart_noise=1,
            step_noise=1,
            metrics=("illegal",),
            mask=_open,
        )
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {"barred": noise[:, 0] < 0.5, "illegal": torch.zeros_like(noise[:, 0])}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        choice = taken.choice[:, 0, 0]
        broken = state["barred"] & (choice == 2)
        illegal = state["illegal"] + broken.float() / self.config.length
        paid = torch.where(broken, -1.0, 0.5 * choice)
        return Pay(own=paid[:, None], changed={"barred": noise[:, 0] < 0.5, "illegal": illegal})

    def see(self, state: State) -> Tensor:
        return state["barred"].float()[:, None, None]

    def best(self, state: State) -> Taken:
        return chosen((2 - state["barred"].long())[:, None])

    def best_value(self, state: State, gamma: float) -> Tensor:
        later = torch.tensor([sum(gamma**t for t in range(1, left)) for left in range(self.config.length + 1)])
        left = (self.config.length - state["age"]).clamp(min=0)
        return 1 - 0.5 * state["barred"].float() + 0.75 * later.to(left.device)[left]


def _open(state: State) -> Tensor:
    return torch.stack((torch.ones_like(state["barred"]), torch.ones_like(state["barred"]), ~state["barred"]), -1)[
        :, None
    ]
