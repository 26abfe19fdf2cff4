"""Observations of the cooks: the 26 layers of the package, `lossless_state_encoding`, looked up cell by cell.

Every cell has a code, an index into a table of the 26 numbers that are shown there:

    0                       kinds without content: floor, onions, dishes, serving window
    _AGENT + ...            the agent itself or the other one, its direction, and the item that it holds
    _COUNTER + item         counters
    _POT + n                a pot with n onions that are not cooking
    _COOKED + ...           a pot with a soup, its onions, and the remaining time
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.envs.worlds.overcooked.kitchen import (
    COUNTER,
    DISH,
    DISHES,
    ITEMS,
    MAX_ONIONS,
    ONION,
    ONIONS,
    POT,
    SOUP,
    WINDOW,
    Kitchen,
    Tables,
)

LAYERS = (
    *("own_position", "other_position"),
    *(f"{who}_{direction}" for who in ("own", "other") for direction in ("north", "south", "east", "west")),
    *("pot", "counter", "onion_dispenser", "tomato_dispenser", "dish_dispenser", "serving_window"),
    *("onions_in_pot", "tomatoes_in_pot", "onions_in_soup", "tomatoes_in_soup", "remaining_time", "soup_ready"),
    *("dishes", "onions", "tomatoes", "urgency"),
)
"""Layers of an observation. Those of tomatoes are 0."""
URGENT_STEPS = 40
"""The layer `urgency` is 1 when fewer steps than these remain."""

_LAYER = {name: index for index, name in enumerate(LAYERS)}
_KINDS = (("onion_dispenser", ONIONS), ("dish_dispenser", DISHES), ("serving_window", WINDOW))
_AGENT = 1 + len(_KINDS)
_COUNTER = _AGENT + 2 * 4 * ITEMS
_POT = _COUNTER + ITEMS
_COOKED = _POT + MAX_ONIONS + 1


def observation_space(kitchen: Kitchen, cook_time: int, flattened: bool) -> spaces.Box:
    """Observation space of an agent."""
    high = np.ones(len(LAYERS), np.float32)
    high[[_LAYER[name] for name in LAYERS if name.startswith(("onions_in", "tomatoes_in"))]] = MAX_ONIONS
    high[_LAYER["remaining_time"]] = cook_time
    image = np.broadcast_to(high, (kitchen.height, kitchen.width, len(LAYERS)))
    high = image.reshape(-1) if flattened else image
    return spaces.Box(np.zeros_like(high), high, dtype=np.float32)


@functools.cache
def _base(kitchen: Kitchen, device: torch.device) -> Tensor:
    """[C] int32: code of each cell without items and agents."""
    codes = {kind: 1 + i for i, (_, kind) in enumerate(_KINDS)} | {COUNTER: _COUNTER, POT: _POT}
    return torch.tensor([codes.get(kind, 0) for kind in kitchen.kinds], dtype=torch.int32, device=device)


@functools.cache
def _shown(cook_time: int, device: torch.device) -> Tensor:
    """[K, 26]: the numbers that are shown for each code, and again with urgency."""
    shown = torch.zeros(_COOKED + MAX_ONIONS * (cook_time + 1), len(LAYERS))
    for i, (name, _) in enumerate(_KINDS):
        shown[1 + i, _LAYER[name]] = 1
    for who, name in enumerate(("own", "other")):
        for direction in range(4):
            codes = shown[_AGENT + (4 * who + direction) * ITEMS :][:ITEMS]
            codes[:, _LAYER[f"{name}_position"]] = 1
            codes[:, _LAYER[f"{name}_north"] + direction] = 1
            _show_items(codes)
    shown[_COUNTER:_POT, _LAYER["counter"]] = 1
    _show_items(shown[_COUNTER:_POT])
    shown[_POT:, _LAYER["pot"]] = 1
    for onions in range(MAX_ONIONS + 1):
        shown[_POT + onions, _LAYER["onions_in_pot"]] = onions
    cooked = shown[_COOKED:].view(MAX_ONIONS, cook_time + 1, -1)
    cooked[:, :, _LAYER["onions_in_soup"]] = torch.arange(1.0, MAX_ONIONS + 1).unsqueeze(1)
    cooked[:, :, _LAYER["remaining_time"]] = torch.arange(cook_time + 1.0)
    cooked[:, 0, _LAYER["soup_ready"]] = 1
    urgent = shown.clone()
    urgent[:, _LAYER["urgency"]] = 1
    return torch.cat((shown, urgent)).to(device)


def _show_items(codes: Tensor) -> None:
    """Shows the items in the rows of `codes` [ITEMS, 26]."""
    codes[ONION, _LAYER["onions"]] = 1
    codes[DISH, _LAYER["dishes"]] = 1
    for onions in range(1, MAX_ONIONS + 1):
        codes[SOUP + onions, _LAYER["onions_in_soup"]] = onions
        codes[SOUP + onions, _LAYER["soup_ready"]] = 1


def layers(
    kitchen: Kitchen,
    tables: Tables,
    *,
    cell: Tensor,
    direction: Tensor,
    held: Tensor,
    item: Tensor,
    remaining: Tensor,
    cook_time: int,
    urgent: Tensor | None,
) -> Tensor:
    """Observations of both agents, [B, 2, H, W, 26].

    Args:
        cell: [B, 2].
        direction: [B, 2].
        held: Items in the agents' hands, [B, 2].
        item: Items on all cells, [B, C].
        remaining: Steps until the soup in each pot is ready, [B, P]; -1 if it is not cooking.
        cook_time: Largest possible number of these steps.
        urgent: [B] bool, True if few steps remain; None if there is no limit.
    """
    shown = _shown(cook_time, cell.device)
    code = (_base(kitchen, cell.device) + item * tables.counter).int()
    onions = (item.index_select(1, tables.pots) - SOUP).clamp_(min=0)
    soup = _COOKED + (onions - 1) * (cook_time + 1) + remaining
    code.index_copy_(1, tables.pots, torch.where(remaining >= 0, soup, _POT + onions).int())
    if urgent is not None:
        code += (urgent * (len(shown) // 2)).int().unsqueeze(1)
    appearance = (_AGENT + direction * ITEMS + held).int()
    if urgent is not None:
        appearance += (urgent * (len(shown) // 2)).int().unsqueeze(1)
    other = appearance + 4 * ITEMS
    views = torch.stack((appearance[:, 0], other[:, 1], other[:, 0], appearance[:, 1]), 1).view(-1, 2, 2)
    code = code.unsqueeze(1).repeat(1, 2, 1).scatter_(2, cell.unsqueeze(1).expand(-1, 2, -1), views)
    return shown.index_select(0, code.flatten()).view(len(cell), 2, kitchen.height, kitchen.width, len(LAYERS))
