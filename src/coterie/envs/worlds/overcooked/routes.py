"""Shortest routes in a kitchen, for the scripted cooks."""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.envs.worlds.overcooked.kitchen import FLOOR, INTERACT, STAY, Kitchen

FAR = 1000
"""Length of a route that does not exist."""


@dataclass(frozen=True)
class Routes:
    """Routes of an agent at a cell and with a direction to face another cell. C is the number of cells.

    Attributes:
        length: [C + 1, C * 4, C] int64, number of actions until the agent faces a cell, while another agent is on the
            cell of the first index, or nowhere for the index C.
        action: [C + 1, C * 4, C] int64, the first of these actions; to interact if the agent faces the cell.
        escape: [C, C] int64, a move from the first cell that does not lead to the second one; to stay if there is none.
    """

    length: Tensor
    action: Tensor
    escape: Tensor


@functools.cache
def routes(kitchen: Kitchen, device: torch.device) -> Routes:
    """Computes all routes of a kitchen."""
    count = len(kitchen.kinds)
    floor = kitchen.cells(FLOOR)
    found: list[tuple[int, ...]] = []
    for occupied in (*floor, count):
        free = frozenset(floor) - {occupied}
        before = _predecessors(kitchen, free)
        for target in set(range(count)) - set(floor):
            ways = _found(kitchen, free, before, target)
            found += [(occupied, state, target, *way) for state, way in ways.items()]
    *place, steps, first = torch.tensor(found).unbind(1)
    length = torch.full((count + 1, count * 4, count), FAR)
    action = torch.full_like(length, STAY)
    length[tuple(place)], action[tuple(place)] = steps, first
    escape = torch.full((count, count), STAY)
    for cell in floor:
        for other in range(count):
            moves = [move for move in range(4) if kitchen.ahead(cell, move) in set(floor) - {other}]
            escape[cell, other] = moves[0] if moves else STAY
    return Routes(length.to(device), action.to(device), escape.to(device))


def _predecessors(kitchen: Kitchen, free: frozenset[int]) -> dict[int, list[tuple[int, int]]]:
    """States `cell * 4 + direction` and moves that lead to each state."""
    found: dict[int, list[tuple[int, int]]] = {}
    for cell in sorted(free):
        for move in range(4):
            ahead = kitchen.ahead(cell, move)
            after = (ahead if ahead in free else cell) * 4 + move
            found.setdefault(after, []).extend((cell * 4 + direction, move) for direction in range(4))
    return found


def _found(
    kitchen: Kitchen, free: frozenset[int], before: dict[int, list[tuple[int, int]]], target: int
) -> dict[int, tuple[int, int]]:
    """Length and first action of the route from each state to a state that faces the target."""
    facing = [cell * 4 + way for cell in sorted(free) for way in range(4) if kitchen.ahead(cell, way) == target]
    found: dict[int, tuple[int, int]] = dict.fromkeys(facing, (0, INTERACT))
    queue = deque(facing)
    while queue:
        state = queue.popleft()
        for earlier, move in before.get(state, []):
            if earlier not in found:
                found[earlier] = (found[state][0] + 1, move)
                queue.append(earlier)
    return found
