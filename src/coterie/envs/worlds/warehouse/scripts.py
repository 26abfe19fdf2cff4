"""A scripted policy that needs no training: a courier that acts on what each agent observes.

Couriers drive past all shelves on the one-way streets of a regular warehouse, where they never meet head-on. One that
sees a requested shelf next to its cell fetches it, takes the shortest street to a goal, and puts the shelf into the
first free place that it passes.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.config.schema import Choice
from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.warehouse.layout import DOWN, LEFT, RIGHT, STEPS, UP, Floor, regular_floor
from coterie.envs.worlds.warehouse.observations import OWN, SEEN
from coterie.envs.worlds.warehouse.warehouse import FORWARD, ROLE, TOGGLE, TURN_LEFT, TURN_RIGHT

Place = tuple[int, int]
"""Column and row."""


@dataclass(frozen=True)
class Streets:
    """Directions to drive in, by row * width + column.

    Attributes:
        tour: [C] int64, along the tour past all shelves; from elsewhere the way to it.
        to_goal: [C] int64, along the shortest way to a goal on the streets.
        highway: [C] bool.
        ahead: [C * 4] int64, cell ahead at index cell * 4 + direction; the cell itself at a wall.
        drive: [4, 4] int64, action that leads from the direction of the row to that of the column, or drives forward.
    """

    tour: Tensor
    to_goal: Tensor
    highway: Tensor
    ahead: Tensor
    drive: Tensor


_DRIVE = (
    (FORWARD, TURN_RIGHT, TURN_LEFT, TURN_RIGHT),
    (TURN_RIGHT, FORWARD, TURN_RIGHT, TURN_LEFT),
    (TURN_RIGHT, TURN_LEFT, FORWARD, TURN_RIGHT),
    (TURN_LEFT, TURN_RIGHT, TURN_RIGHT, FORWARD),
)


@functools.cache
def streets(floor: Floor, device: torch.device) -> Streets:
    """Plans the streets of a floor of `regular_floor`.

    The tour goes up the first aisle and down the next, and so on, and back along the row of the goals. Every shelf is
    next to it. Streets to the goals leave it on the highways between shelf blocks and above the goals.
    """
    height, width = floor.size
    tour = _tour(height, width)
    highways = {(x, y) for y in range(height) for x in range(width) if floor.rows[y][x] != "x"}
    two_way = {place: {_next(place, d): d for d in range(4) if _next(place, d) in highways} for place in highways}
    onto_tour = _nearest(two_way, set(tour))
    drive = {place: tour.get(place, onto_tour.get(place, UP)) for place in highways}
    edges = {place: {_next(place, direction): direction} for place, direction in drive.items()}
    for place in highways:
        for direction in _shortcuts(place, floor):
            to = _next(place, direction)
            if to in highways and place not in edges[to]:
                edges[place][to] = direction
    to_goal = _nearest(edges, set(floor.goals))
    for y in range(height):
        for x in range(width):  # every shelf has an aisle next to it
            if (x, y) not in highways:
                drive[x, y] = to_goal[x, y] = LEFT if x % 3 == 1 else RIGHT
    places = [(x, y) for y in range(height) for x in range(width)]
    ahead = [_clamped(_next(place, d), floor) for place in places for d in range(4)]
    return Streets(
        tour=torch.tensor([drive[place] for place in places], device=device),
        to_goal=torch.tensor([to_goal.get(place, DOWN) for place in places], device=device),
        highway=torch.tensor([place in highways for place in places], device=device),
        ahead=torch.tensor([y * width + x for x, y in ahead], device=device),
        drive=torch.tensor(_DRIVE, device=device),
    )


def _tour(height: int, width: int) -> dict[Place, int]:
    """Directions of the tour."""
    found: dict[Place, int] = {}
    for i, x in enumerate(range(0, width, 3)):
        first, last = x == 0, x == width - 1
        for y in range(height if first or last else height - 1):
            found[x, y] = DOWN if i % 2 else UP
        turn = height - 2 if i % 2 else 0
        for across in range(x, x + (0 if last else 3)):
            found[across, turn] = RIGHT
    for x in range(1, width):
        found[x, height - 1] = LEFT
    return found


def _shortcuts(place: Place, floor: Floor) -> list[int]:
    """Directions toward the goals: down between the aisles next to them, and toward the middle on all rows."""
    x, _ = place
    low, high = min(x for x, _ in floor.goals), max(x for x, _ in floor.goals)
    return [RIGHT] if x < low else [LEFT] if x > high else [DOWN]


def _next(place: Place, direction: int) -> Place:
    return place[0] + STEPS[direction][0], place[1] + STEPS[direction][1]


def _clamped(place: Place, floor: Floor) -> Place:
    height, width = floor.size
    return min(max(place[0], 0), width - 1), min(max(place[1], 0), height - 1)


def _nearest(edges: dict[Place, dict[Place, int]], targets: set[Place]) -> dict[Place, int]:
    """First direction of a shortest way to one of `targets` from every other place that has one."""
    before: dict[Place, list[tuple[Place, int]]] = {}
    for place in sorted(edges):
        for to, direction in edges[place].items():
            before.setdefault(to, []).append((place, direction))
    found: dict[Place, int] = {}
    queue = deque(sorted(targets))
    while queue:
        for place, direction in before.get(queue.popleft(), []):
            if place not in targets and place not in found:
                found[place] = direction
                queue.append(place)
    return found


Act = Callable[[Timestep], dict[str, Action]]


def couriers(team: TeamSpec, env: Choice) -> Act:
    """warehouse/*: agents deliver requested shelves and put them back.

    Raises:
        ValueError: If observations do not show the cells around an agent, or the floor is a drawing.
    """
    config: Any = env.params
    if config.layout is not None:
        raise ValueError("env.layout: the courier plans its streets from env.shelf_rows and env.shelf_columns only.")
    if config.observation_type != "flattened" or config.sensor_range < 1:
        raise ValueError("the courier reads env.observation_type=flattened with env.sensor_range of at least 1.")
    floor = regular_floor(config.shelf_rows, config.shelf_columns, config.column_height)
    (height, width), side = floor.size, 2 * config.sensor_range + 1
    middle = side * side // 2
    around = [middle, middle - side, middle + side, middle - 1, middle + 1]  # own cell, up, down, left, right

    def act(timestep: Timestep) -> dict[str, Action]:
        obs = timestep.obs[ROLE]
        plan = streets(floor, obs.device)
        x, y = obs[..., 0], obs[..., 1]
        if config.normalized_coordinates:
            x, y = x * (width - 1), y * (height - 1)
        cell = (y * width + x).round().long()
        loaded, direction = obs[..., 2] > 0, obs[..., 3:7].argmax(-1)
        seen = obs[..., OWN:].unflatten(-1, (side * side, SEEN + config.msg_bits))[..., around, :]
        agent, shelf, requested = seen[..., 1:, 0] > 0, seen[..., 1:, -2] > 0, seen[..., 1:, -1] > 0
        wanted = seen[..., 0, -1] > 0  # the shelf on the agent's own cell
        next_cell = plan.ahead.view(-1, 4)[cell]
        at_home = ~plan.highway[cell]
        place = ~plan.highway[next_cell] & ~agent & (next_cell != cell[..., None])
        inviting = place & torch.where(loaded[..., None], ~shelf, requested) & ~(loaded & wanted)[..., None]
        inviting = inviting & ~at_home[..., None]
        heading = torch.where(loaded & wanted, plan.to_goal[cell], plan.tour[cell])
        heading = torch.where(inviting.any(-1), inviting.byte().argmax(-1), heading)
        drive = plan.drive[direction, heading]
        toggles = at_home & (loaded != wanted)
        return _action(torch.where(toggles, TOGGLE, drive), config.msg_bits)

    return act


def _action(choice: Tensor, msg_bits: int) -> dict[str, Action]:
    """Actions with empty messages."""
    return {ROLE: Action(discrete=torch.nn.functional.pad(choice.unsqueeze(-1), (0, msg_bits)))}
