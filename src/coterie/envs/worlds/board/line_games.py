"""Board games in which two players alternate and the first to complete a line wins.

Squares are numbered row by row from the bottom left: row * columns + column.
"""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.device_constants import DeviceConstant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.board.render import Look, draw
from coterie.envs.worlds.world import Observation, Outcome, State, World


class LineConfig(BaseModel):
    """Settings shared by all line games."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rows: int = Field(6, ge=1, le=32)
    """Number of rows of the board."""
    columns: int = Field(7, ge=1, le=32)
    """Number of columns of the board."""
    connect: int = Field(4, ge=2, le=32)
    """Number of stones in a row, column or diagonal that wins."""
    first: Literal["either", "always"] = "either"
    """Player that moves first: `either` chooses at random in every episode, `always` is the first player (red or
    cross).
    """


class Rules:
    """Squares and lines of a board.

    Stones fall to the lowest free square of a column, or stay where they are placed.

    Attributes:
        moves: Number of moves, not counting the wait action.
    """

    def __init__(self, config: LineConfig, falls: bool):
        self.rows, self.columns, self.connect, self.falls = config.rows, config.columns, config.connect, falls
        self.squares = self.rows * self.columns
        self.moves = self.columns if falls else self.squares
        self.lines = DeviceConstant(torch.tensor(self._lines()))
        """[C, L], 1 where the square is part of the line."""

    def _lines(self) -> list[list[float]]:
        rows, columns, steps = range(self.rows), range(self.columns), range(self.connect)
        found = []
        for r, c in ((r, c) for r in rows for c in columns):
            for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(r + up * k, c + right * k) for k in steps]
                if all(y in rows and x in columns for y, x in line):
                    found.append({y * self.columns + x for y, x in line})
        if not found:
            raise ValueError(
                f"connect={self.connect} on a {self.rows} x {self.columns} board: no such line fits. "
                "Lower connect or enlarge the board."
            )
        return [[float(square in line) for line in found] for square in range(self.squares)]

    def open(self, taken: Tensor) -> Tensor:
        """Legal moves [B, moves] bool for boards with occupied squares `taken` [B, C] (0 or 1)."""
        return taken[:, -self.columns :] == 0 if self.falls else taken == 0

    def squares_of(self, taken: Tensor) -> Tensor:
        """Square [B, moves] int64 on which the stone of each move lands; arbitrary for illegal moves."""
        move = torch.arange(self.moves, device=taken.device).expand(len(taken), -1)
        if not self.falls:
            return move
        height = taken.view(-1, self.rows, self.columns).sum(1).long().clamp(max=self.rows - 1)
        return height * self.columns + move

    def won(self, stones: Tensor) -> Tensor:
        """True where a line is complete [..], for stones [.., C] (0 or 1)."""
        return (stones @ self.lines.on(stones.device).to(stones.dtype) >= self.connect).any(-1)


class LineGame(World):
    """Abstract line game; a final class defines the board, gravity and the names of the players.

    The winner receives +1 and the loser -1; a full board ends the game as a draw. The observation holds the player's
    own stones, the opponent's stones, and whether it is the player's turn. The last action is to wait, the only legal
    one for the waiting player. Metrics: `NAME_won` for both players.
    """

    def __init__(
        self, name: str, sides: tuple[str, str], rules: Rules, look: Look, config: LineConfig, with_state: bool
    ):
        self.rules, self._sides, self._name = rules, sides, name
        self._look: Look = look
        self._with_state, self._by_lot = with_state, config.first == "either"
        self.reset_noise_size = int(self._by_lot)
        size, moves = 2 * rules.squares + 1, [f"column {k + 1}" for k in range(rules.columns)]
        if not rules.falls:
            moves = [f"row {r + 1}, column {c + 1}" for r in range(rules.rows) for c in range(rules.columns)]
        seen, space = spaces.Box(0.0, 1.0, (size,), np.float32), spaces.Discrete(rules.moves + 1)
        called = ((*moves, "wait"),)
        self.spec = EnvSpec(
            name=f"board/{name}",
            roles=tuple(RoleSpec(side, side, (side,), seen, action_space=space, choice_names=called) for side in sides),
            state_sizes=dict.fromkeys(("global", *sides), size) if with_state else {},
            metrics=tuple(f"{side}_won" for side in sides),
            episode_limit=rules.squares,
            symmetric=self._by_lot,
        )

    def reset(self, noise: Tensor) -> State:
        num_envs, device = len(noise), noise.device
        turn = torch.zeros(num_envs, dtype=torch.int64, device=device)
        return {
            "stones": torch.zeros(num_envs, 2, self.rules.squares, device=device),
            "turn": (noise[:, 0] < 0.5).long() if self._by_lot else turn,
            "last": turn - 1,  # square of the last move, -1 for none
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        stones, turn, rules = state["stones"], state["turn"], self.rules
        taken = stones.sum(1)
        both = [action[side].discrete for side in self._sides]
        choice = torch.stack([each[:, 0, 0] for each in both if each is not None], 1)
        move = choice.gather(1, turn[:, None])
        column = move.clamp(max=rules.moves - 1)
        lays = rules.open(taken).gather(1, column) & (move < rules.moves)  # else the turn is forfeited
        square = rules.squares_of(taken).gather(1, column)
        mover = one_hot(turn, 2)
        stone = (one_hot(square[:, 0], rules.squares) * lays).unsqueeze(1) * mover.unsqueeze(-1)
        stones = stones + stone
        own = stones.gather(1, turn[:, None, None].expand(-1, 1, rules.squares)).squeeze(1)
        won = rules.won(own)
        by_side = won[:, None] * mover.to(stones.dtype)
        after = {"stones": stones, "turn": 1 - turn, "last": torch.where(lays, square, -1)[:, 0]}
        return after, Outcome(
            reward=by_side - by_side.flip(1),
            terminated=won | (stones.sum((1, 2)) >= rules.squares),
            metrics=lambda: {f"{side}_won": by_side[:, i] for i, side in enumerate(self._sides)},
        )

    def observe(self, state: State) -> Observation:
        stones, turn = state["stones"], state["turn"]
        free = self.rules.open(stones.sum(1))
        none = ~free.any(1, keepdim=True)
        obs, mask = {}, {}
        for i, side in enumerate(self._sides):
            mine = (turn == i).unsqueeze(1)
            seen = torch.cat((stones[:, i], stones[:, 1 - i], mine.to(stones.dtype)), 1)
            obs[side] = seen.unsqueeze(1)
            mask[side] = torch.cat((free & mine, none | ~mine), 1).unsqueeze(1)
        states = {side: seen.squeeze(1) for side, seen in obs.items()} if self._with_state else {}
        return Observation(obs, mask, {"global": states[self._sides[0]], **states} if states else {})

    def render(self, state: State, size: int) -> np.ndarray:
        stones = state["stones"][0]
        line = [self.rules.lines.tensor.T[int(full.byte().argmax())] for full in self._full(stones) if bool(full.any())]
        rows, columns = self.rules.rows, self.rules.columns
        owner = (stones[0] - stones[1]).view(rows, columns).tolist()
        shown = (line[0] if line else torch.zeros(self.rules.squares)).view(rows, columns).tolist()
        last = int(state["last"][0])
        score = {side: float(stones[i].sum()) for i, side in enumerate(self._sides)}
        square = divmod(last, columns) if last >= 0 else None
        return draw(self._name, self._look, owner, shown, last=square, score=score, size=size)

    def _full(self, stones: Tensor) -> Tensor:
        """[2, L] bool: lines completed by each side."""
        return stones @ self.rules.lines.on(stones.device).to(stones.dtype) >= self.rules.connect


class ConnectFourConfig(LineConfig):
    """Settings of board/connect_four."""


@final
class ConnectFour(LineGame):
    """Stones fall to the lowest free square of a column; four in a line win."""

    Config = ConnectFourConfig

    def __init__(self, config: ConnectFourConfig, with_state: bool = False):
        self.config = config
        sides = ("red", "yellow")
        super().__init__("connect_four", sides, Rules(config, True), "holes", config=config, with_state=with_state)


class TicTacToeConfig(LineConfig):
    """Settings of board/tictactoe."""

    rows: int = Field(3, ge=1, le=32)
    """Number of rows of the board."""
    columns: int = Field(3, ge=1, le=32)
    """Number of columns of the board."""
    connect: int = Field(3, ge=2, le=32)
    """Number of stones in a row, column or diagonal that wins."""


@final
class TicTacToe(LineGame):
    """Stones stay where they are placed; three in a line win. With rows=15, columns=15, connect=5 it is gomoku."""

    Config = TicTacToeConfig

    def __init__(self, config: TicTacToeConfig, with_state: bool = False):
        self.config = config
        sides = ("cross", "nought")
        super().__init__("tictactoe", sides, Rules(config, False), "marks", config=config, with_state=with_state)
