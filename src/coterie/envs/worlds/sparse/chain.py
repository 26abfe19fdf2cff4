"""Worlds on a chain of rooms: `rooms` for one agent, and `plates`, whose doors two agents have to open together.

Rooms of `size` x `size` squares are arranged in lines of `columns`, separated by walls one square thick. The first line
is traversed from left to right, the next one above it from right to left, and so on. Each room has one door to the
next, alternating between top and bottom (to the line above: between right and left), so the path winds. Squares, move
targets and shortest paths are lookup tables. Pictures are drawn with Pillow at any size.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from gymnasium import spaces
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.device_constants import DeviceConstant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.drawing import FLOOR, MIN_SIZE_WITH_TEXT, SPRITES, WALL, Color, Pen, layout_header
from coterie.envs.worlds.world import Observation, Outcome, State, World

MOVES: tuple[tuple[int, int], ...] = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Displacement (x, y) of actions 0 to 4: stay, left, right, down, up."""
NAMES = ("stay", "left", "right", "down", "up")


@dataclass(frozen=True)
class Chain:
    """Lookup tables of a chain of rooms. Square (x, y) has the index y * width + x, with y pointing up.

    Attributes:
        floor: [C] bool, True where there is no wall.
        neighbor: [C, 5] int64, target of each move; the square itself at a wall.
        doors: [rooms - 1] int64, square of each door.
        toward: [C, C] int64, first move of a shortest path from the first square to the second with all doors open.
        room: [C] int64, room of each square; a door belongs to the room before it.
        plates: [rooms - 1, 2] int64, two corners of every room but the last.
        goal: [] int64, corner of the last room farthest from its door.
    """

    rooms: int
    size: int
    columns: int
    floor: Tensor
    neighbor: Tensor
    doors: Tensor
    toward: Tensor
    room: Tensor
    plates: Tensor
    goal: Tensor

    @property
    def width(self) -> int:
        return min(self.rooms, self.columns) * (self.size + 1) - 1

    @property
    def height(self) -> int:
        return -(-self.rooms // self.columns) * (self.size + 1) - 1

    def square(self, room: int, x: int, y: int) -> int:
        """Square at (x, y) of a room."""
        left, low = corner(room, self.size, self.columns)
        return (low + y) * self.width + left + x


def corner(room: int, size: int, columns: int) -> tuple[int, int]:
    """(x, y) of the lower left square of a room."""
    line, along = divmod(room, columns)
    return (along if line % 2 == 0 else columns - 1 - along) * (size + 1), line * (size + 1)


def _door(room: int, size: int, columns: int) -> tuple[int, int]:
    """(x, y) of the door from a room to the next."""
    (left, low), (beyond, above) = corner(room, size, columns), corner(room + 1, size, columns)
    aside = size - 1 if room % 2 == 0 else 0
    if above > low:
        return left + aside, above - 1
    return (beyond - 1 if beyond > left else left - 1), low + aside


@functools.cache
def chain(rooms: int, size: int, columns: int, device: torch.device) -> Chain:
    """Builds the tables on a device."""
    width, height = min(rooms, columns) * (size + 1) - 1, -(-rooms // columns) * (size + 1) - 1
    squares = torch.arange(width * height)
    x, y = squares % width, squares // width
    line, along = y // (size + 1), x // (size + 1)
    room = line * columns + torch.where(line % 2 == 0, along, columns - 1 - along)
    doors = torch.tensor([(dy * width + dx) for dx, dy in (_door(k, size, columns) for k in range(rooms - 1))])
    floor = (x % (size + 1) != size) & (y % (size + 1) != size) & (room < rooms)
    floor[doors], room[doors] = True, torch.arange(rooms - 1)
    steps = []
    for dx, dy in MOVES:
        to = (y + dy).clamp(0, height - 1) * width + (x + dx).clamp(0, width - 1)
        steps.append(torch.where(floor[to], to, squares))
    neighbor = torch.stack(steps, 1)
    distance = _distances(neighbor, floor)
    toward = distance[neighbor].argmin(1)  # [C, 5, C]: remaining distance after each move; ties go to the first move
    plates = []
    for left, low in (corner(k, size, columns) for k in range(rooms - 1)):  # upper left and lower right
        plates.append([(low + size - 1) * width + left, low * width + left + size - 1])
    inside = torch.where(room == rooms - 1, distance[doors[-1]], -1).masked_fill(~floor, -1)
    tables = (floor, neighbor, doors, toward, room, torch.tensor(plates), inside.argmax())
    return Chain(rooms, size, columns, *(table.to(device) for table in tables))


def _distances(neighbor: Tensor, floor: Tensor) -> Tensor:
    """Path lengths between all squares [C, C]; a large number if one of them is a wall."""
    count = len(neighbor)
    far = torch.full((count, count), 10 * count)
    far[floor, floor] = 0
    while True:
        nearer = torch.minimum(far, far[neighbor].amin(1) + 1)
        if torch.equal(nearer, far):
            return far
        far = nearer


_MARGIN = 0.35  # wall around the rooms, in squares
_DOOR: Color = (176, 132, 84)
_PLATE: Color = (236, 186, 32)
_CLEAR: Color = (214, 222, 208)
_GOAL: Color = (206, 194, 232)


def draw(
    title: str,
    rooms: Chain,
    agents: Sequence[int],
    plates: Sequence[int],
    goals: Sequence[int],
    opened: Sequence[bool],
    score: dict[str, float],
    size: int,
) -> np.ndarray:
    """Draws the agents in their rooms as uint8 [height, size, 3] with height at most `size`.

    Args:
        plates: Squares of the plates.
        goals: Squares of the goal.
        opened: State of every door.
    """
    header = layout_header(title, score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    k = 3 if size <= 640 else 2
    side = min(size / (rooms.width + 2 * _MARGIN), (size - top) / (rooms.height + 2 * _MARGIN))
    height = top + round((rooms.height + 2 * _MARGIN) * side)
    height = min(height + height % 2, size)
    beside = (size - rooms.width * side) / 2
    canvas = Image.new("RGB", (size * k, height * k), WALL)
    pen, large, floor = Pen(canvas, side * k), side * k, (height - _MARGIN * side) * k

    def at(square: int) -> Pen:
        x, y = square % rooms.width, square // rooms.width
        return pen.at((beside + (x + 0.5) * side) * k, floor - (y + 0.5) * large)

    for square in rooms.floor.nonzero().squeeze(-1).tolist():
        at(square).box(-0.5, -0.5, 0.5, 0.5, fill=FLOOR[(square % rooms.width + square // rooms.width) % 2])
    for square, is_open in zip(rooms.doors.tolist(), opened, strict=True):
        at(square).box(-0.5, -0.5, 0.5, 0.5, fill=_CLEAR if is_open else _DOOR)
    for square in plates:
        at(square).box(-0.36, -0.36, 0.36, 0.36, fill=_PLATE)
    for square in goals:
        if len(goals) == 1:
            SPRITES["portal"](at(square), 0, "")
        else:
            at(square).box(-0.5, -0.5, 0.5, 0.5, fill=_GOAL)
    for number, square in enumerate(agents):
        SPRITES["agent"](at(square), number, "")
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


ROLE = "agent"


class ChainConfig(BaseModel):
    """Settings shared by all worlds on a chain of rooms."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rooms: int = Field(default=5, ge=2, le=32)
    """Number of rooms from the start to the goal."""
    columns: int = Field(default=3, ge=1, le=32)
    """Rooms per line; the next line is traversed in the opposite direction."""
    size: int = Field(default=5, ge=3, le=16)
    """Side length of a room in squares."""
    episode_limit: int | None = Field(default=100, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""


class ChainWorld(World):
    """Agents on a chain of rooms. The state holds `agents` [B, N] (squares) and `open` [B, rooms - 1] (doors).

    An observation is the agent's column and row one-hot, those of its teammates, and, if doors can be closed
    (`closable`), which doors are open. Agents move on floor squares and through open doors.
    """

    def __init__(
        self, name: str, config: ChainConfig, with_state: bool, *, agents: int, closable: bool, by_group: bool
    ):
        self._n, self._closable, self._with_state = agents, closable, with_state
        self.config = config
        self._rooms, self._size, self._columns = config.rooms, config.size, config.columns
        rooms = chain(config.rooms, config.size, config.columns, torch.device("cpu"))
        width = agents * (rooms.width + rooms.height) + (config.rooms - 1 if closable else 0)
        teammates = [[j for j in range(agents) if j != i] for i in range(agents)]
        self._teammates = DeviceConstant(torch.tensor(teammates, dtype=torch.int64))
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"agent_{i}" for i in range(agents)),
            spaces.Box(0, 1, (width,), np.float32),
            action_space=spaces.Discrete(len(MOVES)),
            choice_names=(NAMES,),
        )
        self.spec = EnvSpec(
            name,
            (role,),
            {"global": width} if with_state else {},
            has_group_reward=by_group,
            metrics=("rooms", "done"),
            episode_limit=config.episode_limit,
        )

    def map(self, like: Tensor) -> Chain:
        """Tables of the rooms on the device of `like`."""
        return chain(self._rooms, self._size, self._columns, like.device)

    def moves(self, state: State) -> Tensor:
        """Target of each move for every agent [B, N, 5]; the square itself at a wall or a closed door."""
        rooms, agents = self.map(state["agents"]), state["agents"]
        to = rooms.neighbor[agents]
        if not self._closable:
            return to
        shut = (to.unsqueeze(-1) == rooms.doors) & ~state["open"][:, None, None]  # [B, N, 5, doors]
        return torch.where(shut.any(-1), agents.unsqueeze(-1), to)

    def moved(self, state: State, action: dict[str, Action]) -> Tensor:
        """Squares [B, N] of the agents after their actions."""
        chosen = action[ROLE].discrete
        assert chosen is not None
        return self.moves(state).gather(-1, chosen).squeeze(-1)

    def start(self, noise: Tensor) -> Tensor:
        """Random squares of the first room [B, N] from noise [B, N]."""
        size = self._size
        at = (noise * size * size).long().clamp_(max=size * size - 1)
        return at // size * self.map(noise).width + at % size

    def observe(self, state: State) -> Observation:
        rooms, agents = self.map(state["agents"]), state["agents"]
        columns = one_hot(agents % rooms.width, rooms.width)
        places = torch.cat((columns, one_hot(agents // rooms.width, rooms.height)), -1).float()  # [B, N, W + H]
        teammates = places[:, self._teammates.on(agents.device)].flatten(2)
        doors = [state["open"].float()] if self._closable else []
        seen = [places, teammates, *(x.unsqueeze(1).expand(-1, self._n, -1) for x in doors)]
        mask = self.moves(state) != agents.unsqueeze(-1)
        mask[..., 0] = True
        shown = {"global": torch.cat((places.flatten(1), *doors), -1)} if self._with_state else {}
        return Observation({ROLE: torch.cat(seen, -1)}, {ROLE: mask}, shown)

    @abstractmethod
    def marked(self, rooms: Chain) -> tuple[list[int], list[int]]:
        """Squares of the plates and of the goal, for rendering."""

    def render(self, state: State, size: int) -> np.ndarray:
        agents = state["agents"]
        opened = state["open"][0].tolist() if self._closable else [True] * (self._rooms - 1)
        score = {"rooms": float(state["reached"][0]) + 1}
        rooms = self.map(agents)
        return draw(self.spec.name, rooms, agents[0].tolist(), *self.marked(rooms), opened, score, size)


class RoomsConfig(ChainConfig):
    """Settings of sparse/rooms."""


@final
class Rooms(ChainWorld):
    """The agent starts on a random square of the first room and receives 1 at the goal, which ends the episode.

    The goal is the corner of the last room farthest from its door. Metrics, at the last step: `rooms` (rooms visited),
    `done` (the goal was reached).
    """

    Config = RoomsConfig
    reset_noise_size = 1

    def __init__(self, config: RoomsConfig, with_state: bool = False):
        super().__init__("rooms", config, with_state, agents=1, closable=False, by_group=False)

    def reset(self, noise: Tensor) -> State:
        return {"agents": self.start(noise), "reached": torch.zeros(len(noise), dtype=torch.int64, device=noise.device)}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        agents, rooms = self.moved(state, action), self.map(state["agents"])
        reached = torch.maximum(state["reached"], rooms.room[agents[:, 0]])
        done = agents[:, 0] == rooms.goal
        return {"agents": agents, "reached": reached}, Outcome(
            reward=done.unsqueeze(1).float(),
            terminated=done,
            metrics=lambda: {"rooms": reached.float() + 1, "done": done.float()},
        )

    def marked(self, rooms: Chain) -> tuple[list[int], list[int]]:
        return [], [int(rooms.goal)]


class PlatesConfig(ChainConfig):
    """Settings of sparse/plates."""

    rooms: int = Field(default=4, ge=2, le=32)
    """Number of rooms from the start to the goal."""
    columns: int = Field(default=4, ge=1, le=32)
    """Rooms per line; the next line is traversed in the opposite direction."""
    size: int = Field(default=4, ge=3, le=16)
    """Side length of a room in squares."""


@final
class Plates(ChainWorld):
    """Both agents start in the first room; the group receives 1 when both are in the last room, which ends the episode.

    Every room but the last has two plates in opposite corners. Its door opens when both plates are occupied at the same
    time and stays open. Metrics, at the last step: `rooms` (rooms reached by the foremost agent), `done`.
    """

    Config = PlatesConfig
    reset_noise_size = 2

    def __init__(self, config: PlatesConfig, with_state: bool = False):
        super().__init__("plates", config, with_state, agents=2, closable=True, by_group=True)

    def reset(self, noise: Tensor) -> State:
        shut = torch.zeros(len(noise), self._rooms - 1, dtype=torch.bool, device=noise.device)
        reached = torch.zeros(len(noise), dtype=torch.int64, device=noise.device)
        return {"agents": self.start(noise), "open": shut, "reached": reached}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        agents, rooms = self.moved(state, action), self.map(state["agents"])
        pressed = (agents[:, :, None, None] == rooms.plates).any(1).all(-1)  # [B, doors]
        at = rooms.room[agents]
        reached = torch.maximum(state["reached"], at.amax(1))
        done = (at == self._rooms - 1).all(1)
        return {"agents": agents, "open": state["open"] | pressed, "reached": reached}, Outcome(
            reward=torch.zeros_like(agents, dtype=torch.float32),
            group_reward=done.unsqueeze(1).float(),
            terminated=done,
            metrics=lambda: {"rooms": reached.float() + 1, "done": done.float()},
        )

    def marked(self, rooms: Chain) -> tuple[list[int], list[int]]:
        inside = (rooms.room == self._rooms - 1).nonzero().squeeze(-1)
        return rooms.plates.flatten().tolist(), inside.tolist()
