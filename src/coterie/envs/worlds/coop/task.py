"""Base class of the cooperative worlds: spec, settings, moves and masks on the grid, and observations."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.core.device_constants import DeviceConstant, constant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.worlds.coop.grid import MOVES, NAMES, Grid, grid
from coterie.envs.worlds.coop.render import Scene, draw
from coterie.envs.worlds.world import Observation, State, World

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
