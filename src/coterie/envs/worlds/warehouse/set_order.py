"""Order in which Python iterates over a set of cells, for batches of sets.

The package `rware` resolves conflicts between agents with `networkx`, which visits the cells of small components in the
order of a Python set. The order follows from the hashes of (column, row) and from how a set stores its items: open
addressing in a table that grows from 8 to 32, 128, .. places. Source: CPython, `Objects/setobject.c`, `set_add_entry`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

_NEIGHBORS = 9  # places that are tried next to each other
_SHIFT = 5


def sizes(num_items: int) -> list[int]:
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


def iterated(cells: Tensor, count: Tensor, probes_of: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Adds cells to empty sets one by one.

    Args:
        cells: [R, K] int64, the cells in the order in which they are added.
        count: [R] int64, the number of cells of each set, at most K; the others are ignored.
        probes_of: The probes of all cells, by the size of the table: at least `sizes(K)`.

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
