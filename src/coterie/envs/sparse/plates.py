"""plates: two agents, a chain of rooms, and a door at the end of each that opens when both stand on its plates."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.envs.sparse.chain import Chain
from coterie.envs.sparse.task import ChainConfig, ChainWorld
from coterie.envs.world import Outcome, State
from coterie.types import Action


class PlatesConfig(ChainConfig):
    """Settings of sparse/plates."""

    rooms: int = Field(default=4, ge=2, le=32)
    """Rooms from the start to the goal."""
    columns: int = Field(default=4, ge=1, le=32)
    """Rooms in a line; the next line is walked the other way."""
    size: int = Field(default=4, ge=3, le=16)
    """Squares along each side of a room."""


@final
class Plates(ChainWorld):
    """Both agents begin in the first room; the group is paid 1 when both have come into the last one, which ends the
    episode.

    Every room but the last has two plates, in the corners of its diagonal. The room's door opens when both are stood on
    at once, and stays open. Metrics, at the last step: `rooms` (how many the foremost has been in), `done`.
    """

    Config = PlatesConfig
    restart_noise = 2

    def __init__(self, config: PlatesConfig, with_state: bool = False):
        super().__init__("plates", config, with_state, agents=2, closable=True, by_group=True)

    def restart(self, noise: Tensor) -> State:
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
            ended=done,
            metrics=lambda: {"rooms": reached.float() + 1, "done": done.float()},
        )

    def marked(self, rooms: Chain) -> tuple[list[int], list[int]]:
        inside = (rooms.room == self._rooms - 1).nonzero().squeeze(-1)
        return rooms.plates.flatten().tolist(), inside.tolist()
