"""What every algorithm is: a policy, and a way to improve it from windows of experience."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor

from coterie.errors import UserError
from coterie.nets.memory import Carry
from coterie.nets.sensors import layout
from coterie.nets.team import Share, alike
from coterie.policy import Mode, Policy
from coterie.types import Row, TeamSpec, Window

ALL_ACTIONS = frozenset({"discrete", "multi_discrete", "continuous", "hybrid"})


@dataclass(frozen=True)
class Capabilities:
    """What an algorithm can be given; `require` refuses the rest before anything starts."""

    actions: frozenset[str]
    """Kinds of action: discrete, multi_discrete, continuous, hybrid."""
    masks: bool = True
    """Action masks."""
    memory: bool = True
    """Recurrent networks."""
    death: bool = True
    """Agents that die before their episode ends."""
    roles: bool = True
    """Several roles with different spaces in one team."""
    team: bool = True
    """More than one agent."""
    images: bool = False
    """Observations other than one vector."""
    learns: bool = True
    """It improves its policy."""
    streams: bool = False
    """It has a value for each reward signal, and is constructed with `streams`; others learn from their sum."""
    eval_mode: Mode = "sample"
    """How its policies are evaluated where nobody says otherwise: as the method was published."""

    def require(self, name: str, team: TeamSpec, setting: str = "algo") -> None:
        """UserError if the team has what the algorithm `name` does not support; setting: the key that chooses it."""
        other = f"choose another algorithm, {setting}=NAME (coterie list algos)"
        for role in team.roles:
            kind = role.action.kind
            if kind not in self.actions:
                raise UserError(
                    f"algo={name} does not support the {kind} actions of role '{role.name}' ({role.action_space}); "
                    f"it takes {', '.join(sorted(self.actions))}: {other}"
                )
            seen = layout(role.observation_space)
            if seen is None:
                raise UserError(
                    f"role '{role.name}' observes {role.observation_space}, which no network reads: expected a Box of "
                    "one axis, a Box [height, width, channels], or a Dict of these"
                )
            if not self.images and (len(seen) != 1 or not isinstance(seen[0], int)):
                raise UserError(
                    f"algo={name} reads vectors, and role '{role.name}' observes {role.observation_space}: "
                    f"flatten the observation to one axis, or {other}"
                )
        if not self.roles and len(team.roles) > 1:
            raise UserError(
                f"algo={name} trains one role, and team '{team.name}' has {len(team.roles)}: split the team, or {other}"
            )
        if not self.team and team.n > 1:
            raise UserError(
                f"algo={name} trains a single agent, and team '{team.name}' has {team.n}: use one "
                f"of several, {setting}=ippo or {setting}=mappo"
            )
        if not self.death and team.mortal:
            raise UserError(
                f"algo={name} does not support agents that die, and those of team '{team.name}' can: {other}"
            )


def require_alike(team: TeamSpec, share: Share) -> None:
    """UserError if all agents are to share parameters and their roles' spaces differ."""
    if share == "all" and not alike(team.roles):
        raise UserError(
            f"algo.share=all needs roles with equal spaces, and those of team '{team.name}' differ: use share=role"
        )


class Algorithm(ABC):
    """Owns a policy and improves it. Constructed as `cls(team, config, copies, horizon, seed, device)`."""

    Config: ClassVar[type[BaseModel]]
    capabilities: ClassVar[Capabilities]

    policy: Policy
    horizon: int
    """Rows of the windows that `update` wants."""
    notes: tuple[str, ...] = ()
    """Lines for the user at the start, such as the size of a replay memory."""

    @abstractmethod
    def __init__(
        self, team: TeamSpec, config: Any, copies: int, horizon: int | None, seed: int, device: torch.device
    ) -> None:
        """For `copies` copies; `horizon` None takes the configuration's; `seed` is the team's own."""

    @abstractmethod
    def update(self, window: Window, progress: float) -> dict[str, float]:
        """Improves the policy with one window and returns its metrics; progress: share of the run done, in [0, 1]."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that going on needs, the policy under `policy`."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where `state_dict` was called."""


class Judging(ABC):
    """An algorithm whose critic says, before anybody acts, what is to come after a row."""

    @abstractmethod
    def start_judging(self, copies: int) -> Carry:
        """The critic's memory before the first row; {} without memory."""

    @abstractmethod
    def judge(self, row: Row, carry: Carry) -> tuple[Tensor, Carry]:
        """The environment's reward that every agent of the team's row is still to earn, discounted [B, N], and the
        critic's memory after the row.
        """

    @abstractmethod
    def load_critic(self, state: dict[str, Any]) -> None:
        """Takes from what the algorithm's `state_dict` gave all that judging needs besides the policy."""
