"""rooms: one agent, a chain of rooms, and a goal in the far corner of the last one."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.worlds.sparse.chain import Chain
from coterie.envs.worlds.sparse.task import ChainConfig, ChainWorld
from coterie.envs.worlds.world import Outcome, State


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
