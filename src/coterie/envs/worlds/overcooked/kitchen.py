"""The kitchen: a drawing, and its tables of cells.

Rows and columns count from the upper left corner. A cell is `row * width + column`. The edge of a kitchen is never
floor, so that the cell ahead of an agent is always part of the kitchen.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

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
