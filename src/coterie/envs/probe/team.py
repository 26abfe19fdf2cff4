"""Probes of a team: identity, sums, credit, sacrifice."""

from __future__ import annotations

from typing import final

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.envs.probe.task import (
    Known,
    Pay,
    Plan,
    ProbeConfig,
    ProbeWorld,
    Taken,
    chosen,
    constant,
    line_of,
    numbered,
)
from coterie.envs.world import State


class RolesConfig(ProbeConfig):
    """Settings of probe/roles."""

    agents: int = Field(2, ge=2)
    """How many there are; as many choices has each."""


@final
class Roles(ProbeWorld):
    """All see the same; agent i is paid 1 for choice i and 0 for others."""

    Config = RolesConfig

    def __init__(self, config: RolesConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="Who sees the same acts differently, by who it is.",
            control="agent_id=false with shared parameters: one policy for all, of which one agent's worth is right.",
            best=float(config.agents),
            random=1.0,
            without=1.0,
        )
        plan = Plan("roles", known, line_of(1), spaces.Discrete(config.agents), config.agents)
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        place = torch.arange(self.config.agents, device=taken.choice.device)
        return Pay(own=(taken.choice[..., 0] == place).float())

    def see(self, state: State) -> Tensor:
        return constant(state, 1)[:, None, None]

    def best(self, state: State) -> Taken:
        place = torch.arange(self.config.agents, device=state["age"].device)
        return chosen(place.expand(len(state["age"]), -1))

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, self.config.agents)


class AdditiveConfig(ProbeConfig):
    """Settings of probe/additive."""


@final
class Additive(ProbeWorld):
    """Agent 0's choices are worth 0, 1, 2 and agent 1's 3, 0, 1; the group is paid the sum. Each sees who it is."""

    Config = AdditiveConfig
    WORTH = ((0.0, 1.0, 2.0), (3.0, 0.0, 1.0))
    """What each agent's choices are worth."""

    def __init__(self, config: AdditiveConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="A sum of single values is exact for all nine joint actions, and each finds its own best choice.",
            control="matrix/monotonic in its place: the best sum is wrong by much.",
            best=5.0,
            random=7 / 3,
        )
        super().__init__(Plan("additive", known, line_of(2), spaces.Discrete(3), 2, grouped=True), with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        worth = torch.tensor(self.WORTH, device=taken.choice.device).expand(len(taken.choice), -1, -1)
        return Pay(group=worth.gather(2, taken.choice).sum((1, 2)))

    def see(self, state: State) -> Tensor:
        return _who(state, 2)

    def best(self, state: State) -> Taken:
        return chosen(torch.tensor([2, 0], device=state["age"].device).expand(len(state["age"]), -1))

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, 5)


class IrrelevantConfig(ProbeConfig):
    """Settings of probe/irrelevant."""


@final
class Irrelevant(ProbeWorld):
    """The group is paid 1 for agent 0's choice 1 and -1 for its other; what agent 1 does matters nothing."""

    Config = IrrelevantConfig

    def __init__(self, config: IrrelevantConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="Credit goes to who earned it: a counterfactual advantage of agent 1 is 0 for every choice.",
            control="An advantage that is the reward less its mean moves agent 1's policy at random.",
            best=1.0,
            random=0.0,
        )
        super().__init__(Plan("irrelevant", known, line_of(2), spaces.Discrete(2), 2, grouped=True), with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(group=2.0 * taken.choice[:, 0, 0] - 1)

    def see(self, state: State) -> Tensor:
        return _who(state, 2)

    def best(self, state: State) -> Taken:
        return chosen(torch.tensor([1, 0], device=state["age"].device).expand(len(state["age"]), -1))

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, 1)


class SacrificeConfig(ProbeConfig):
    """Settings of probe/sacrifice."""

    length: int = Field(4, ge=2)
    """Steps; the group is paid in the last."""
    lure: float = Field(0.5, ge=0, lt=1)
    """What agent 0 earns at once if it stays."""


@final
class Sacrifice(ProbeWorld):
    """In the first step agent 0 stays (choice 0) and earns the lure, or leaves for good (choice 1): then the group is
    paid 1 at the end. Later choices, and agent 1's, matter nothing.

    Observation: who it is (two features), the share of the episode that is over, and 1 if agent 0 has left.
    """

    Config = SacrificeConfig

    def __init__(self, config: SacrificeConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="An agent leaves so that its team is paid after its end.",
            control="Cutting the agent's future at its own end: staying looks better, and the team gets the lure.",
            best=1.0,
            random=(1 + config.lure) / 2,
            without=config.lure,
        )
        plan = Plan(
            "sacrifice",
            known,
            line_of(4),
            spaces.Discrete(2),
            2,
            length=config.length,
            grouped=True,
            mortal=True,
            alive=_still_there,
        )
        super().__init__(plan, with_state)

    def begin(self, noise: Tensor) -> State:
        return {"left": torch.zeros(len(noise), dtype=torch.bool, device=noise.device)}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        first, last = state["age"] == 0, state["age"] == self.config.length - 1
        leaves = first & (taken.choice[:, 0, 0] == 1)
        nobody = torch.zeros_like(leaves)
        return Pay(
            own=torch.stack((self.config.lure * (first & ~leaves).float(), nobody.float()), dim=1),
            group=(last & state["left"]).float(),
            changed={"left": state["left"] | leaves},
            gone=torch.stack((leaves, nobody), dim=1),
        )

    def see(self, state: State) -> Tensor:
        told = torch.stack((state["age"] / self.config.length, state["left"].float()), dim=-1)
        return torch.cat((_who(state, 2), told[:, None].expand(-1, 2, -1)), dim=-1)

    def best(self, state: State) -> Taken:
        leaves = (state["age"] == 0).long()
        return chosen(torch.stack((leaves, torch.zeros_like(leaves)), dim=1))

    def best_value(self, state: State, gamma: float) -> Tensor:
        """Where gamma^(length - 1) is less than the lure, it is better to stay."""
        paid = constant(state, gamma) ** (self.config.length - 1 - state["age"])
        return torch.where(state["age"] == 0, paid.clamp(min=self.config.lure), paid * state["left"])


def _still_there(state: State) -> Tensor:
    return torch.stack((~state["left"], torch.ones_like(state["left"])), dim=1)


class SumConfig(ProbeConfig):
    """Settings of probe/sum."""

    agents: int = Field(2, ge=2)
    """How many numbers are added up."""


@final
class Sum(ProbeWorld):
    """Each agent names a number in [-1, 1]; the group pays the square of how far their sum is from 1."""

    Config = SumConfig

    def __init__(self, config: SumConfig, with_state: bool = False):
        self.config = config
        known = Known(
            claim="The numbers add up to 1.",
            control="Agents that each reach for 1 by themselves pay (agents - 1)^2.",
            best=0.0,
            random=-(config.agents / 3 + 1),
            without=-float((config.agents - 1) ** 2),
        )
        space = spaces.Box(-1.0, 1.0, (1,))
        super().__init__(Plan("sum", known, line_of(config.agents), space, config.agents, grouped=True), with_state)

    def begin(self, noise: Tensor) -> State:
        return {}

    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        return Pay(group=-(taken.number.sum((1, 2)) - 1).square())

    def see(self, state: State) -> Tensor:
        return _who(state, self.config.agents)

    def best(self, state: State) -> Taken:
        share = constant(state, 1 / self.config.agents)
        return numbered(share[:, None, None].expand(-1, self.config.agents, -1))

    def best_value(self, state: State, gamma: float) -> Tensor:
        return constant(state, 0)


def _who(state: State, agents: int) -> Tensor:
    """Each agent's place as one-hot: [B, N, N]."""
    place = torch.arange(agents, device=state["age"].device)
    return one_hot(place, agents).float().expand(len(state["age"]), -1, -1)
