"""Interface of policies that can be trained by behavior cloning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.tree import Tree, register_pytree
from coterie.core.types import Action
from coterie.nets.normalization import ObservationNormalizer


@register_pytree
@dataclass(frozen=True)
class DemonstrationBatch:
    """M demonstrated sequences of L timesteps; L is 1 for feed-forward policies.

    Attributes:
        obs, action_mask, action: By role [L, M, n, ..].
        last_action: Actions at the timestep before the first, by role [M, n, ..]; undefined where an agent is new.
        valid: [L, M, N] bool, True where the action counts.
        first: [L, M, N] bool, True at the first timestep of an agent.
    """

    obs: dict[str, Tree]
    action_mask: dict[str, Tensor]
    action: dict[str, Action]
    last_action: dict[str, Action]
    valid: Tensor
    first: Tensor


@dataclass(frozen=True)
class CloningOptions:
    """Options of the loss: see the fields of `coterie.config.imitation.ImitationConfig`."""

    margin: float = 0.8
    fit_std: bool = False


class CloningPolicy(ABC):
    """A policy with a behavior-cloning loss, which the gradient of its networks minimizes."""

    team: TeamSpec
    device: torch.device
    obs_normalizer: ObservationNormalizer | None

    @abstractmethod
    def cloning_loss(self, batch: DemonstrationBatch, options: CloningOptions) -> tuple[Tensor, Tensor]:
        """Returns the loss, and True where the greedy action is the demonstrated one, [L, M, N] each.

        Hidden states are zero before the first timestep. Entries that are not valid are undefined.
        """
