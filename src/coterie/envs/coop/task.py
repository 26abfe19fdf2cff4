"""What the cooperative worlds share: their spec, their keys, moves and masks on the grid, and what is seen."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.envs.coop.grid import MOVES, NAMES, Grid, grid
from coterie.envs.coop.render import Scene, draw
from coterie.envs.world import State, View, World
from coterie.types import Action, EnvSpec, RoleSpec

ROLE = "agent"


class CoopConfig(BaseModel):
    """What all cooperative worlds can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    episode_limit: int | None = Field(50, ge=1)
    """Steps after which an episode is cut; None: never."""
    limit_ends: bool = False
    """The limit counts as an end of the task (terminated), not as a cut (truncated)."""


class CoopWorld(World):
    """A room of squares with one role of `agents` members. A world says what a step does and what there is to see.

    things: how many squares are shown beside the agents; marks: numbers that each agent bears for all to see; shared:
    numbers that everyone sees. An observation is own place (2), own marks, the shared numbers, for every thing its
    offset (2) and whether it is there, for every mate its offset (2), whether it lives, and its marks; zeros stand for
    what is not there. Places are in -1 .. 1, offsets are half their difference.
    """

    def __init__(
        self,
        name: str,
        config: CoopConfig,
        with_state: bool,
        *,
        size: tuple[int, int],
        agents: int,
        things: int,
        marks: int,
        shared: int,
        metrics: tuple[str, ...],
        mortal: bool,
    ):
        self._size, self._n, self._with_state = size, agents, with_state
        self.limit_ends = config.limit_ends
        mates = [i * agents + j for i in range(agents) for j in range(agents) if i != j]
        self._mates = torch.tensor(mates, dtype=torch.int64)  # also where there are none
        width = 2 + marks + shared + 3 * things + (agents - 1) * (3 + marks)
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"agent_{i}" for i in range(agents)),
            spaces.Box(-1, 1, (width,), np.float32),
            spaces.Discrete(len(MOVES)),
            (NAMES,),
        )
        self.spec = EnvSpec(
            name,
            (role,),
            {"global": agents * (3 + marks) + shared + 3 * things} if with_state else {},
            mortal=mortal,
            paid_by_group=True,
            metrics=metrics,
            episode_limit=config.episode_limit,
        )

    @abstractmethod
    def scene(self, state: State) -> Scene:
        """The picture of the single copy that `state` holds."""

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.scene(state), size)

    def grid(self, like: Tensor) -> Grid:
        """The room, its tables on the device of `like`."""
        return grid(*self._size, like.device)

    def show(
        self,
        agents: Tensor,
        things: Tensor,
        there: Tensor,
        *,
        alive: Tensor | None = None,
        marks: Tensor | None = None,
        shared: Tensor | None = None,
        sight: int | None = None,
    ) -> View:
        """What agents at the squares `agents` [B, N] see, and the state, as the class says.

        things: [B, M] squares; there: [B, M] bool; alive: [B, N], None for everyone; marks: [B, N, k]; shared: [B, s];
        sight: how many squares agents see along each axis, None: all of them. The state knows everything.
        """
        room, copies, n = self.grid(agents), len(agents), self._n
        place, spot, seen = room.place[agents], room.place[things], there.unsqueeze(-1).float()
        lives = torch.ones_like(place[..., :1]) if alive is None else alive.unsqueeze(-1).float()
        borne = [] if marks is None else [marks]
        known = [] if shared is None else [shared]
        self_seen = [place, *borne, *(x.unsqueeze(1).expand(-1, n, -1) for x in known)]
        far = None if sight is None else 2 * (sight + 0.5) / (torch.tensor(self._size, device=agents.device) - 1)
        to_things = _seen_from(place, torch.cat((spot, seen), -1), far).flatten(2)
        mates = _seen_from(place, torch.cat((place, lives, *borne), -1), far).flatten(1, 2)
        mates = mates[:, self._mates.to(agents.device)]
        obs = torch.cat((*self_seen, to_things, mates.view(copies, n, -1)), -1)
        mask = room.open[agents]
        if alive is not None:
            obs, mask = obs * lives, mask | ~alive.unsqueeze(-1)
        states = {}
        if self._with_state:
            parts = (*known, torch.cat((place * lives, lives, *borne), -1), torch.cat((spot * seen, seen), -1))
            states["global"] = torch.cat([part.flatten(1) for part in parts], -1)
        return View({ROLE: obs}, {ROLE: mask}, states, alive)

    def moves(self, action: dict[str, Action]) -> Tensor:
        """The moves [B, N] that the agents chose."""
        chosen = action[ROLE].discrete
        assert chosen is not None
        return chosen.squeeze(-1)


def _seen_from(place: Tensor, others: Tensor, far: Tensor | None) -> Tensor:
    """[B, N, M, f]: `others` [B, M, f] from each of `place` [B, N, 2]: the first two numbers as offsets, halved.

    The third number says whether it is there; without it, or further away than `far` [2] along an axis, all are zero.
    """
    apart = others[:, None, :, :2] - place.unsqueeze(2)
    seen = others[:, None, :, 2:3].expand(-1, place.shape[1], -1, -1)
    if far is not None:
        seen = seen * (apart.abs() < far).all(-1, keepdim=True)
    return torch.cat((0.5 * apart, others[:, None, :, 2:].expand(-1, place.shape[1], -1, -1)), -1) * seen


def scaled(noise: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1) as int64 in 0 .. count - 1."""
    return (noise * count).long().clamp_(max=count - 1)


def first_of(flags: Tensor) -> Tensor:
    """[B] int64: the first True along the last axis of [B, N], -1 where there is none."""
    return torch.where(flags.any(-1), flags.byte().argmax(-1), -1)
