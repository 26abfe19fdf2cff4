"""plates: two agents, a chain of rooms, and doors that open when both agents stand on the plates of a room."""

from __future__ import annotations

from typing import final

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.worlds.sparse.chain import Chain
from coterie.envs.worlds.sparse.task import ChainConfig, ChainWorld
from coterie.envs.worlds.world import Outcome, State


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
