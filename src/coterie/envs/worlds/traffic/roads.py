"""Roads and routes: one-way lanes on a grid, and the squares that cars pass from their arrival to the edge."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor

Level = Literal["easy", "medium", "hard"]
Square = tuple[int, int]
"""Row and column."""

_DOWN, _UP, _RIGHT, _LEFT = (1, 0), (-1, 0), (0, 1), (0, -1)
_Heading = tuple[int, int]
_Lane = tuple[_Heading, int]
"""Change of row and column per step, and the lane's row or column."""


def lanes(level: Level, size: int) -> tuple[_Lane, ...]:
    """Returns the lanes of a grid in the order of their arrivals. Cars drive on the right."""
    if level == "easy":
        return (_DOWN, size // 2), (_RIGHT, size // 2)
    if level == "medium":
        half = size // 2
        return (_DOWN, half - 1), (_UP, half), (_RIGHT, half), (_LEFT, half - 1)
    first, second = size // 3, 2 * size // 3
    return (
        *((_DOWN, first - 2), (_DOWN, second)),
        *((_RIGHT, first - 1), (_RIGHT, second + 1)),
        *((_UP, first - 1), (_UP, second + 1)),
        *((_LEFT, first - 2), (_LEFT, second)),
    )


def routes(level: Level, size: int) -> list[list[list[Square]]]:
    """Returns the routes of each arrival, as squares from the arrival to the edge.

    A route goes straight, right or left at its first junctions: at none in `easy`, one in `medium`, two in `hard`. At
    all others it goes straight.
    """
    junctions = {"easy": 0, "medium": 1, "hard": 2}[level]
    grid = lanes(level, size)
    headings: dict[Square, set[_Heading]] = {}
    for lane in grid:
        for at in _drive({}, lane, size, ()):
            headings.setdefault(at, set()).add(lane[0])
    found: list[list[list[Square]]] = []
    for lane in grid:
        paths: list[list[Square]] = []
        for turns in product(("straight", "right", "left"), repeat=junctions):
            path = _drive(headings, lane, size, turns)
            if path not in paths:  # the edge may come before the second junction
                paths.append(path)
        found.append(paths)
    return found


def _drive(headings: dict[Square, set[_Heading]], lane: _Lane, size: int, turns: Sequence[str]) -> list[Square]:
    """Returns the squares of a route.

    Args:
        headings: Headings of the lanes on each square.
        turns: `straight`, `right` or `left` at each junction in turn; straight at the remaining ones.
    """
    heading, offset = lane
    start = 0 if sum(heading) > 0 else size - 1
    at = (start, offset) if heading[1] == 0 else (offset, start)
    plan, path, decided = list(turns), [], False
    while 0 <= at[0] < size and 0 <= at[1] < size:
        path.append(at)
        crossing = headings.get(at, set()) - {heading}
        if not crossing:
            decided = False
        elif plan and not decided:
            right, left = (heading[1], -heading[0]), (-heading[1], heading[0])
            if plan[0] == "right" and right in crossing:
                heading, decided = right, True
            elif left in crossing:  # the second crossing of a junction
                heading, decided = left if plan[0] == "left" else heading, True
            if decided:
                plan.pop(0)
        at = (at[0] + heading[0], at[1] + heading[1])
    return path


@dataclass(frozen=True)
class Roads:
    """Lookup tables of a grid with P arrivals, R routes of at most L squares, and Q road squares in row-major order.

    The routes of an arrival are adjacent, and all arrivals have the same number of them. Index Q stands for squares
    that are no road.

    Attributes:
        squares: [Q, 2] int64, row and column.
        route: [R, L] int64, road squares of each route in order; Q after its end.
        length: [R] int64, number of squares of each route.
        window: [Q + 1, W * W] int64, the squares within `vision` of each road square in row-major order; Q around Q.
    """

    squares: Tensor
    route: Tensor
    length: Tensor
    window: Tensor


@functools.cache
def roads(level: Level, size: int, vision: int) -> Roads:
    """Builds the tables."""
    paths = [path for arrival in routes(level, size) for path in arrival]
    squares = sorted({square for path in paths for square in path})
    index = {square: number for number, square in enumerate(squares)}
    none, longest = len(squares), max(len(path) for path in paths)
    route = [[index[square] for square in path] + [none] * (longest - len(path)) for path in paths]
    around = range(-vision, vision + 1)
    window = [
        [index.get((row + down, column + across), none) for down in around for across in around]
        for row, column in squares
    ]
    window.append([none] * len(around) ** 2)
    length = torch.tensor([len(path) for path in paths])
    return Roads(torch.tensor(squares), torch.tensor(route), length, torch.tensor(window))
