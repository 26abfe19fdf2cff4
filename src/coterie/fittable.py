"""Policies that can be fitted to what others did."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.nets.scaling import ObservationScale
from coterie.types import Action, TeamSpec, Tree, record


@record
@dataclass(frozen=True)
class Demonstrated:
    """Sequences of L rows that others acted on, M side by side; one row each for a policy without memory.

    obs, action_mask, action: by role [L, M, n, ..]; before: what was done in the row before the first [M, n, ..], of no
    meaning where a life begins; live: [L, M, N] bool, whose action counts; first: [L, M, N] bool, a life begins.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    action: dict[str, Action]
    before: dict[str, Action]
    live: Tensor
    first: Tensor


@dataclass(frozen=True)
class Manner:
    """What imitation means to a policy: see the fields of `coterie.imitation.config.ImitationConfig`."""

    margin: float = 0.8
    fit_spread: bool = False


class Fittable(ABC):
    """A policy that says how far it is from what was done. Its networks are what a learner steps."""

    team: TeamSpec
    device: torch.device
    scale: ObservationScale

    @abstractmethod
    def misfit(self, batch: Demonstrated, manner: Manner) -> tuple[Tensor, Tensor]:
        """A loss to be made smaller, and whether its likeliest action is the one that was done, [L, M, N] each.

        Memories are empty before the first row. What stands where an agent is not live has no meaning.
        """
