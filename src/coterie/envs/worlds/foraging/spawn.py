"""Initial states: agents and food are placed and get levels with the distribution of the package.

The package draws squares until one is free. Here, numbers of free squares are drawn, which has the same distribution.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.envs.worlds.world import State
from coterie.kernels import native, switch
from coterie.kernels.foraging import MAX_SIDE, Rules, foraging_spawn

REACH = (1, 2)
"""Food keeps a distance from other food: not within the first number of squares in both axes, and not within the second
in one row or column.
"""


def noise_size(players: int, foods: int) -> int:
    """Number of uniform numbers that `spawn` needs per environment."""
    return 2 * (players + foods)


def spawn(noise: Tensor, rules: Rules, side: int, players: int, foods: int) -> State:
    """Returns initial states from uniform noise [B, noise_size].

    Args:
        side: Side length that tables are made for, at least `rules.size`.
        players: Number of agents.
        foods: Number of food items for which the state has room.
    """
    by_kernel = switch.on and side <= MAX_SIDE and noise.dtype is torch.float32
    if by_kernel and native.is_supported(noise) and not native.is_traced(noise):
        return foraging_spawn(noise, rules, side, players, foods, reach=REACH)
    places, levels, food_places, food_levels = noise.split((players, players, foods, foods), 1)
    squares, width = _draw_players(places, rules.size, side), _per_env(rules.size)
    rows, columns = squares // width, squares % width
    span = rules.max_player_level - rules.min_player_level + 1
    level = rules.min_player_level + _scaled(levels, _per_env(span))
    food = _draw_foods(food_places, rows * side + columns, rules, side)
    present = food >= 0
    lowest = level.sort(1).values[:, :3].sum(1, keepdim=True) if players > 3 else level.sum(1, keepdim=True)
    highest = lowest if rules.max_food_level is None else torch.full_like(lowest, rules.max_food_level)
    count = highest - rules.min_food_level + (0 if rules.exclusive else 1)
    drawn = rules.min_food_level + _scaled(food_levels, count.clamp(min=1))
    if isinstance(rules.coop, Tensor):
        drawn = torch.where(rules.coop.unsqueeze(1), highest, drawn)
    elif rules.coop:
        drawn = highest.expand_as(drawn)
    food_level = drawn * present
    # Observations show food in the order of its squares.
    order = torch.where(present, food, side * side).argsort(1)
    food, food_level = food.gather(1, order), food_level.gather(1, order)
    place = torch.where(food >= 0, torch.stack((food // side, food % side)), -1)
    return {
        "players": _reversed_memory(torch.stack((rows, columns))),
        "levels": _reversed_memory(level),
        "food": _reversed_memory(place),
        "food_level": _reversed_memory(food_level),
        "spawned": food_level.sum(1),
    }


def _reversed_memory(x: Tensor) -> Tensor:
    """Returns [B, M] for [B, M], or [B, M, 2] for [2, B, M], with environments adjacent in memory."""
    if x.ndim == 2:
        return x.T.contiguous().T
    return x.transpose(1, 2).contiguous().permute(2, 1, 0)


def _per_env(number: int | Tensor) -> int | Tensor:
    """Numbers [B] as [B, 1]."""
    return number.unsqueeze(-1) if isinstance(number, Tensor) and number.ndim else number


def _scaled(noise: Tensor, count: int | Tensor) -> Tensor:
    """Maps uniform noise in [0, 1) to int64 in 0 .. count - 1."""
    drawn = (noise * count).long()
    return drawn.clamp_(max=count - 1) if isinstance(count, int) else torch.minimum(drawn, count - 1)


def _draw_players(noise: Tensor, size: int | Tensor, side: int) -> Tensor:
    """Draws different squares for all agents: the first swaps of a Fisher-Yates shuffle.

    Args:
        noise: [B, P].
        size: Side length of the field, at most `side`.

    Returns:
        [B, P] int64, row x size + column.
    """
    total = size * size
    squares = torch.arange(side * side, dtype=torch.int16, device=noise.device).repeat(len(noise), 1)
    chosen = []
    for k, uniform in enumerate(noise.unbind(1)):
        at = (k + _scaled(uniform, total - k)).unsqueeze(1)
        chosen.append(squares.gather(1, at))
        squares.scatter_(1, at, squares[:, k : k + 1].clone())
    return torch.cat(chosen, 1).long()


def _draw_foods(noise: Tensor, players: Tensor, rules: Rules, side: int) -> Tensor:
    """Draws squares for food, one after another, among those that agents and earlier food leave free.

    Food is never placed in the outermost rows and columns.

    Args:
        noise: [B, F].
        players: Squares of the agents [B, P], row x side + column.

    Returns:
        [B, F] int64, row x side + column; -1 for food that finds no square.
    """
    tables = spawn_tables(side, noise.device)
    # A product of columns, one per agent: squares on which no agent is.
    free = tables.unoccupied.index_select(0, players[:, 0])
    for square in players.unbind(1)[1:]:
        free = free & tables.unoccupied.index_select(0, square)
    if isinstance(rules.size, Tensor):
        free = free & tables.within.index_select(0, rules.size)
    found = []
    for k, uniform in enumerate(noise.unbind(1)):
        number = free.cumsum(1, dtype=torch.int16)  # of each free square, from 1
        count = number[:, -1]
        drawn = (uniform * count).short() + 1
        place = torch.searchsorted(number, drawn.unsqueeze(1)).squeeze(1)
        exists = count > 0
        if isinstance(rules.foods, Tensor):
            exists = exists & (rules.foods > k)
        place = place.clamp_(max=len(tables.square) - 1)
        found.append(torch.where(exists, tables.square.index_select(0, place), -1))
        if k + 1 < noise.shape[1]:
            free = free & tables.distant.index_select(0, place)
    return torch.stack(found, 1)


@dataclass(frozen=True)
class _Tables:
    """Tables of the I squares on which food can be placed, of a field with C squares.

    Attributes:
        square: [I] int64, row x side + column.
        unoccupied: [C, I] bool, False where an agent on the first square prevents food.
        distant: [I, I] bool, False where food on the first square prevents food.
        within: [side + 1, I] bool, True for squares of a field of that side length.
    """

    square: Tensor
    unoccupied: Tensor
    distant: Tensor
    within: Tensor


@functools.cache
def spawn_tables(side: int, device: torch.device) -> _Tables:
    inner = torch.arange(1, side - 1)
    rows, columns = inner.repeat_interleave(side - 2), inner.repeat(side - 2)
    square = rows * side + columns
    down, across = (rows[:, None] - rows).abs(), (columns[:, None] - columns).abs()
    around, straight = REACH
    near = (down <= around) & (across <= around)
    line = ((down == 0) & (across <= straight)) | ((across == 0) & (down <= straight))
    last = torch.arange(side + 1)[:, None] - 2
    parts = (square, torch.arange(side * side)[:, None] != square, ~(near | line), (rows <= last) & (columns <= last))
    return _Tables(*(part.to(device) for part in parts))
