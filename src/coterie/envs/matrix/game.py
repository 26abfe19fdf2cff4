"""What the matrix games share: tables of payoffs, who is paid, what is seen, known returns, and the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.envs.pictures import Board, Cell, Line, draw_board
from coterie.envs.world import Outcome, State, View, World
from coterie.types import Action, EnvSpec, RoleSpec

MOST_CELLS = 1_000_000
"""Joint actions that a table may have."""

Mixed = tuple[tuple[float, ...], ...]
"""A strategy of every player: probabilities of its choices."""


class MatrixConfig(BaseModel):
    """What all matrix games can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    episode_limit: int = Field(25, ge=1)
    """Rounds of an episode."""
    limit_ends: bool | None = None
    """The last round ends the task (terminated) and is no cut (truncated); None: where an episode is one round."""
    last_action: bool = False
    """Players see what all of them chose in the round before; zeros in the first."""


@dataclass(frozen=True)
class Game:
    """Tables of one or several stages, for N players with the same A choices each; J = A^N joint actions in order.

    name: the world's; choices: their names; players: N; payoff: [stages, J, P], P = 1 for a payoff that all share, else
    N; onward: [stages, J] int64, the stage that follows; tally: [stages, J], what a round adds to the metric; metric:
    its name; stages: their names in pictures; limit: rounds of an episode; ends: the last one terminates it.
    """

    name: str
    choices: tuple[str, ...]
    players: int
    payoff: Tensor
    onward: Tensor
    tally: Tensor
    metric: str
    limit: int
    ends: bool
    last_action: bool
    stages: tuple[str, ...] = ("",)

    @property
    def shared(self) -> bool:
        """One payoff for all."""
        return self.payoff.shape[-1] == 1

    @property
    def equal_sides(self) -> bool:
        """Two players could change places: each is paid what the other would be, and none sees who is who."""
        if self.players != 2 or self.shared or self.last_action or len(self.stages) > 1:
            return False
        row, column = self.payoff.view(len(self.choices), len(self.choices), 2).unbind(-1)
        return torch.equal(row, column.T)


class MatrixWorld(World):
    """Rounds of a game in which all players choose at once. A final class says what is played."""

    restart_noise = 0

    def __init__(self, game: Game, with_state: bool):
        self.game, self.limit_ends = game, game.ends
        self._actions = len(game.choices)
        self._with_state = with_state
        size = len(game.stages) + (game.players * self._actions if game.last_action else 0)
        seen, space = spaces.Box(0.0, 1.0, (size,)), spaces.Discrete(self._actions)
        called = (tuple(game.choices),)
        if game.shared:
            names = tuple(f"agent_{i}" for i in range(game.players))
            roles = (RoleSpec("agent", "agent", names, seen, space, called),)
        else:
            roles = tuple(RoleSpec(name, name, (name,), seen, space, called) for name in ("row", "column"))
        self.spec = EnvSpec(
            name=f"matrix/{game.name}",
            roles=roles,
            state_sizes={"global": size} if with_state else {},
            paid_by_group=game.shared,
            metrics=(game.metric,),
            episode_limit=game.limit,
            equal_sides=game.equal_sides,
        )
        self._tables: dict[torch.device, dict[str, Tensor]] = {}

    # ----------------------------------------------------------------------------------------------------- contract

    def restart(self, noise: Tensor) -> State:
        copies, device = len(noise), noise.device
        stage = torch.zeros(copies, dtype=torch.int64, device=device)
        return {
            "stage": stage,
            "played": stage - 1,  # the stage of the round before, -1 for none
            "last": torch.zeros(copies, self.game.players, dtype=torch.int64, device=device),
            "tally": torch.zeros(copies, device=device),
            "earned": torch.zeros(copies, self.game.payoff.shape[-1], device=device),
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        taken = [action[role.name].discrete for role in self.spec.roles]
        choice = torch.cat([each[..., 0] for each in taken if each is not None], dim=1)
        tables, stage = self._on(choice.device), state["stage"]
        joint = (choice * tables["stride"]).sum(1)
        paid = tables["payoff"][stage, joint]
        tally = state["tally"] + tables["tally"][stage, joint]
        after = {
            "stage": tables["onward"][stage, joint],
            "played": stage,
            "last": choice,
            "tally": tally,
            "earned": state["earned"] + paid,
        }
        nothing = torch.zeros(choice.shape, device=choice.device)
        return after, Outcome(
            reward=nothing if self.game.shared else paid,
            group_reward=paid if self.game.shared else None,
            metrics=lambda: {self.game.metric: tally},
        )

    def view(self, state: State) -> View:
        seen = one_hot(state["stage"], len(self.game.stages)).float()
        if self.game.last_action:
            before = one_hot(state["last"], self._actions).float() * (state["played"] >= 0)[:, None, None]
            seen = torch.cat((seen, before.flatten(1)), dim=1)
        obs = {role.name: seen[:, None].expand(-1, role.n, -1).contiguous() for role in self.spec.roles}
        return View(obs, state={"global": seen} if self._with_state else {})

    def _on(self, device: torch.device) -> dict[str, Tensor]:
        """The tables on a device."""
        if device not in self._tables:
            stride = torch.tensor([self._actions**i for i in reversed(range(self.game.players))])
            named = {"payoff": self.game.payoff, "onward": self.game.onward, "tally": self.game.tally, "stride": stride}
            self._tables[device] = {name: table.to(device) for name, table in named.items()}
        return self._tables[device]

    # -------------------------------------------------------------------------------------------------- what is known

    def table(self, stage: int = 0) -> Tensor:
        """The payoffs of a stage: [A, ..., A] where one is paid to all, else [A, ..., A, N], the players' own."""
        form = [self._actions] * self.game.players
        payoff = self.game.payoff[stage]
        return payoff.view(form) if self.game.shared else payoff.view(*form, self.game.players)

    def _mean_return(self) -> list[float]:
        """What uniform random play earns in an episode on average, payoff by payoff; exact."""
        payoff = self.game.payoff.double()
        value = payoff.new_zeros(len(payoff), payoff.shape[-1])
        for _ in range(self.game.limit):
            value = (payoff + value[self.game.onward]).mean(1)
        return value[0].tolist()

    # ------------------------------------------------------------------------------------------------------- pictures

    def render(self, state: State, size: int) -> np.ndarray:
        return draw_board(self.board(state), size)

    def board(self, state: State) -> Board:
        """The table of the stage with the round just played, or each player's choices where there are more than two."""
        stage, played = int(state["stage"][0]), int(state["played"][0])
        last = tuple(state["last"][0].tolist()) if played == stage else None
        lines = self._grid(stage, last) if self.game.players == 2 else self._choices(last)
        names = [f"return of {role.name}" for role in self.spec.roles] if len(self.spec.roles) > 1 else ["return"]
        return Board(
            title=self.game.name,
            lines=lines,
            columns=self.game.choices if self.game.players == 2 else (),
            below=(self.game.stages[stage],) if self.game.stages[stage] else (),
            score=dict(zip(names, state["earned"][0].tolist(), strict=True)),
        )

    def _grid(self, stage: int, last: tuple[int, ...] | None) -> tuple[Line, ...]:
        table = self.game.payoff[stage].view(self._actions, self._actions, -1)
        best = float(self.game.payoff.sum(-1).max())
        lines = []
        for i, name in enumerate(self.game.choices):
            cells = []
            for j in range(self._actions):
                paid = table[i, j].tolist()
                # With opponents there is nothing that is best for all, unless the table is the same to both.
                good = self.game.shared and sum(paid) == best
                onward = self.game.stages[int(self.game.onward[stage, i * self._actions + j])]
                said = ", ".join(f"{x:g}" for x in paid)
                cells.append(Cell(said if onward == self.game.stages[stage] else onward, good, last == (i, j)))
            lines.append(Line(name, tuple(cells)))
        return tuple(lines)

    def _choices(self, last: tuple[int, ...] | None) -> tuple[Line, ...]:
        agents = self.spec.agents
        return tuple(
            Line(
                agent, tuple(Cell(name, chosen=bool(last) and last[i] == j) for j, name in enumerate(self.game.choices))
            )
            for i, agent in enumerate(agents)
        )


class Cooperative(MatrixWorld):
    """A game whose payoff all share: it is paid once, as group reward, and agents' own rewards are zero. So a team's
    return is the sum of the payoffs, where code that gives the payoff to each agent reports N times as much.
    """

    def best_return(self) -> float:
        """The most that an episode can bring the team; exact."""
        payoff = self.game.payoff[..., 0].double()
        value = payoff.new_zeros(len(payoff))
        for _ in range(self.game.limit):
            value = (payoff + value[self.game.onward]).amax(1)
        return float(value[0])

    def random_return(self) -> float:
        """The mean return of uniform random play; exact."""
        return self._mean_return()[0]


class Bimatrix(MatrixWorld):
    """A game of two players, `row` and `column`, a group each with payoffs of its own."""

    equilibria: tuple[Mixed, ...]
    """Pairs of strategies from which neither gains by deviating (Nash equilibria of one round)."""

    def random_returns(self) -> dict[str, float]:
        """The mean return of uniform random play, by group; exact."""
        return dict(zip(self.spec.groups, self._mean_return(), strict=True))

    def equilibrium_returns(self, which: int = 0) -> dict[str, float]:
        """The mean return of an equilibrium played in every round, by group; exact."""
        row, column = (torch.tensor(p, dtype=torch.float64) for p in self.equilibria[which])
        paid = torch.einsum("i,ijp,j->p", row, self.table().double(), column) * self.game.limit
        return dict(zip(self.spec.groups, paid.tolist(), strict=True))


def cooperative_game(name: str, table: Any, choices: tuple[str, ...], config: MatrixConfig) -> Game:
    """One table [A, ..., A] whose payoff all share. Metric `optimal`: the share of rounds with the best payoff."""
    payoff = torch.as_tensor(table, dtype=torch.float32)
    flat = payoff.reshape(1, -1)
    return Game(
        name=name,
        choices=choices,
        players=payoff.ndim,
        payoff=flat[..., None].contiguous(),
        onward=torch.zeros(flat.shape, dtype=torch.int64),
        tally=(flat == flat.max()).float() / config.episode_limit,
        metric="optimal",
        limit=config.episode_limit,
        ends=_ends(config),
        last_action=config.last_action,
    )


def bimatrix_game(name: str, row: Any, column: Any, choices: tuple[str, ...], config: MatrixConfig) -> Game:
    """Two tables [A, A], the players' payoffs for (row's choice, column's choice).

    The metric `first_choice` is the share of first choices among all that both made.
    """
    tables = [torch.as_tensor(table, dtype=torch.float32) for table in (row, column)]
    payoff = torch.stack(tables, dim=-1)
    first = torch.zeros(payoff.shape[:2])
    first[0] += 0.5
    first[:, 0] += 0.5
    return Game(
        name=name,
        choices=choices,
        players=2,
        payoff=payoff.reshape(1, -1, 2),
        onward=torch.zeros(1, first.numel(), dtype=torch.int64),
        tally=first.reshape(1, -1) / config.episode_limit,
        metric="first_choice",
        limit=config.episode_limit,
        ends=_ends(config),
        last_action=config.last_action,
    )


def _ends(config: MatrixConfig) -> bool:
    return config.episode_limit == 1 if config.limit_ends is None else config.limit_ends


def check_size(players: int, actions: int) -> None:
    """ValueError where the table would be too large."""
    if players * math.log(actions) > math.log(MOST_CELLS) + 1e-9:  # logarithms, as the power may be huge
        raise ValueError(
            f"agents={players} with actions={actions} have {actions}^{players} joint actions: "
            f"expected at most {MOST_CELLS:,}; take fewer of either"
        )
