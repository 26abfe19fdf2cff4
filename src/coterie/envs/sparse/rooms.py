"""rooms: one agent, a chain of rooms, and a goal in the far corner of the last one."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from coterie.envs.sparse.chain import Chain
from coterie.envs.sparse.task import ChainConfig, ChainWorld
from coterie.envs.world import Outcome, State
from coterie.types import Action


class RoomsConfig(ChainConfig):
    """Settings of sparse/rooms."""


@final
class Rooms(ChainWorld):
    """The agent begins on any square of the first room and is paid 1 on the goal, which ends the episode.

    The goal is the corner of the last room that is furthest from its door. Metrics, at the last step: `rooms` (how many
    it has been in), `done` (it was on the goal).
    """

    Config = RoomsConfig
    restart_noise = 1

    def __init__(self, config: RoomsConfig, with_state: bool = False):
        super().__init__("rooms", config, with_state, agents=1, closable=False, by_group=False)

    def restart(self, noise: Tensor) -> State:
        return {"agents": self.start(noise), "reached": torch.zeros(len(noise), dtype=torch.int64, device=noise.device)}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        agents, rooms = self.moved(state, action), self.map(state["agents"])
        reached = torch.maximum(state["reached"], rooms.room[agents[:, 0]])
        done = agents[:, 0] == rooms.goal
        return {"agents": agents, "reached": reached}, Outcome(
            reward=done.unsqueeze(1).float(),
            ended=done,
            metrics=lambda: {"rooms": reached.float() + 1, "done": done.float()},
        )

    def marked(self, rooms: Chain) -> tuple[list[int], list[int]]:
        return [], [int(rooms.goal)]
