"""Moves of the agents of a warehouse: the rule of the package `rware` for batches of environments.

Every agent points from its cell to the cell that it wants, its own if it does not move. An agent on a cycle of three or
more cells moves, agents that would swap cells do not, and agents that wait for a cycle do not. A chain that ends at a
free cell moves as a whole. Where several agents want one cell, the one with the longest chain behind it moves. Ties go
to the cell that `networkx` visits first, see `_visited_first`.

The package resolves conflicts between agents with `networkx`, which visits the cells of small components in the order
in which Python iterates over a set. The order follows from the hashes of (column, row) and from how a set stores its
items: open addressing in a table that grows from 8 to 32, 128, .. places. Source: CPython, `Objects/setobject.c`,
`set_add_entry`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_NEIGHBORS = 9  # places that are tried next to each other
_SHIFT = 5


def table_sizes(num_items: int) -> list[int]:
    """Sizes of the tables that a set of `num_items` goes through."""
    found = [8]
    while num_items * 5 >= (found[-1] - 1) * 3:
        found.append(4 * found[-1])
    return found


def _limit(size: int) -> int:
    """Number of items with which a table of this size grows."""
    return -(-(size - 1) * 3 // 5)


def probes(value: int, size: int) -> list[int]:
    """Places of a table in the order in which an item with the hash `value` tries them, each once."""
    mask, perturbation = size - 1, value % 2**64
    at, found = perturbation & mask, dict[int, None]()
    while len(found) < size:
        for place in range(at, at + _NEIGHBORS + 1) if at + _NEIGHBORS <= mask else (at,):
            found.setdefault(place)
        perturbation >>= _SHIFT
        at = (at * 5 + 1 + perturbation) & mask
    return list(found)


@functools.cache
def probe_table(columns: int, rows: int, border: int, size: int, device: torch.device) -> Tensor:
    """Probes of every padded cell of a floor, int64 [P, size]."""
    width, height = columns + 2 * border, rows + 2 * border
    found = torch.zeros(width * height, size, dtype=torch.int64)
    for y in range(rows):
        for x in range(columns):
            found[(y + border) * width + x + border] = torch.tensor(probes(hash((x, y)), size))
    return found.to(device)


def set_order(cells: Tensor, count: Tensor, probes_of: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Adds cells to empty sets one by one.

    Args:
        cells: [R, K] int64, the cells in the order in which they are added.
        count: [R] int64, the number of cells of each set, at most K; the others are ignored.
        probes_of: The probes of all cells, by the size of the table: at least `table_sizes(K)`.

    Returns:
        The place of every given cell in the final table [R, K], and the indices 0 .. K - 1 of the given cells in the
        order of the iteration [R, K]; entries from `count` on have no meaning.
    """
    num_sets, num_items = cells.shape
    size, final, later = 8, 0, torch.iinfo(torch.int64).max
    table = cells.new_full((num_sets, size), -1)
    place = torch.full_like(cells, later)
    for k in range(num_items):
        item = torch.full_like(count, k)
        table = _insert(table, cells, item, k < count, probes_of[size])
        if k + 1 == _limit(size):
            place = torch.where(((count <= k) & (count > final))[:, None], _places(table, place), place)
            final = k
            size *= 4
            grown = cells.new_full((num_sets, size), -1)
            for item in table.unbind(1):
                grown = _insert(grown, cells, item, item >= 0, probes_of[size])
            table = grown
    place = torch.where((count > final)[:, None], _places(table, place), place)
    return place, place.argsort(1)


def _insert(table: Tensor, cells: Tensor, item: Tensor, valid: Tensor, probes_of: Tensor) -> Tensor:
    """Puts the cell of index `item` [R] into the first free place of its probes, where `valid` [R]."""
    sequence = probes_of[cells.gather(1, item.clamp(min=0)[:, None]).squeeze(1)]
    free = (table.gather(1, sequence) < 0).byte().argmax(1, keepdim=True)
    slot = sequence.gather(1, free)
    return table.scatter(1, slot, torch.where(valid[:, None], item[:, None], table.gather(1, slot)))


def _places(table: Tensor, like: Tensor) -> Tensor:
    """[R, K]: the place of each item in the table, the largest number for items that are not in it."""
    slots = torch.arange(table.shape[1], device=table.device).expand_as(table)
    found = torch.full_like(like, torch.iinfo(like.dtype).max)
    wide = torch.cat((found, found[:, :1]), 1)
    return wide.scatter(1, torch.where(table < 0, like.shape[1], table), slots)[:, :-1]


Probes = Callable[[int, torch.device], dict[int, Tensor]]
"""Returns the probes of all cells for sets of at most a number of items, see `set_order`."""


def moving(cell: Tensor, target: Tensor, occupant: Tensor, probes: Probes) -> Tensor:
    """Returns which agents reach their targets.

    Args:
        cell: [B, N] int64, different cells of the agents.
        target: [B, N] int64, cells that they want.
        occupant: [B, N] int64, the agent on the target; N for none.
        probes: Probes of the floor's cells.

    Returns:
        [B, N] bool, True for agents that do not want to move as well.
    """
    num_agents = cell.shape[1]
    if num_agents == 1:
        return torch.ones_like(cell, dtype=torch.bool)
    none = torch.full_like(cell[:, :1], num_agents)
    after = torch.cat((occupant, none), 1)
    end = after
    for _ in range(num_agents.bit_length()):
        end = end.gather(1, end)
    free = end[:, :-1] == num_agents  # the chain ends at a free cell
    on_cycle = torch.zeros_like(after, dtype=torch.bool).scatter(1, end[:, :-1], True)[:, :-1]
    agents = torch.arange(num_agents, device=cell.device)
    swaps = (after.gather(1, occupant) == agents) & (occupant != agents)
    moves = free | (on_cycle & ~swaps)
    rivals = _rivals(target) & free[:, :, None]
    contested = rivals.flatten(1).any(1)
    if cell.is_cuda:
        won = _winners(cell, target, after, free, rivals, probes)
        return torch.where(free & contested[:, None], won, moves)
    where = contested.nonzero().squeeze(1)
    if not len(where):
        return moves
    won = _winners(cell[where], target[where], after[where], free[where], rivals[where], probes)
    return moves.index_copy(0, where, torch.where(free[where], won, moves[where]))


def _rivals(target: Tensor) -> Tensor:
    """[B, N, N]: True for different agents that want the same cell."""
    num_agents = target.shape[1]
    other = ~torch.eye(num_agents, dtype=torch.bool, device=target.device)
    return (target[:, :, None] == target[:, None, :]) & other


def _winners(cell: Tensor, target: Tensor, after: Tensor, free: Tensor, rivals: Tensor, probes: Probes) -> Tensor:
    """[R, N]: agents that move, where the chain ends at a free cell (`free`).

    Args:
        after: [R, N + 1], the agent on each agent's target; N for a free cell, and for N.
    """
    num_agents = cell.shape[1]
    behind = torch.zeros_like(after)  # length of the longest chain behind each agent
    for _ in range(num_agents - 1):
        behind = behind.scatter_reduce(1, after[:, :-1], behind[:, :-1] + 1, "amax")
        behind = torch.where(torch.nn.functional.pad(free, (0, 1)), behind, 0)
    behind = behind[:, :-1]
    tied = rivals & (behind[:, :, None] == behind[:, None, :])
    order = _visited_first(cell, target, after, free, tied.any(2), probes)
    key = behind * 2**40 - order
    beaten = (rivals & (key[:, None, :] > key[:, :, None])).any(2)
    moves, then = torch.nn.functional.pad(~beaten, (0, 1), value=True), after
    for _ in range(num_agents.bit_length()):
        moves = moves & moves.gather(1, then)
        then = then.gather(1, then)
    return moves[:, :-1] & free


def _visited_first(cell: Tensor, target: Tensor, after: Tensor, free: Tensor, tied: Tensor, probes: Probes) -> Tensor:
    """[R, N]: position of each agent's cell in the order in which `networkx` visits the cells.

    It copies every component of the graph. The cells of a component with less than half of all cells come in the order
    of a Python set, others in the order in which they were added to the graph: agent by agent, first its cell, then its
    target. Source: `networkx.classes.coreviews.FilterAdjacency.__iter__`.
    """
    num_agents = cell.shape[1]
    agents = torch.arange(num_agents, device=cell.device)
    added = torch.full_like(after, 2 * num_agents)
    added[:, :-1] = 2 * agents
    added = added.scatter_reduce(1, after[:, :-1], (2 * agents + 1).expand_as(cell), "amin")[:, :-1]
    most = (2 * num_agents + 1) // 3  # cells of a component with less than half of all cells
    if most < 3:
        return added
    wants_free = after[:, :-1] == num_agents
    last = torch.where(wants_free, agents, after[:, :-1])
    for _ in range(num_agents.bit_length()):
        last = last.gather(1, last)
    goal = target.gather(1, last)  # the free cell at which the agent's chain ends
    repeated = ((target[:, :, None] == target[:, None, :]) & (agents[:, None] > agents)).any(2)
    in_graph = num_agents + (wants_free & ~repeated).sum(1, keepdim=True)
    same = (goal[:, :, None] == goal[:, None, :]) & free[:, None, :]
    by_set = tied & (2 * (1 + same.sum(2)) < in_graph)
    if cell.is_cuda:
        row = torch.arange(len(cell), device=cell.device).repeat_interleave(num_agents)
        agent = agents.repeat(len(cell))
    else:
        row, agent = by_set.nonzero(as_tuple=True)
        if not len(row):
            return added
    component = _Component(
        cell=torch.cat((cell[row], goal[row, agent][:, None]), 1),
        after=after[row],
        member=torch.nn.functional.pad(same[row, agent], (0, 1), value=True),
        added=added[row],
    )
    place = component.place_in_set(agent, most, probes(most, cell.device))
    return torch.where(by_set, torch.zeros_like(cell).index_put((row, agent), place), added)


@dataclass(frozen=True)
class _Component:
    """Trees of agents whose chains end at one free cell, which is number N.

    Attributes:
        cell: [T, N + 1] int64, cells of the agents and the free cell.
        after: [T, N + 1] int64, the number on each agent's target.
        member: [T, N + 1] bool, True for the free cell and the agents of the tree.
        added: [T, N] int64, position at which each agent's cell was added to the graph.
    """

    cell: Tensor
    after: Tensor
    member: Tensor
    added: Tensor

    def place_in_set(self, agent: Tensor, most: int, probes_of: dict[int, Tensor]) -> Tensor:
        """Position of the cell of `agent` [T] in the set of the tree's cells, which has at most `most` items.

        The set is filled from the set of cells that a breadth-first search finds.
        """
        order, count = self._searched(most), self.member.sum(1)
        cells = self.cell.gather(1, order)
        _, first = set_order(cells, count, probes_of)
        place, _ = set_order(cells.gather(1, first), count, probes_of)
        at = (order.gather(1, first) == agent[:, None]).byte().argmax(1, keepdim=True)
        return place.gather(1, at).squeeze(1)

    def _searched(self, most: int) -> Tensor:
        """[T, most]: numbers in the order in which a breadth-first search finds them, from the one added first.

        From each cell it finds the target first, then the cells that point to it, in the order of the agents.
        """
        labels = torch.arange(self.cell.shape[1], device=self.cell.device)
        num_agents, never = len(labels) - 1, 4 * len(labels)
        to_goal = self.member[:, :-1] & (self.after[:, :-1] == num_agents)
        goal_added = torch.where(to_goal, 2 * labels[:-1] + 1, never).amin(1, keepdim=True)
        added = torch.where(self.member, torch.cat((self.added, goal_added), 1), never)
        found = torch.full_like(added, never).scatter(1, added.argmin(1, keepdim=True), 0)
        count = torch.ones_like(goal_added)
        for position in range(most - 1):
            here = found == position
            current = torch.where(here.any(1), here.byte().argmax(1), never)[:, None]
            unseen = self.member & (found == never)
            target = unseen & (labels == self.after.gather(1, current.clamp(max=num_agents))) & (current < never)
            before = unseen & (self.after == current) & ~target
            found = torch.where(target, count, found)
            count = count + target.sum(1, keepdim=True)
            found = torch.where(before, count + before.cumsum(1) - 1, found)
            count = count + before.sum(1, keepdim=True)
        return found.argsort(1)[:, :most]
