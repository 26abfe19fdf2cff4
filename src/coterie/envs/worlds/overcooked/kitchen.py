"""The kitchen: a drawing, its tables of cells, and the rules of the action `interact`.

Rows and columns count from the upper left corner. A cell is `row * width + column`. The edge of a kitchen is never
floor, so that the cell ahead of an agent is always part of the kitchen. The rules of `interact` are written for one
agent and tabulated for batches.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

FLOOR, COUNTER, ONIONS, DISHES, POT, WINDOW = range(6)
"""Kinds of cells."""
_KINDS = {"X": COUNTER, "O": ONIONS, "D": DISHES, "P": POT, "S": WINDOW}
_FREE = " .12"

NORTH, SOUTH, EAST, WEST, STAY, INTERACT = range(6)
ACTIONS = ("north", "south", "east", "west", "stay", "interact")
STEPS: tuple[tuple[int, int], ...] = ((0, -1), (0, 1), (1, 0), (-1, 0))
"""Displacement (column, row) of the four directions, in the order of the actions."""


@dataclass(frozen=True)
class Kitchen:
    """A kitchen.

    Attributes:
        height: Number of rows.
        width: Number of columns.
        kinds: Kind of every cell, row by row.
        starts: Cells where the two agents start.
    """

    height: int
    width: int
    kinds: tuple[int, ...]
    starts: tuple[int, int]

    @property
    def pots(self) -> tuple[int, ...]:
        """Cells of the pots."""
        return self.cells(POT)

    def cells(self, kind: int) -> tuple[int, ...]:
        """Cells of a kind."""
        return tuple(cell for cell, found in enumerate(self.kinds) if found == kind)

    def ahead(self, cell: int, direction: int) -> int:
        """The next cell in a direction."""
        column, row = STEPS[direction]
        return cell + row * self.width + column


@functools.cache
def drawn_kitchen(rows: tuple[str, ...]) -> Kitchen:
    """Parses a drawing with one string per row, see `LAYOUTS`. Free cells are spaces or `.`.

    Raises:
        ValueError: If it has other characters, rows of different lengths, floor at the edge, not exactly one `1` and
            one `2`, or no pot, onions, dishes or serving window.
    """
    if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
        sizes = ", ".join(str(len(row)) for row in rows)
        raise ValueError(f"layout: rows of {sizes} cells. Use rows of one length.")
    height, width, cells = len(rows), len(rows[0]), "".join(rows)
    unknown = sorted(set(cells) - set(_KINDS) - set(_FREE))
    if unknown:
        raise ValueError(
            f"layout: '{unknown[0]}' is none of X (counter), O (onions), D (dishes), P (pot), S (serving window), "
            ". (floor), 1 and 2 (agents)."
        )
    for mark, name in (("1", "first agent"), ("2", "second agent")):
        if cells.count(mark) != 1:
            raise ValueError(f"layout: there are {cells.count(mark)} cells {mark} for the {name}. Mark exactly one.")
    for mark, name in (("P", "pot"), ("O", "onions"), ("D", "dishes"), ("S", "serving window")):
        if mark not in cells:
            raise ValueError(f"layout: there is no {mark} ({name}). Mark at least one cell with {mark}.")
    edge = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
    if set(edge) & set(_FREE):
        raise ValueError("layout: there is floor at the edge. Surround the floor with counters, X.")
    kinds = tuple(_KINDS.get(mark, FLOOR) for mark in cells)
    return Kitchen(height, width, kinds, (cells.index("1"), cells.index("2")))


@dataclass(frozen=True)
class Tables:
    """Constants of a kitchen on one device. C is the number of cells, P of pots.

    Attributes:
        kind: [C] int64, kind of each cell.
        counter: [C] int64, 1 for counters.
        pots: [P] int64, cells of the pots.
        faced: [C * 4] int64, cell ahead at index cell * 4 + direction, for cells of the floor.
        target: [C * 6] int64, cell after an action without other agents at index cell * 6 + action.
        turned: [6 * 4] int64, direction after an action at index action * 4 + direction.
        starts: [2] int64, cells where the agents start.
        pairs: [K, 2] int64, all pairs of different cells of the floor.
    """

    kind: Tensor
    counter: Tensor
    pots: Tensor
    faced: Tensor
    target: Tensor
    turned: Tensor
    starts: Tensor
    pairs: Tensor


@functools.cache
def tables(kitchen: Kitchen, device: torch.device) -> Tables:
    """Builds the tables of a kitchen."""
    floor = kitchen.cells(FLOOR)
    faced = [[cell] * 4 for cell in range(len(kitchen.kinds))]
    target = [[cell] * 6 for cell in range(len(kitchen.kinds))]
    for cell in floor:
        for direction in range(4):
            ahead = faced[cell][direction] = kitchen.ahead(cell, direction)
            if kitchen.kinds[ahead] == FLOOR:
                target[cell][direction] = ahead
    turned = [[action if action < STAY else direction for direction in range(4)] for action in range(6)]
    kind = torch.tensor(kitchen.kinds, device=device)
    return Tables(
        kind=kind,
        counter=(kind == COUNTER).long(),
        pots=torch.tensor(kitchen.pots, device=device),
        faced=torch.tensor(faced, device=device).flatten(),
        target=torch.tensor(target, device=device).flatten(),
        turned=torch.tensor(turned, device=device).flatten(),
        starts=torch.tensor(kitchen.starts, device=device),
        pairs=torch.tensor([(a, b) for a in floor for b in floor if a != b], device=device),
    )


NOTHING, ONION, DISH, SOUP = 0, 1, 2, 2
"""Items. `SOUP + n` is a soup of n onions, in a pot or on a dish."""
MAX_ONIONS = 3
ITEMS = SOUP + MAX_ONIONS + 1
KINDS = 6
IDLE, COOKING, READY = range(3)
"""Phases of a pot. An empty pot is idle."""
PHASES = 3
KEPT, LIT, EMPTIED = range(3)
"""Changes of a pot's clock: none, cooking starts, the soup was taken."""


class Interaction(NamedTuple):
    """The result of an interaction.

    Attributes:
        held: Item that the agent holds afterwards.
        item: Item on the cell ahead afterwards.
        clock: Change of the pot's clock.
        potted: 1 if an onion was put into a pot.
        took_dish: 1 if a dish was taken from the dispenser.
        plated: 1 if a soup was taken from a pot.
        served: 1 if a soup of three onions was served.
    """

    held: int
    item: int
    clock: int = KEPT
    potted: int = 0
    took_dish: int = 0
    plated: int = 0
    served: int = 0


def interact(kind: int, held: int, item: int, phase: int, starts_by_hand: bool) -> Interaction:
    """Returns the result of interacting with a cell.

    Args:
        kind: Kind of the cell.
        held: Item in the agent's hands.
        item: Item on the cell or in the pot.
        phase: Phase of the pot; `IDLE` for other cells.
        starts_by_hand: True if an agent with empty hands starts to cook a soup.
    """
    empty_handed = held == NOTHING
    if kind == COUNTER and empty_handed != (item == NOTHING):
        return Interaction(item, held)
    if kind == ONIONS and empty_handed:
        return Interaction(ONION, item)
    if kind == DISHES and empty_handed:
        return Interaction(DISH, item, took_dish=1)
    if kind == POT:
        if held == DISH and phase == READY:
            return Interaction(item, NOTHING, EMPTIED, plated=1)
        if held == ONION and phase == IDLE and item < SOUP + MAX_ONIONS:
            return Interaction(NOTHING, max(item, SOUP) + 1, potted=1)
        if empty_handed and phase == IDLE and item > SOUP and starts_by_hand:
            return Interaction(held, item, LIT)
    if kind == WINDOW and held > SOUP:
        return Interaction(NOTHING, item, served=int(held == SOUP + MAX_ONIONS))
    return Interaction(held, item)


@functools.cache
def interaction_table(starts_by_hand: bool, device: torch.device) -> Tensor:
    """Returns the results of all interactions, [R, 7] int64, with the fields of `Interaction` in its columns.

    The row is `((kind * ITEMS + held) * ITEMS + item) * PHASES + phase`.
    """
    cases = product(range(KINDS), range(ITEMS), range(ITEMS), range(PHASES))
    return torch.tensor([interact(*case, starts_by_hand) for case in cases], device=device)
