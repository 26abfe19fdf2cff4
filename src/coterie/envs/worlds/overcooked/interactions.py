"""The rules of the action `interact`, written for one agent and tabulated for batches."""

from __future__ import annotations

import functools
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.envs.worlds.overcooked.kitchen import COUNTER, DISHES, ONIONS, POT, WINDOW

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
