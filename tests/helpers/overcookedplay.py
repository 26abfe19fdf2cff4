"""Episodes of the package `overcooked_ai`, and their comparison with the worlds."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.worlds.overcooked.kitchen import (
    COUNTER,
    DISH,
    INTERACT,
    MAX_ONIONS,
    NOTHING,
    ONION,
    POT,
    SOUP,
    STAY,
    WINDOW,
)
from coterie.envs.worlds.overcooked.overcooked import ROLE, Layout, Overcooked, OvercookedConfig
from coterie.envs.worlds.world import State

FILE = Path(__file__).with_name("overcooked.npz")
"""Written by `overcooked_record.py`."""
COOK_TIMES = {True: 20, False: 6}
"""Cook time by rule, `old_dynamics` or not."""
EVENTS = (
    *("onion_taken", "dish_taken", "onion_potted", "soup_plated", "delivered"),
    *("onion_put_down", "dish_put_down", "soup_put_down", "taken_from_counter", "handed_over"),
    *("pot_was_full", "collision", "swap", "useful_dish", "useless_dish"),
)
"""Events of all kitchens and rules. `delivered_wrong` and `cooked_by_hand` need the new dynamics."""


class Episodes(NamedTuple):
    """Episodes of one layout and rule. E is the number of episodes, T of steps, K of a state's numbers.

    Attributes:
        states: [E, T + 1, K] uint8: cells (2), directions (2) and held items (2) of the agents, the items on all cells,
            the clocks of the pots plus 1.
        actions: [E, T, 2] uint8.
        sparse: [E, T, 2] uint8, rewards of deliveries.
        shaped: [E, T, 2] uint8, shaped rewards.
        digests: [E, T + 1] uint32, checksums of the observations of both agents.
    """

    states: np.ndarray
    actions: np.ndarray
    sparse: np.ndarray
    shaped: np.ndarray
    digests: np.ndarray


def recorded(layout: str, old_dynamics: bool) -> Episodes:
    """The recorded episodes of a layout."""
    with np.load(FILE, allow_pickle=False) as found:
        return Episodes(*(found[f"{layout}.{old_dynamics:d}.{name}"] for name in Episodes._fields))


def world_of(layout: str, old_dynamics: bool, steps: int) -> Overcooked:
    """The world of a layout and rule, with shaped rewards."""
    settings = {"auto_cook": old_dynamics, "cook_time": COOK_TIMES[old_dynamics], "shaping": 1, "episode_limit": steps}
    return Layout(layout)(OvercookedConfig.model_validate(settings))


def state_of(numbers: Tensor, world: Overcooked) -> State:
    """The state of a world that equals those of the package [B, K]."""
    cells, pots = len(world.kitchen.kinds), len(world.kitchen.pots)
    cell, direction, held, item, tick = numbers.long().split((2, 2, 2, cells, pots), 1)
    state = world.reset(torch.rand(len(numbers), world.reset_noise_size))
    return state | {"cell": cell, "direction": direction, "held": held, "item": item, "tick": tick - 1}


def compare(layout: str, old_dynamics: bool, episodes: Episodes) -> dict[str, int]:
    """Steps a world with the actions of the package and compares everything after each step.

    Returns how often each kind of event occurred.
    """
    steps = episodes.actions.shape[1]
    world = world_of(layout, old_dynamics, steps)
    states, actions = torch.from_numpy(episodes.states), torch.from_numpy(episodes.actions).long()
    state = state_of(states[:, 0], world)
    np.testing.assert_array_equal(_digests(world, state), episodes.digests[:, 0])
    events = dict.fromkeys((*EVENTS, "delivered_wrong", "cooked_by_hand"), 0)
    for t in range(steps):
        before = state
        state, outcome = world.step(state, {ROLE: Action(actions[:, t].unsqueeze(-1))}, None)
        where = (layout, old_dynamics, t)
        assert torch.equal(_numbers(state), states[:, t + 1]), where
        np.testing.assert_array_equal(outcome.reward.numpy(), episodes.shaped[:, t], str(where))
        assert outcome.group_reward is not None
        np.testing.assert_array_equal(outcome.group_reward[:, 0].numpy(), episodes.sparse[:, t].sum(1), str(where))
        np.testing.assert_array_equal(_digests(world, state), episodes.digests[:, t + 1], str(where))
        for name, count in _events(world, before, state, actions[:, t], outcome.reward).items():
            events[name] += int(count.sum())
    return events


def _numbers(state: State) -> Tensor:
    parts = [state[name] for name in ("cell", "direction", "held", "item")]
    return torch.cat((*parts, state["tick"] + 1), 1).to(torch.uint8)


def _digests(world: Overcooked, state: State) -> list[int]:
    return [zlib.crc32(seen.tobytes()) for seen in world.observe(state).obs[ROLE].to(torch.uint8).numpy()]


def _events(world: Overcooked, before: State, after: State, act: Tensor, shaped: Tensor) -> dict[str, Tensor]:
    """Which events occurred in a step, [B] or [B, 2] each."""
    room = world.tables(act.device)
    faced = room.faced[before["cell"] * 4 + before["direction"]]
    kind, held, now = room.kind[faced] * (act == INTERACT), before["held"], after["held"]
    here, left = before["item"].gather(1, faced), after["item"].gather(1, faced)
    target = room.target[before["cell"] * 6 + act]
    stays = (after["cell"] == before["cell"]).all(1) & (target != before["cell"]).any(1)
    swap = (target == before["cell"].flip(1)).all(1) & (act < STAY).all(1)
    put, got = (held > NOTHING) & (now == NOTHING), (held == NOTHING) & (now > NOTHING)
    dish = got & (now == DISH) & (kind != COUNTER)
    lit = (before["tick"] < 0) & (after["tick"] >= 0)
    return {
        "onion_taken": got & (now == ONION) & (kind != COUNTER),
        "dish_taken": dish,
        "onion_potted": put & (kind == POT),
        "soup_plated": (held == DISH) & (now > SOUP),
        "delivered": put & (kind == WINDOW) & (held == SOUP + MAX_ONIONS),
        "delivered_wrong": put & (kind == WINDOW) & (held < SOUP + MAX_ONIONS),
        "onion_put_down": put & (kind == COUNTER) & (held == ONION),
        "dish_put_down": put & (kind == COUNTER) & (held == DISH),
        "soup_put_down": put & (kind == COUNTER) & (held > SOUP),
        "taken_from_counter": got & (kind == COUNTER),
        "handed_over": put[:, 0] & got[:, 1] & (faced[:, 0] == faced[:, 1]) & (left[:, 0] == NOTHING),
        "pot_was_full": (kind == POT) & (held == ONION) & (now == ONION) & (here == SOUP + MAX_ONIONS),
        "collision": stays & ~swap,
        "swap": swap,
        "useful_dish": dish & (shaped > 0),
        "useless_dish": dish & (shaped == 0),
        "cooked_by_hand": lit & (not world.config.auto_cook),
    }
