"""Board games in which two players alternate and the first to complete a line wins, and a scripted player of them.

Squares are numbered row by row from the bottom left: row * columns + column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
from gymnasium import spaces
from PIL import Image, ImageDraw
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.config.schema import Choice
from coterie.core.device_constants import DeviceConstant
from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.drawing import GRID, INK, MIN_SIZE_WITH_TEXT, PALETTE, PAPER, WHITE, Color, layout_header, mix
from coterie.envs.worlds.world import Observation, Outcome, State, World

Look = Literal["holes", "marks"]

_BOARD: Color = PALETTE["blue"]
_STONES: tuple[Color, Color] = (PALETTE["red"], PALETTE["yellow"])
_MARKS: tuple[Color, Color] = (PALETTE["blue"], PALETTE["red"])
_SMOOTH = 3  # supersampling factor


def draw(
    title: str,
    look: Look,
    owner: Sequence[Sequence[float]],
    line: Sequence[Sequence[float]],
    last: tuple[int, int] | None,
    score: dict[str, float],
    size: int = 480,
) -> np.ndarray:
    """Draws a board as uint8 [size, size, 3]. Images under 120 pixels have no text.

    Args:
        owner: Stones by row from the bottom: 1 for the first player, -1 for the second, 0 for empty.
        line: 1 on the squares of the winning line.
        last: Row and column of the last move.
    """
    header = layout_header(title, score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    rows, columns, k = len(owner), len(owner[0]), _SMOOTH
    image = Image.new("RGB", (size * k, size * k), PAPER)
    brush = ImageDraw.Draw(image)
    pad = 0.03 * size
    cell = min((size - 2 * pad) / columns, (size - top - 2 * pad) / rows)
    left, upper = (size - cell * columns) / 2, top + (size - top - cell * rows) / 2
    frame = (left * k, upper * k, (left + cell * columns) * k, (upper + cell * rows) * k)
    brush.rounded_rectangle(frame, 0.15 * cell * k, fill=_BOARD if look == "holes" else WHITE, outline=GRID, width=k)
    for r in range(rows):
        for c in range(columns):
            x, y = (left + cell * (c + 0.5)) * k, (upper + cell * (rows - r - 0.5)) * k
            place = (x, y, 0.4 * cell * k)
            side = None if owner[r][c] == 0 else int(owner[r][c] < 0)
            (_hole if look == "holes" else _mark)(brush, place, side, line[r][c] > 0, last == (r, c))
    image = image.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


def _hole(
    brush: ImageDraw.ImageDraw, place: tuple[float, float, float], side: int | None, won: bool, last: bool
) -> None:
    x, y, r = place
    fill = mix(_BOARD, WHITE, 0.85) if side is None else _STONES[side]
    rim = WHITE if won else mix(fill, INK, 0.35) if side is not None else mix(_BOARD, INK, 0.25)
    brush.ellipse((x - r, y - r, x + r, y + r), fill=fill, outline=rim, width=round(r * (0.22 if won else 0.1)))
    if last and side is not None:
        d = 0.25 * r
        brush.ellipse((x - d, y - d, x + d, y + d), fill=mix(fill, INK, 0.5))


def _mark(
    brush: ImageDraw.ImageDraw, place: tuple[float, float, float], side: int | None, won: bool, last: bool
) -> None:
    x, y, r = place
    edge, width = 1.25 * r, max(1, round(0.2 * r))
    fill = mix(PALETTE["green"], WHITE, 0.6) if won else mix(PALETTE["orange"], WHITE, 0.75) if last else None
    brush.rectangle((x - edge, y - edge, x + edge, y + edge), fill=fill, outline=GRID, width=max(1, width // 3))
    if side is None:
        return
    r = 0.75 * r
    if side == 0:
        brush.line((x - r, y - r, x + r, y + r), fill=_MARKS[0], width=width)
        brush.line((x - r, y + r, x + r, y - r), fill=_MARKS[0], width=width)
    else:
        brush.ellipse((x - r, y - r, x + r, y + r), outline=_MARKS[1], width=width)


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


def winners_or_blockers(team: TeamSpec, env: Choice) -> Callable[[Timestep], dict[str, Action]]:
    """Returns a scripted policy for one or both sides of a line game, see `win_or_block`."""
    config: Any = env.params
    rules = Rules(config, env.name == "board/connect_four")

    def act(timestep: Timestep) -> dict[str, Action]:
        chosen = {}
        for role in team.roles:
            obs, mask = timestep.obs[role.name][:, 0], timestep.action_mask[role.name][:, 0]
            move = win_or_block(rules, obs[:, : rules.squares], obs[:, rules.squares : -1], mask)
            chosen[role.name] = Action(move.view(-1, 1, 1))
        return chosen

    return act


def win_or_block(rules: Rules, own: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """Returns the move [B] for a player with stones `own` against `other` (both [B, C]).

    The first available of: a winning move; a move that blocks the opponent's win; a move that does not allow the
    opponent to win on top of it. Ties are broken by the number of lines through the square.

    Args:
        mask: Legal actions [B, moves + 1].
    """
    free = mask[:, :-1]
    taken = own + other
    square = rules.squares_of(taken)
    stone = one_hot(square, rules.squares).to(own)  # [B, moves, C]
    wins, blocks = (rules.won(stones.unsqueeze(1) + stone) for stones in (own, other))
    score = rules.lines.on(own.device).to(own.dtype).sum(1)[square] + 1e4 * blocks + 1e6 * wins
    if rules.falls:
        above = square + rules.columns
        inside = above < rules.squares
        next_stone = one_hot(above.clamp(max=rules.squares - 1), rules.squares).to(own)
        score = score - 1e3 * (rules.won(other.unsqueeze(1) + next_stone) & inside)
    best = score.masked_fill(~free, -1e9).argmax(1)
    return torch.where(free.any(1), best, rules.moves)
