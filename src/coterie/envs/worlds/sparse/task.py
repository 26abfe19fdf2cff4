"""Base class of the worlds on a chain of rooms: spec, observations, moves and rendering."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.core.device_constants import DeviceConstant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.sparse.chain import MOVES, NAMES, Chain, chain
from coterie.envs.worlds.sparse.render import draw
from coterie.envs.worlds.world import Observation, State, World

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
