"""Observations of foraging agents: lists of food and agents, or layers of squares around the agent.

Tensors have environments in the last axis where noted, so that operations on few agents and food items run over
adjacent memory.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.envs.worlds.world import State

_LEVELS = 1 << 16
"""Agents' levels are below this."""


@dataclass(frozen=True)
class View:
    """Constants of the observations.

    Attributes:
        side: Side length of the field in squares.
        players: Number of agents.
        sight: View range in squares along each axis, at least 1.
        with_levels: True if the levels of agents are part of observations.
    """

    side: int
    players: int
    sight: int
    with_levels: bool

    @property
    def is_full(self) -> bool:
        """True if all agents always see the whole field."""
        return self.sight >= self.side - 1


def envs_last(x: Tensor) -> Tensor:
    """Returns [B, M] as [M, B], or [B, M, 2] as [2, M, B], contiguous."""
    return reversed_axes(x).contiguous()


def reversed_axes(x: Tensor) -> Tensor:
    """Returns a view with all axes in reverse order."""
    return x.permute(*range(x.ndim - 1, -1, -1))


def entity_lists(state: State, view: View) -> Tensor:
    """Observations as lists [B, P, D]: row, column and level of all food, then of the agent itself, then of the others.

    Rows and columns count from the first row and column in sight. Food and agents out of sight are left out, and those
    that follow take their places; the remaining places contain -1, -1, 0. As in the package, agents are in sight
    within the `2 x sight + 1` rows and columns from the first one in sight, even where the field's edge cuts off rows.
    """
    names = ("players", "levels", "food", "food_level")
    pos, level, food, food_level = (envs_last(state[name]).float() for name in names)
    others = other_players(view.players, pos.device)
    sight = state.get("sight")
    if view.is_full and sight is None:
        foods = _compacted(food.unsqueeze(1), food_level.unsqueeze(0), (food_level > 0).unsqueeze(0))
        foods = foods.expand(view.players, -1, -1, -1)
        own = torch.cat((pos, level.unsqueeze(0)))  # [3, P, B]
        rest = own.index_select(1, others).view(3, view.players, -1, own.shape[-1]).permute(1, 2, 0, 3)
    else:
        reach = view.sight if sight is None else sight
        base = (pos - reach).clamp_(min=0)  # [2, P, B], the first row and column in sight
        gap = food.unsqueeze(1) - pos.unsqueeze(2)
        seen = (gap[0].abs() <= reach) & (gap[1].abs() <= reach) & (food_level > 0)
        foods = _compacted(food.unsqueeze(1) - base.unsqueeze(2), food_level.unsqueeze(0), seen)
        own = torch.cat((pos - base, level.unsqueeze(0)))
        offset = pos.index_select(1, others).view(2, view.players, -1, pos.shape[-1]) - base.unsqueeze(2)
        first, last = offset.amin(0), offset.amax(0)
        seen = (first >= 0) & (last <= 2 * reach)
        rest = _compacted(offset, level.index_select(0, others).view(seen.shape), seen)
    players = torch.cat((own.permute(1, 0, 2).unsqueeze(1), rest), 1)  # [P, P, 3, B]
    if not view.with_levels:
        players = players[:, :, :2]
    return torch.cat((foods.flatten(1, 2), players.flatten(1, 2)), 1).permute(2, 0, 1).contiguous()


def whole_field(state: State) -> Tensor:
    """Row, column and level of all food and of all agents, [B, 3 F + 3 P]; -1, -1, 0 for food that was collected."""
    food, food_level = envs_last(state["food"]), envs_last(state["food_level"])
    foods = _compacted(food.unsqueeze(1), food_level.unsqueeze(0), (food_level > 0).unsqueeze(0))[0]
    players = torch.cat((state["players"], state["levels"].unsqueeze(-1)), -1).flatten(1)
    return torch.cat((foods.flatten(0, 1).T, players), -1).float()


def square_layers(state: State, view: View) -> Tensor:
    """Observations as layers [B, P, W, W, 3] of the W = 2 sight + 1 squares around each agent along both axes.

    The layers are the agents' levels (1 each without levels), the levels of food, and 1 for squares that can be
    entered. If several agents are on one square, the last one is shown.
    """
    side, sight, n = view.side, view.sight, view.players
    width = side + 2 * sight
    pos, level = state["players"], state["levels"]
    device, num_envs = pos.device, len(pos)
    inside, windows = window_tables(side, sight, device)
    squares = (pos[..., 0] + sight) * width + pos[..., 1] + sight
    shown = level if view.with_levels else torch.ones_like(level)
    numbered = torch.arange(n, device=device) * _LEVELS + shown
    agents = torch.zeros(num_envs, width * width, dtype=torch.int64, device=device)
    agents = agents.scatter_reduce(1, squares, numbered, "amax") % _LEVELS
    # Collected food is at row -1 and column -1, which is outside the field, and has level 0.
    places = (state["food"][..., 0] + sight) * width + state["food"][..., 1] + sight
    foods = torch.zeros_like(agents).scatter(1, places, state["food_level"])
    within = inside[state["size"].long()] if "size" in state else inside[side].expand(num_envs, -1)
    access = within.scatter(1, squares, False) & (foods == 0)
    layers = torch.stack((agents, foods, access.long()), -1)  # [B, width * width, 3]
    index = windows[pos[..., 0] * side + pos[..., 1]].flatten(1)
    seen = layers.gather(1, index.unsqueeze(-1).expand(-1, -1, 3))
    return seen.view(num_envs, n, 2 * sight + 1, 2 * sight + 1, 3).float()


def _compacted(offset: Tensor, level: Tensor, visible: Tensor) -> Tensor:
    """Moves visible entries to the front of their list.

    Args:
        offset: [2, V, M, B], rows and columns of M entries as V agents see them.
        level: [V or 1, M, B].
        visible: [V, M, B] bool.

    Returns:
        [V, M, 3, B]: row, column and level; -1, -1, 0 for the rest.
    """
    entries = torch.stack((*offset, level.expand(visible.shape)), 2)  # [V, M, 3, B]
    agents, count, num_envs = visible.shape
    place = torch.where(visible, visible.cumsum(1) - 1, count)  # the last place is cut off
    listed = entries.new_full((agents, count + 1, 3, num_envs), -1)
    listed[:, :, 2] = 0
    return listed.scatter_(1, place.unsqueeze(2).expand(entries.shape), entries)[:, :count]


@functools.cache
def other_players(players: int, device: torch.device) -> Tensor:
    """Indices of all other agents, agent by agent."""
    indices = [j for i in range(players) for j in range(players) if j != i]
    return torch.tensor(indices, dtype=torch.int64, device=device)


@functools.cache
def window_tables(side: int, sight: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tables of the field with a border of `sight` squares.

    Returns:
        For each side length up to `side`, True for the squares of the field [side + 1, (side + 2 sight)²]; and the
        squares around each square of the field [side², (2 sight + 1)²].
    """
    width, seen = side + 2 * sight, torch.arange(2 * sight + 1)
    line = torch.arange(width)
    part = (line >= sight) & (line < sight + torch.arange(side + 1)[:, None])
    inside = (part[:, :, None] & part[:, None]).flatten(1)
    row = torch.arange(side).view(-1, 1, 1, 1) + seen.view(1, 1, -1, 1)
    column = torch.arange(side).view(1, -1, 1, 1) + seen
    return inside.to(device), (row * width + column).flatten(2).flatten(0, 1).to(device)
