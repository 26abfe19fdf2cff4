"""Base of the cooperative worlds: spec, settings, moves and masks on a grid, observations, and pictures.

The grid room is a set of lookup tables of move targets, legal moves and shortest paths. Rooms are drawn with Pillow at
any size, with supersampling for smooth edges.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from gymnasium import spaces
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.core.device_constants import DeviceConstant, constant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.drawing import FLOOR, MIN_SIZE_WITH_TEXT, SPRITES, WALL, Pen, layout_header
from coterie.envs.worlds.world import Observation, State, World

MOVES: tuple[tuple[int, int], ...] = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Displacement (x, y) of actions 0 to 4: stay, left, right, down, up."""
STAY, LEFT, RIGHT, DOWN, UP = range(5)
NAMES = ("stay", "left", "right", "down", "up")


@dataclass(frozen=True)
class Grid:
    """Lookup tables of a `width` x `height` room. Square (x, y) has the index y * width + x, with y pointing up.

    Attributes:
        neighbor: [C * 5] int64, target of a move at index square * 5 + move; the square itself at a wall.
        open: [C, 5] bool, True for legal moves (staying is always legal).
        place: [C, 2], center of the square in -1 .. 1 on both axes.
        distance: [C, C] int64, number of steps from the first square to the second.
        toward: [C * C] int64, first move of a shortest path at index from * C + to.
    """

    width: int
    height: int
    neighbor: Tensor
    open: Tensor
    place: Tensor
    distance: Tensor
    toward: Tensor

    @property
    def squares(self) -> int:
        """Number of squares C."""
        return self.width * self.height

    def square(self, x: int, y: int) -> int:
        return y * self.width + x

    def moved(self, square: Tensor, move: Tensor) -> Tensor:
        """Target squares of the moves; both int64 of equal shape."""
        return self.neighbor[square * len(MOVES) + move]

    def way(self, start: Tensor, goal: Tensor) -> Tensor:
        """First move of a shortest path from `start` to `goal`; both int64 of equal shape."""
        return self.toward[start * self.squares + goal]


@functools.cache
def grid(width: int, height: int, device: torch.device) -> Grid:
    """Builds the tables of a room on a device."""
    x, y = torch.arange(width).repeat(height), torch.arange(height).repeat_interleave(width)
    neighbor = torch.stack(
        [(y + dy).clamp(0, height - 1) * width + (x + dx).clamp(0, width - 1) for dx, dy in MOVES], 1
    )
    squares = torch.arange(width * height)
    opened = neighbor != squares[:, None]
    opened[:, STAY] = True
    distance = (x[:, None] - x).abs() + (y[:, None] - y).abs()
    toward = distance[neighbor].argmin(1)  # [C, 5, C]: remaining distance after each move; ties go to the first move
    half = torch.tensor([max(width - 1, 1), max(height - 1, 1)]) / 2
    place = torch.stack((x, y), 1) / half - 1
    tables = (neighbor.flatten(), opened, place, distance, toward.flatten())
    return Grid(width, height, *(table.to(device) for table in tables))


__all__ = ["Scene", "Sprite", "draw"]

_MARGIN = 0.35  # wall around the room, in squares
# Offsets of agents that share a square, by their number.
_BESIDE = {
    1: ((0.0, 0.0),),
    2: ((-0.22, 0.0), (0.22, 0.0)),
    3: ((-0.22, -0.17), (0.22, -0.17), (0.0, 0.22)),
    4: ((-0.22, -0.22), (0.22, -0.22), (-0.22, 0.22), (0.22, 0.22)),
}


@dataclass(frozen=True)
class Sprite:
    """A drawing on a square.

    Attributes:
        kind: Name in `drawing.SPRITES`.
        number: Index among sprites of its kind, which selects the color.
        mark: Item carried, or state.
    """

    kind: str
    square: int
    number: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Scene:
    """Contents of an image.

    Attributes:
        size: Width and height in squares; square (x, y) has the index y * width + x, with y pointing up.
        sprites: Sprites in drawing order.
        score: Numbers of the header by name.
    """

    title: str
    size: tuple[int, int]
    sprites: tuple[Sprite, ...]
    score: dict[str, float] = field(default_factory=dict)


def draw(scene: Scene, size: int = 480) -> np.ndarray:
    """Draws a scene as uint8 [size, size, 3]. Images under 120 pixels have no header."""
    header = layout_header(scene.title, scene.score, size) if size >= MIN_SIZE_WITH_TEXT else None
    top = header.height if header else 0
    k = 4 if size <= 256 else 3 if size <= 640 else 2
    canvas = Image.new("RGB", (size * k, size * k), WALL)
    width, height = scene.size
    side = min(size / (width + 2 * _MARGIN), (size - top) / (height + 2 * _MARGIN)) * k
    left, floor = (size * k - width * side) / 2, ((size + top) * k + height * side) / 2
    pen = Pen(canvas, side)
    for square in range(width * height):
        x, y = square % width, square // width
        pen.at(left + (x + 0.5) * side, floor - (y + 0.5) * side).box(-0.5, -0.5, 0.5, 0.5, fill=FLOOR[(x + y) % 2])
    crowd: dict[int, int] = {}
    for sprite in scene.sprites:
        crowd[sprite.square] = crowd.get(sprite.square, 0) + (sprite.kind == "agent")
    placed: dict[int, int] = {}
    for sprite in scene.sprites:
        x, y = sprite.square % width + 0.5, sprite.square // width + 0.5
        small = 1.0
        if sprite.kind == "agent":
            many = crowd[sprite.square]
            places, i = _BESIDE[min(many, 4)], placed.get(sprite.square, 0)
            placed[sprite.square] = i + 1
            dx, dy = places[i % len(places)]
            x, y, small = x + dx, y + dy, 1.0 if many == 1 else 0.62
        pen.at(left + x * side, floor - y * side, side * small)
        SPRITES[sprite.kind](pen, sprite.number, sprite.mark)
    image = canvas.reduce(k)
    if header:
        header.write(image)
    return np.array(image)


ROLE = "agent"


class CoopConfig(BaseModel):
    """Settings shared by all cooperative worlds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    episode_limit: int | None = Field(50, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Room of a cooperative world, and the entries of its observations.

    Attributes:
        size: Width and height of the room in squares.
        agents: Number of agents.
        items: Number of visible items besides the agents.
        marks: Numbers attached to each agent and visible to all.
        shared: Numbers visible to all agents.
    """

    size: tuple[int, int]
    agents: int
    items: int
    marks: int = 0
    shared: int = 0

    @property
    def observation_size(self) -> int:
        """Numbers that an agent observes."""
        return 2 + self.marks + self.shared + 3 * self.items + (self.agents - 1) * (3 + self.marks)

    @property
    def state_size(self) -> int:
        """Numbers of the state."""
        return self.agents * (3 + self.marks) + self.shared + 3 * self.items


class CoopWorld(World):
    """A grid room with one role of `agents` members; subclasses define the transition and the items that are visible.

    An observation is the agent's own position (2), its own marks, the shared numbers, for every item its offset (2) and
    whether it is present, and for every teammate its offset (2), whether it is alive, and its marks. Absent entries are
    zero. Positions are in -1 .. 1, offsets are half their difference.
    """

    def __init__(
        self,
        name: str,
        config: CoopConfig,
        with_state: bool,
        *,
        layout: Layout,
        metrics: tuple[str, ...],
        agents_can_die: bool,
    ):
        agents = layout.agents
        self._size, self._n, self._with_state = layout.size, agents, with_state
        self.terminate_at_limit = config.terminate_at_limit
        teammates = [i * agents + j for i in range(agents) for j in range(agents) if i != j]
        self._teammates = DeviceConstant(torch.tensor(teammates, dtype=torch.int64))  # even if there are none
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"agent_{i}" for i in range(agents)),
            spaces.Box(-1, 1, (layout.observation_size,), np.float32),
            action_space=spaces.Discrete(len(MOVES)),
            choice_names=(NAMES,),
        )
        self.spec = EnvSpec(
            name,
            (role,),
            {"global": layout.state_size} if with_state else {},
            agents_can_die=agents_can_die,
            has_group_reward=True,
            metrics=metrics,
            episode_limit=config.episode_limit,
        )

    @abstractmethod
    def scene(self, state: State) -> Scene:
        """Scene of the single environment in `state`."""

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.scene(state), size)

    def grid(self, like: Tensor) -> Grid:
        """Tables of the room on the device of `like`."""
        return grid(*self._size, like.device)

    def build_observation(
        self,
        agents: Tensor,
        items: Tensor,
        present: Tensor,
        *,
        alive: Tensor | None = None,
        marks: Tensor | None = None,
        shared: Tensor | None = None,
        sight: int | None = None,
    ) -> Observation:
        """Observations and state for agents at the squares `agents` [B, N], in the format of the class docstring.

        Args:
            items: [B, M], squares of the items.
            present: [B, M] bool, True for items that are present.
            alive: [B, N] bool, None for all.
            marks: [B, N, k].
            shared: [B, s].
            sight: View range in squares along each axis, None for unlimited. It does not limit the state.
        """
        room, num_envs, n = self.grid(agents), len(agents), self._n
        pos, item_pos, present_feature = room.place[agents], room.place[items], present.unsqueeze(-1).float()
        alive_feature = torch.ones_like(pos[..., :1]) if alive is None else alive.unsqueeze(-1).float()
        mark_features = [] if marks is None else [marks]
        shared_features = [] if shared is None else [shared]
        own_features = [pos, *mark_features, *(x.unsqueeze(1).expand(-1, n, -1) for x in shared_features)]
        max_offset = (
            None if sight is None else 2 * (sight + 0.5) / (constant(self._size, agents.device, agents.dtype) - 1)
        )
        relative_items = _relative_features(pos, torch.cat((item_pos, present_feature), -1), max_offset).flatten(2)
        teammates = _relative_features(pos, torch.cat((pos, alive_feature, *mark_features), -1), max_offset).flatten(
            1, 2
        )
        teammates = teammates[:, self._teammates.on(agents.device)]
        obs = torch.cat((*own_features, relative_items, teammates.view(num_envs, n, -1)), -1)
        mask = room.open[agents]
        if alive is not None:
            obs, mask = obs * alive_feature, mask | ~alive.unsqueeze(-1)
        states = {}
        if self._with_state:
            agent_features = torch.cat((pos * alive_feature, alive_feature, *mark_features), -1)
            item_features = torch.cat((item_pos * present_feature, present_feature), -1)
            parts = (*shared_features, agent_features, item_features)
            states["global"] = torch.cat([part.flatten(1) for part in parts], -1)
        return Observation({ROLE: obs}, {ROLE: mask}, states, alive)

    def moves(self, action: dict[str, Action]) -> Tensor:
        """Moves [B, N] chosen by the agents."""
        chosen = action[ROLE].discrete
        assert chosen is not None
        return chosen.squeeze(-1)


def _relative_features(pos: Tensor, others: Tensor, max_offset: Tensor | None) -> Tensor:
    """[B, N, M, f]: `others` [B, M, f] relative to each `pos` [B, N, 2]: the first two numbers as halved offsets.

    The third number is 1 if the entry is present. All numbers are zero for absent entries and for those farther away
    than `max_offset` [2] along an axis.
    """
    offset = others[:, None, :, :2] - pos.unsqueeze(2)
    visible = others[:, None, :, 2:3].expand(-1, pos.shape[1], -1, -1)
    if max_offset is not None:
        visible = visible * (offset.abs() < max_offset).all(-1, keepdim=True)
    return torch.cat((0.5 * offset, others[:, None, :, 2:].expand(-1, pos.shape[1], -1, -1)), -1) * visible


def scaled(noise: Tensor, count: int) -> Tensor:
    """Maps uniform noise in [0, 1) to int64 in 0 .. count - 1."""
    return (noise * count).long().clamp_(max=count - 1)


def first_of(flags: Tensor) -> Tensor:
    """[B] int64: index of the first True along the last axis of [B, N], -1 if there is none."""
    return torch.where(flags.any(-1), flags.byte().argmax(-1), -1)
