"""Policies: what acts. Evaluation, opponents, play and export need nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coterie.math.exploration import drawn_from
from coterie.nets.memory import Carry
from coterie.types import Action, Row, TeamSpec, Tree, record

Mode = Literal["greedy", "sample", "explore"]


class Policy(ABC):
    """Acts for one team: pure in the row, the memory and the noise.

    networks: what `act` reads that learning changes, all of it parameters and buffers of these; () where nothing does.
    """

    team: TeamSpec
    networks: tuple[nn.Module, ...] = ()

    @abstractmethod
    def start(self, copies: int) -> Carry:
        """The memory before the first row, by name [B, N, H]; {} without memory."""

    @abstractmethod
    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        """Noise for `act` on each of `steps` rows of `copies` copies."""

    @abstractmethod
    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        """What the team does on a row of its own, its memory after it, and what it notes, by name [B, N]; under `label`
        as which of several it acts, if it is several.

        mode: greedy takes the most likely action and needs no noise; sample draws from the policy; explore draws as the
        algorithm does while it collects.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that acting needs."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""


@record
@dataclass(frozen=True)
class Thought:
    """What the agents of a role weigh up on a row; None for what they do not have.

    probability: [B, n, sum A], what each choice is drawn with, 0 where masked, and 1 in all for every component; of a
    stochastic policy also where the likeliest is taken; q: [B, n, sum A], what each choice is worth, masked ones too;
    mean: [B, n, C] in [-1, 1], the middle of the numbers; spread: [B, n, C], their standard deviation where they are
    normal around it.
    """

    probability: Tensor | None = None
    q: Tensor | None = None
    mean: Tensor | None = None
    spread: Tensor | None = None


class Inspectable(Policy):
    """A policy that can show what it is about to do."""

    @abstractmethod
    def inspect(self, row: Row, carry: Carry, mode: Mode) -> dict[str, Thought]:
        """What `act` with the same arguments draws from, by role."""


class RandomPolicy(Inspectable):
    """Draws uniformly: among the available choices, and from [-1, 1]."""

    def __init__(self, team: TeamSpec, device: torch.device):
        self.team, self.device = team, device

    def start(self, copies: int) -> Carry:
        return {}

    def noise(self, steps: int, copies: int, generator: torch.Generator) -> list[Tree]:
        drawn: dict[str, tuple[Tensor, ...]] = {}
        for role in self.team.roles:
            size = role.action.mask_size + role.action.continuous
            shape = (steps, copies, role.n, size)
            drawn[role.name] = torch.rand(shape, generator=generator, device=self.device).unbind(0)
        return [{name: rows[t] for name, rows in drawn.items()} for t in range(steps)]

    def act(
        self, row: Row, carry: Carry, noise: Tree, mode: Mode
    ) -> tuple[dict[str, Action], Carry, dict[str, Tensor]]:
        actions = {}
        for role in self.team.roles:
            spec, uniform = role.action, noise[role.name]
            mask = row.action_mask.get(role.name)
            picks = []
            if spec.choices:
                score = uniform[..., : spec.mask_size]
                score = score if mask is None else torch.where(mask, score, -1.0)
                picks = [part.argmax(-1, keepdim=True) for part in score.split(spec.choices, -1)]
            actions[role.name] = Action(
                torch.cat(picks, -1) if picks else None,
                uniform[..., spec.mask_size :] * 2 - 1 if spec.continuous else None,
            )
        return actions, carry, {}

    def inspect(self, row: Row, carry: Carry, mode: Mode) -> dict[str, Thought]:
        thoughts = {}
        for role in self.team.roles:
            spec, mask = role.action, row.action_mask.get(role.name)
            shape = (len(row.acted), role.n)
            even = torch.zeros(*shape, spec.mask_size, device=self.device)
            thoughts[role.name] = Thought(
                drawn_from(even, spec.choices, mask) if spec.choices else None,
                mean=torch.zeros(*shape, spec.continuous, device=self.device) if spec.continuous else None,
            )
        return thoughts

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
