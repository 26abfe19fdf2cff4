"""What the probes share: one role, a few steps, what is known exactly of each, and the picture."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from coterie.envs.pictures import Board, Cell, Line, draw_board
from coterie.envs.world import Outcome, State, View, World
from coterie.types import Action, EnvSpec, RoleSpec, to_bounds

_ROLE = "agent"


class ProbeConfig(BaseModel):
    """What all probes can be told: nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class BlindConfig(ProbeConfig):
    """Of probes that are about what is seen."""

    blind: bool = False
    """The negative control: observations are zeros."""


@dataclass(frozen=True)
class Taken:
    """What the agents did: choice [B, N, K] int64, number [B, N, C] within the bounds of the space."""

    choice: Tensor
    number: Tensor


@dataclass(frozen=True)
class Pay:
    """What a step earned. own: [B, N], None for zeros; group: [B], None for zeros; changed: entries of the state with
    their new values; gone: [B, N] bool, whose life is over.
    """

    own: Tensor | None = None
    group: Tensor | None = None
    changed: dict[str, Tensor] = field(default_factory=dict)
    gone: Tensor | None = None


@dataclass(frozen=True)
class Known:
    """What is known of a probe.

    claim: what an agent must be able to do; control: what fails here, and how it shows; best, random: the team's mean
    return under best play, and under uniform random play among what can be done, both exact; without: what the negative
    control earns on average, None where it shows in values and not in returns.
    """

    claim: str
    control: str
    best: float
    random: float
    without: float | None = None


@dataclass(frozen=True)
class Plan:
    """How a probe is made.

    name: the world's; observation, action: spaces of an agent; agents: N; length: steps of an episode; cut: the end is
    a limit and not the task's; grouped: the group is paid; mortal: agents end before the episode; restart_noise,
    step_noise: as a World's; metrics: names of entries of the state that are reported at the end;
    mask: of a state, the choices that can be made, [B, 1 or N, sum A] bool; alive: of a state, who is there, [B, N].
    """

    name: str
    known: Known
    observation: spaces.Box
    action: spaces.Space
    agents: int = 1
    length: int = 1
    cut: bool = False
    grouped: bool = False
    mortal: bool = False
    restart_noise: int = 0
    step_noise: int = 0
    metrics: tuple[str, ...] = ()
    mask: Callable[[State], Tensor] | None = None
    alive: Callable[[State], Tensor] | None = None


class ProbeWorld(World):
    """A tiny world with known answers; a final class says what is seen and paid."""

    def __init__(self, plan: Plan, with_state: bool):
        self.plan = plan
        self.restart_noise, self.step_noise = plan.restart_noise, plan.step_noise
        self._with_state = with_state
        names = tuple(f"agent_{i}" for i in range(plan.agents))
        role = RoleSpec(_ROLE, _ROLE, names, plan.observation, plan.action)
        size = plan.agents * int(np.prod(plan.observation.shape))
        self.spec = EnvSpec(
            name=f"probe/{plan.name}",
            roles=(role,),
            state_sizes={"global": size} if with_state else {},
            mortal=plan.mortal,
            paid_by_group=plan.grouped,
            metrics=plan.metrics,
            episode_limit=plan.length if plan.cut else None,
        )
        self._action = role.action

    # -------------------------------------------------------------------------------------------------- for the probes

    @abstractmethod
    def begin(self, noise: Tensor) -> State:
        """Entries of the state of new episodes beside the clock `age`, from noise [B, restart_noise]."""

    @abstractmethod
    def pay(self, state: State, taken: Taken, noise: Tensor) -> Pay:
        """What doing this in `state` earns. noise: [B, step_noise]."""

    @abstractmethod
    def see(self, state: State) -> Tensor:
        """Observations: [B, 1 or N, ...]."""

    @abstractmethod
    def best(self, state: State) -> Taken:
        """The best there is to do, by who knows the whole state."""

    @abstractmethod
    def best_value(self, state: State, gamma: float) -> Tensor:
        """[B]: the team's discounted return from here on under best play, as expected by who sees what agents see (and
        remembers it); of rows that are acted on.
        """

    # --------------------------------------------------------------------------------------------------- what is known

    @property
    def known(self) -> Known:
        """What is known of this probe with these settings."""
        return self.plan.known

    def best_return(self) -> float:
        """The team's mean return under best play; exact."""
        return self.known.best

    def random_return(self) -> float:
        """The team's mean return under uniform random play; exact."""
        return self.known.random

    # -------------------------------------------------------------------------------------------------------- contract

    def restart(self, noise: Tensor) -> State:
        copies, device = len(noise), noise.device
        size = len(self._action.choices) + self._action.continuous
        return {
            "age": torch.zeros(copies, dtype=torch.int64, device=device),
            "last": torch.zeros(copies, self.plan.agents, size, device=device),
            "earned": torch.zeros(copies, device=device),
            **self.begin(noise),
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        taken = self._taken(action[_ROLE], state)
        drawn = state["earned"].new_zeros(len(state["age"]), 0) if noise is None else noise
        pay = self.pay(state, taken, drawn)
        own = taken.number.new_zeros(taken.choice.shape[:2]) if pay.own is None else pay.own
        paid = own.sum(1) if pay.group is None else own.sum(1) + pay.group
        age = state["age"] + 1
        after = {
            **state,
            "age": age,
            "last": torch.cat((taken.choice.float(), taken.number), dim=-1),
            "earned": state["earned"] + paid,
            **pay.changed,
        }
        return after, Outcome(
            reward=own,
            group_reward=None if pay.group is None else pay.group[:, None],
            ended=None if self.plan.cut else age >= self.plan.length,
            agent_ended=pay.gone,
            metrics=lambda: {name: after[name] for name in self.plan.metrics},
        )

    def view(self, state: State) -> View:
        seen, mask, alive = self.see(state), self._mask(state), self._alive(state)
        n, copies = self.plan.agents, len(state["age"])
        seen = seen.expand(copies, n, *seen.shape[2:]).contiguous()
        if alive is not None:
            seen = seen * alive.view(copies, n, *[1] * (seen.ndim - 2))
            mask = None if mask is None else mask | ~alive[..., None]
        known = {}
        if self._with_state:
            numbers = seen.float() / 255 if seen.dtype == torch.uint8 else seen
            known["global"] = numbers.flatten(1)
        masks = {} if mask is None else {_ROLE: mask.expand(copies, n, -1).contiguous()}
        return View({_ROLE: seen}, masks, known, alive)

    def _mask(self, state: State) -> Tensor | None:
        return None if self.plan.mask is None else self.plan.mask(state)

    def _alive(self, state: State) -> Tensor | None:
        return None if self.plan.alive is None else self.plan.alive(state)

    def _taken(self, action: Action, state: State) -> Taken:
        copies, device = len(state["age"]), state["age"].device
        choice, number = action.discrete, action.continuous
        if choice is None:
            choice = torch.zeros(copies, self.plan.agents, 0, dtype=torch.int64, device=device)
        number = choice.new_zeros(*choice.shape[:2], 0).float() if number is None else to_bounds(number, self._action)
        return Taken(choice, number)

    def action_of(self, taken: Taken) -> dict[str, Action]:
        """What was done as the environment takes it: numbers in [-1, 1]."""
        low, high = (torch.tensor(bound, device=taken.number.device) for bound in (self._action.low, self._action.high))
        inner = 2 * (taken.number - low) / (high - low) - 1 if self._action.continuous else None
        return {_ROLE: Action(taken.choice if self._action.choices else None, inner)}

    # -------------------------------------------------------------------------------------------------------- pictures

    def render(self, state: State, size: int) -> np.ndarray:
        return draw_board(self.board(state), size)

    def board(self, state: State) -> Board:
        """A line an agent: its choices with the best in green and the last one marked, its numbers and the best."""
        acted, best = int(state["age"][0]) > 0, self.best(state)
        mask, alive, lines = self._mask(state), self._alive(state), []
        for i, name in enumerate(self.spec.agents):
            last, at, cells = state["last"][0, i].tolist(), 0, []
            for k, count in enumerate(self._action.choices):
                good = int(best.choice[0, i, k])
                for a in range(count):
                    barred = mask is not None and not bool(mask.expand(1, self.plan.agents, -1)[0, i, at + a])
                    cells.append(Cell(str(a), a == good, acted and last[k] == a, barred, gap=a == 0 and k > 0))
                at += count
            for c in range(self._action.continuous):
                done, good = last[len(self._action.choices) + c], float(best.number[0, i, c])
                hit = acted and abs(done - good) < 0.05
                cells.append(
                    Cell(f"{done:.2f} ({good:.2f})" if acted else f"({good:.2f})", hit, acted, gap=bool(cells))
                )
            here = alive is None or bool(alive[0, i])
            lines.append(Line(name if here else f"{name} is gone", tuple(cells)))
        score = {"step": float(state["age"][0]), "return": float(state["earned"][0])}
        seen = self.see(state)[0]
        if seen.ndim == 4:
            return Board(self.plan.name, tuple(lines), score=score, inset=seen[0].numpy())
        told = "sees " + "; ".join(_numbers(row) for row in dict.fromkeys(tuple(row) for row in seen.tolist()))
        return Board(self.plan.name, tuple(lines), below=(told,), score=score)


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.3g}" for value in values)


def line_of(size: int, low: float = 0.0, high: float = 1.0) -> spaces.Box:
    """The space of `size` features."""
    return spaces.Box(low, high, (size,))


def sign(noise: Tensor) -> Tensor:
    """-1 or 1, as likely: of noise [B] the signs [B]."""
    return torch.where(noise < 0.5, -1.0, 1.0)


def label(noise: Tensor, count: int | Tensor) -> Tensor:
    """0 .. count - 1, as likely: of noise [..] the labels [..], int64."""
    return (noise * count).long().clamp(max=count - 1)


def chosen(choice: Tensor) -> Taken:
    """The action of making these choices: [B, N] or [B, N, K]."""
    choice = choice if choice.ndim == 3 else choice[..., None]
    return Taken(choice, choice.new_zeros(*choice.shape[:2], 0).float())


def numbered(number: Tensor) -> Taken:
    """The action of these numbers: [B, N, C]."""
    return Taken(number.new_zeros(*number.shape[:2], 0).long(), number)


def constant(state: State, value: Any) -> Tensor:
    """[B] of one value."""
    return torch.full_like(state["earned"], float(value))
