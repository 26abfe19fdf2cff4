"""Scripted cooks: a baseline that needs no training.

The first agent decides first and has the right of way. Each agent takes the nearest thing that is missing: a dish for
a soup, otherwise an onion for a pot. An agent that cannot reach what the next step needs puts things on counters that
the other one can reach.
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
from coterie.envs.worlds.overcooked.kitchen import (
    COUNTER,
    DISH,
    DISHES,
    FLOOR,
    INTERACT,
    MAX_ONIONS,
    NOTHING,
    ONION,
    ONIONS,
    POT,
    SOUP,
    STAY,
    WINDOW,
    Kitchen,
    Tables,
    tables,
)
from coterie.envs.worlds.overcooked.observations import LAYERS
from coterie.envs.worlds.overcooked.overcooked import ROLE, kitchen_of

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


Act = Callable[[Timestep], dict[str, Action]]
_WAIT = 3
"""Steps that the second agent counts for waiting until the first one leaves its only way."""
_SUPPLY = 2
"""Onions that are put on counters for the other agent at a time."""
_FULLEST = 8
"""Steps that a pot may be farther away for each onion that it has more than another one."""


def cook(team: TeamSpec, env: Choice) -> Act:
    """overcooked/*: both agents cook and serve soups of three onions."""
    params: Any = env.params
    kitchen = kitchen_of(env.name.partition("/")[2], params)

    def act(timestep: Timestep) -> dict[str, Action]:
        obs = timestep.obs[ROLE]
        scene = _scene(obs[:, 0].reshape(len(obs), -1, len(LAYERS)), tables(kitchen, obs.device))
        return {ROLE: Action(discrete=_actions(scene, routes(kitchen, obs.device)).unsqueeze(-1))}

    return act


@dataclass(frozen=True)
class _Scene:
    """Content of the observations. B is the number of environments, C of cells.

    Attributes:
        room: Tables of the kitchen.
        cell: [B, 2].
        place: [B, 2], cell * 4 + direction.
        held: Items in the agents' hands, [B, 2]; soups as `SOUP + 1`.
        item: Items on counters, [B, C]; soups as `SOUP + 1`.
        onions: Onions in pots, [B, C].
        soup: [B, C] bool, pots whose soup is cooking or ready.
        remaining: [B, C], steps until the soup is ready.
    """

    room: Tables
    cell: Tensor
    place: Tensor
    held: Tensor
    item: Tensor
    onions: Tensor
    soup: Tensor
    remaining: Tensor

    def of_kind(self, kind: int) -> Tensor:
        """[B, C] bool, True for cells of a kind."""
        return (self.room.kind == kind).expand_as(self.soup)

    def ingredients(self) -> Tensor:
        """[B, C] bool, True where there are onions to take."""
        return self.of_kind(ONIONS) | (self.item == ONION)

    def dishes(self) -> Tensor:
        """[B, C] bool, True where there are dishes to take."""
        return self.of_kind(DISHES) | (self.item == DISH)

    def open_pots(self) -> Tensor:
        """[B, C] bool, True for pots that take another onion."""
        return self.of_kind(POT) & ~self.soup & (self.onions < MAX_ONIONS)

    def unlit_pots(self) -> Tensor:
        """[B, C] bool, True for full pots that are not cooking."""
        return ~self.soup & (self.onions == MAX_ONIONS)

    def soups(self) -> Tensor:
        """[B], number of soups that need a dish."""
        return (self.soup | self.unlit_pots()).sum(1)

    def lacks_dishes(self, i: int) -> Tensor:
        """[B] bool, True if there are more soups than dishes in the hands of the agent other than `i`."""
        return self.soups() > (self.held[:, 1 - i] == DISH)


def _scene(seen: Tensor, room: Tables) -> _Scene:
    """Reads the first agent's observation [B, C, 26]."""
    layer = {name: seen[..., index] for index, name in enumerate(LAYERS)}
    cell = torch.stack((layer["own_position"].argmax(1), layer["other_position"].argmax(1)), 1)
    facing = [seen[..., 2 + 4 * i : 6 + 4 * i].sum(1).argmax(1) for i in range(2)]
    pot, onions_in_soup = room.kind == POT, layer["onions_in_soup"]
    item = ONION * layer["onions"] + DISH * layer["dishes"] + (SOUP + 1) * ((onions_in_soup > 0) & ~pot)
    item = item.long()
    return _Scene(
        room=room,
        cell=cell,
        place=cell * 4 + torch.stack(facing, 1),
        held=item.gather(1, cell),
        item=item.scatter(1, cell, NOTHING),
        onions=((layer["onions_in_pot"] + onions_in_soup) * pot).long(),
        soup=(onions_in_soup > 0) & pot,
        remaining=layer["remaining_time"].long(),
    )


def _actions(scene: _Scene, ways: Routes) -> Tensor:
    """Actions [B, 2]."""
    count = scene.item.shape[1]
    free = [ways.length[count, scene.place[:, i]] for i in range(2)]
    around = ways.length[scene.cell[:, 0], scene.place[:, 1]]
    blocked = around >= FAR
    cost = [free[0], torch.where(blocked, free[1] + _WAIT * (free[1] > 0), around)]
    reach = [length < FAR for length in free]
    goals: list[Tensor] = []
    for i in range(2):  # the second agent knows the goal of the first one
        goals.append(_goal(scene, i, cost[i], reach, goals))
    goal = [each.clamp(min=0).unsqueeze(1) for each in goals]
    straight = [ways.action[count, scene.place[:, i]].gather(1, goal[i]) for i in range(2)]
    detour = ways.action[scene.cell[:, 0], scene.place[:, 1]].gather(1, goal[1])
    moves = straight[0], torch.where(blocked.gather(1, goal[1]), straight[1], detour)
    chosen = [torch.where(goals[i] < 0, STAY, moves[i].squeeze(1)) for i in range(2)]
    return torch.stack(_yielded(scene, ways, chosen, goals), 1)


def _goal(scene: _Scene, i: int, cost: Tensor, reach: list[Tensor], planned: list[Tensor]) -> Tensor:
    """Cell [B] that agent `i` wants to interact with, -1 for none. `planned` has the goal of the agent before it."""
    counters, soups = scene.of_kind(COUNTER), scene.soups()
    empty = counters & (scene.item == NOTHING)
    shared = empty & reach[1 - i]
    has_pot = (scene.of_kind(POT) & reach[i]).any(1)
    wants_dish, wants_onion = _wants(scene, i, has_pot, reach, planned)
    kept = ~counters | has_pot.unsqueeze(1)  # a supplier leaves things on counters
    soon = scene.soup & (scene.remaining <= cost + 1)
    can_serve = (scene.of_kind(WINDOW) & reach[i]).any(1)
    always = torch.ones_like(has_pot)
    # By the held item: cells to interact with, and in which environments. The first that can be reached counts.
    options = {
        SOUP + 1: [(scene.of_kind(WINDOW), always), (shared, always)],
        ONION: [(scene.open_pots(), always), (shared, ~has_pot), (empty, has_pot & scene.lacks_dishes(i))],
        DISH: [(soon, always), (shared, ~has_pot), (empty, has_pot & (soups == 0))],
        NOTHING: [
            (scene.unlit_pots(), always),
            (scene.item > SOUP, can_serve),
            (scene.dishes() & kept, wants_dish),
            (scene.ingredients() & kept, wants_onion),
        ],
    }
    goal = torch.full_like(soups, -1)
    far = cost - _FULLEST * scene.onions * scene.open_pots()
    for item, choices in options.items():
        for cells, condition in choices:
            allowed = cells & reach[i]
            takes = (goal < 0) & (scene.held[:, i] == item) & condition & allowed.any(1)
            goal = torch.where(takes, far.masked_fill(~allowed, 2 * FAR).argmin(1), goal)
    return goal


def _wants(scene: _Scene, i: int, has_pot: Tensor, reach: list[Tensor], planned: list[Tensor]) -> tuple[Tensor, Tensor]:
    """True where agent `i` should get a dish and where it should get an onion, [B] bool each."""
    other = scene.held[:, 1 - i]
    onions, dishes = (other == ONION).long(), (other == DISH).long()
    if planned:
        goal, free = planned[0].clamp(min=0).unsqueeze(1), (planned[0] >= 0) & (other == NOTHING)
        onions = onions + (free & scene.ingredients().gather(1, goal).squeeze(1))
        dishes = dishes + (free & scene.dishes().gather(1, goal).squeeze(1))
    soups = scene.soups()
    missing = ((MAX_ONIONS - scene.onions) * scene.open_pots()).sum(1)
    spare = (soups > 0) & (dishes >= soups)  # time to get an onion for the next soup
    # A supplier counts what it has put on counters for the other agent.
    supplied = [((scene.item == item) & reach[1 - i]).sum(1) for item in (ONION, DISH)]
    wants_onion = torch.where(has_pot, missing + spare > onions, missing.clamp(max=_SUPPLY) > onions + supplied[0])
    return torch.where(has_pot, soups > dishes, soups > dishes + supplied[1]), wants_onion


def _yielded(scene: _Scene, ways: Routes, chosen: list[Tensor], goals: list[Tensor]) -> list[Tensor]:
    """Actions after the agents have made way for each other."""
    room, cell = scene.room, scene.cell
    to = [room.target[cell[:, i] * 6 + chosen[i]] for i in range(2)]
    wants = [to[i] == cell[:, 1 - i] for i in range(2)]
    busy = chosen[1] == INTERACT
    leaves = (to[1] != cell[:, 1]) & (to[1] != cell[:, 0])
    second = torch.where(wants[0] & ~busy & ~leaves, ways.escape[cell[:, 1], cell[:, 0]], chosen[1])
    first = torch.where(wants[1] & (goals[0] < 0), ways.escape[cell[:, 0], cell[:, 1]], chosen[0])
    to = [room.target[cell[:, i] * 6 + action] for i, action in enumerate((first, second))]
    meets = (to[0] == to[1]) & (to[1] != cell[:, 1])
    return [first, torch.where(meets, STAY, second)]
