"""The world: two cooks in a kitchen.

A step has the order of the package `overcooked_ai`: first the agents interact one after another, then both move, then
pots cook. `getattr(module, layout_name)` returns the maker of a layout.
"""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.overcooked import LAYOUTS
from coterie.envs.worlds.overcooked.kitchen import (
    ACTIONS,
    DISH,
    EMPTIED,
    INTERACT,
    ITEMS,
    LIT,
    MAX_ONIONS,
    NORTH,
    NOTHING,
    ONION,
    PHASES,
    SOUP,
    Kitchen,
    Tables,
    drawn_kitchen,
    interaction_table,
    tables,
)
from coterie.envs.worlds.overcooked.observations import LAYERS, URGENT_STEPS, layers, observation_space
from coterie.envs.worlds.overcooked.render import draw
from coterie.envs.worlds.world import Observation, Outcome, State, World


class OvercookedConfig(BaseModel):
    """Settings of overcooked/*."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    layout: str | None = None
    """Drawing of another kitchen: `X` counter, `O` onions, `D` dishes, `P` pot, `S` serving window, `.` floor, `1` and
    `2` agents; rows separated by line breaks or `/`."""
    auto_cook: bool = True
    """Start cooking when the third onion is in the pot, the package's `old_dynamics`. Otherwise an agent with empty
    hands starts it by interacting, with one to three onions."""
    cook_time: int = Field(20, ge=1, le=1000)
    """Number of steps until a soup is ready."""
    delivery_reward: float = Field(20.0, ge=0, le=10**6)
    """Reward of the team for serving a soup of three onions."""
    shaping: float = Field(0.0, ge=0, le=100)
    """Factor on the following three rewards, which go to the agent itself."""
    pot_reward: float = Field(3.0, ge=0, le=10**6)
    """Shaped reward for putting an onion into a pot."""
    dish_reward: float = Field(3.0, ge=0, le=10**6)
    """Shaped reward for taking a dish from the dispenser when it is useful: no dish is on a counter, and agents hold
    fewer dishes than there are pots with a soup that is cooking, ready or not full."""
    soup_reward: float = Field(5.0, ge=0, le=10**6)
    """Shaped reward for taking a soup from a pot."""
    random_positions: bool = False
    """Start on two random cells of the floor instead of the marked ones."""
    random_objects: float = Field(0.0, ge=0, le=1)
    """Probability that a pot starts with onions, that these are cooking, and that an agent starts with an item."""
    observation_type: Literal["flattened", "image"] = "flattened"
    """26 layers of the kitchen, cell by cell as a vector, or the same numbers as an image [H, W, 26]. Images need at
    least five rows and columns."""
    episode_limit: int | None = Field(400, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""


ROLE = "agent"
AGENTS = 2
COUNTS = ("deliveries", "onions_potted", "soups_plated")
"""Episode metrics, in the order in which the state counts them."""
_SMALLEST_IMAGE = 5
"""Rows and columns that the convolutions of `coterie.nets` need."""
_DISH_SHARE, _ONION_SHARE = 0.2, 0.8
"""Random numbers below the first are a dish in an agent's hands at the start, those below the second an onion."""


@final
class Overcooked(World):
    """Two agents cook soups of three onions and serve them. The group receives `delivery_reward` for each.

    The state has `cell`, `direction` and `held` [B, 2], the grid `item` [B, C] of all items that nobody holds, the
    clocks `tick` [B, P] of the pots (-1 while a pot is not cooking), and the number of steps `time` [B]. Metrics, at
    the last step: the numbers of soups of three onions that were served (`deliveries`), of onions put into pots
    (`onions_potted`), and of soups taken from pots (`soups_plated`).

    Args:
        name: Name of the environment in its family.
        kitchen: The kitchen.
        config: The settings.
        with_state: True if observations include a state for critics.
    """

    Config = OvercookedConfig

    def __init__(self, name: str, kitchen: Kitchen, config: OvercookedConfig, with_state: bool = False):
        self.kitchen, self.config, self._with_state = kitchen, config, with_state
        self._flattened = config.observation_type == "flattened"
        if not self._flattened and min(kitchen.height, kitchen.width) < _SMALLEST_IMAGE:
            raise ValueError(
                f"observation_type=image: the kitchen has {kitchen.height} x {kitchen.width} cells, but convolutions "
                f"need at least {_SMALLEST_IMAGE} rows and columns. Use observation_type=flattened."
            )
        self.terminate_at_limit = config.terminate_at_limit
        self.reset_noise_size = 1 + 3 * (len(kitchen.pots) + AGENTS)
        self.parameters = _parameters(config)
        self.apply_parameters = self._with_objects
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"agent_{i}" for i in range(AGENTS)),
            observation_space(kitchen, config.cook_time, self._flattened),
            action_space=spaces.Discrete(len(ACTIONS)),
            choice_names=(ACTIONS,),
        )
        self.spec = EnvSpec(
            name,
            (role,),
            {"global": len(kitchen.kinds) * len(LAYERS)} if with_state else {},
            has_group_reward=True,
            metrics=COUNTS,
            episode_limit=config.episode_limit,
        )

    def tables(self, device: torch.device) -> Tables:
        """Tables of the kitchen on a device."""
        return tables(self.kitchen, device)

    def reset(self, noise: Tensor) -> State:
        room, num_envs, device = self.tables(noise.device), len(noise), noise.device
        cell = room.starts.expand(num_envs, -1)
        if self.config.random_positions:
            count = len(room.pairs)
            cell = room.pairs[(noise[:, 0] * count).long().clamp_(max=count - 1)]
        zeros = torch.zeros(num_envs, AGENTS, dtype=torch.int64, device=device)
        state = {
            "cell": cell.clone(),
            "direction": torch.full_like(zeros, NORTH),
            "held": zeros,
            "item": zeros.new_zeros(num_envs, len(self.kitchen.kinds)),
            "tick": zeros.new_full((num_envs, len(self.kitchen.pots)), -1),
            "time": zeros[:, 0].clone(),
            "counts": zeros.new_zeros(num_envs, len(COUNTS)),
            # Varying parameters need the numbers again, see `_with_objects`. The first step drops them.
            "noise": noise,
        }
        return self._with_objects(state)

    def _with_objects(self, state: State) -> State:
        """Puts random items into pots and hands."""
        if self.config.random_objects == 0 and "random_objects" not in state:
            return state
        pots = len(self.kitchen.pots)
        share = _per_env(state, "random_objects", self.config.random_objects)
        in_pot, in_hand = state["noise"][:, 1:].split((3 * pots, 3 * AGENTS), 1)
        filled, amount, lit = in_pot.unflatten(1, (3, pots)).unbind(1)
        soup = torch.where(filled < share, SOUP + _onions(amount), NOTHING)
        tick = torch.where((filled < share) & (lit < share), 0, -1)
        given, which, amount = in_hand.unflatten(1, (3, AGENTS)).unbind(1)
        held = torch.where(which < _ONION_SHARE, ONION, SOUP + _onions(amount))
        held = torch.where(which < _DISH_SHARE, DISH, held)
        return state | {
            "item": state["item"].index_copy(1, self.tables(soup.device).pots, soup),
            "tick": tick,
            "held": torch.where(given < share, held, NOTHING),
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        chosen = action[ROLE].discrete
        assert chosen is not None
        act = chosen.squeeze(-1)
        room = self.tables(act.device)
        now, shaped = self._interact(state, act, room)
        now |= _moved(state, act, room)
        now["tick"] = self._cooked(state, now["item"], now["tick"], room)
        now["time"] = state["time"] + 1
        served = now.pop("served")
        kept = {name: value for name, value in state.items() if name != "noise"}
        return kept | now, Outcome(
            reward=shaped,
            group_reward=(self.config.delivery_reward * served).unsqueeze(1),
            metrics=lambda: dict(zip(COUNTS, now["counts"].float().unbind(1), strict=True)),
        )

    def _interact(self, state: State, act: Tensor, room: Tables) -> tuple[State, Tensor]:
        """Lets the agents that interact do so, the first agent first.

        Returns the changed entries with `served`, the number of soups [B], and the shaped rewards [B, 2].
        """
        table = interaction_table(not self.config.auto_cook, act.device)
        item, tick, held = state["item"], state["tick"], state["held"]
        faced = room.faced[state["cell"] * 4 + state["direction"]]
        kind = room.kind[faced] * (act == INTERACT)  # facing the floor has no effect
        cook_time = _per_env(state, "cook_time", self.config.cook_time)
        wanted = self._soups_that_need_dishes(item, tick, room) if self._is_shaped(state) else None
        held_items, shaped, counts = list(held.unbind(1)), [], state["counts"]
        served = torch.zeros_like(state["time"])
        for i in range(AGENTS):  # in order: one can take what another one has put down in the same step
            cell = faced[:, i : i + 1]
            at_pot = cell == room.pots
            phase = (((tick >= 0).long() + (tick >= cook_time)) * at_pot).sum(1)
            here = item.gather(1, cell)
            row = ((kind[:, i] * ITEMS + held_items[i]) * ITEMS + here.squeeze(1)) * PHASES + phase
            after, left, clock, potted, took_dish, plated, correct = table[row].unbind(1)
            if wanted is not None:
                dishes = (held_items[0] == DISH).long() + (held_items[1] == DISH)
                useful = took_dish * (dishes < wanted) * ~(item == DISH).any(1)
                shaped.append(self._shaped(potted, useful, plated))
            held_items[i], item = after, item.scatter(1, cell, left.unsqueeze(1))
            clock = clock.unsqueeze(1) * at_pot
            tick = torch.where(clock == LIT, 0, torch.where(clock == EMPTIED, -1, tick))
            counts = counts + torch.stack((correct, potted, plated), 1)
            served = served + correct
        reward = torch.zeros_like(held, dtype=torch.float32)
        if wanted is not None:
            reward = torch.stack(shaped, 1) * _per_env(state, "shaping", self.config.shaping)
        now = {"item": item, "tick": tick, "held": torch.stack(held_items, 1), "counts": counts, "served": served}
        return now, reward

    def _is_shaped(self, state: State) -> bool:
        return self.config.shaping > 0 or "shaping" in state

    def _soups_that_need_dishes(self, item: Tensor, tick: Tensor, room: Tables) -> Tensor:
        """Number of pots [B] that are cooking, ready, or neither empty nor full."""
        soup = item.index_select(1, room.pots)
        return ((tick >= 0) | ((soup > SOUP) & (soup < SOUP + MAX_ONIONS))).sum(1)

    def _shaped(self, potted: Tensor, useful: Tensor, plated: Tensor) -> Tensor:
        config = self.config
        return config.pot_reward * potted + config.dish_reward * useful + config.soup_reward * plated

    def _cooked(self, state: State, item: Tensor, tick: Tensor, room: Tables) -> Tensor:
        """Clocks of the pots after the step."""
        if self.config.auto_cook:
            full = item.index_select(1, room.pots) == SOUP + MAX_ONIONS
            tick = torch.where(full & (tick < 0), 0, tick)
        return tick + ((tick >= 0) & (tick < _per_env(state, "cook_time", self.config.cook_time)))

    def observe(self, state: State) -> Observation:
        tick, limit = state["tick"], self.config.episode_limit
        cook_time = _per_env(state, "cook_time", self.config.cook_time)
        image = layers(
            self.kitchen,
            self.tables(tick.device),
            **{name: state[name] for name in ("cell", "direction", "held", "item")},
            remaining=torch.where(tick < 0, -1, cook_time - tick).long(),
            cook_time=self.config.cook_time,
            urgent=None if limit is None else limit - state["time"] < URGENT_STEPS,
        )
        shown = {"global": image[:, 0].flatten(1)} if self._with_state else {}
        return Observation({ROLE: image.flatten(2) if self._flattened else image}, state=shown)

    def render(self, state: State, size: int) -> np.ndarray:
        cook_time = int(state["cook_time"]) if "cook_time" in state else self.config.cook_time
        entries = {name: state[name][0].tolist() for name in ("cell", "direction", "held", "item", "tick", "counts")}
        return draw(self.spec.name, self.kitchen, entries, cook_time, size)


def _moved(state: State, act: Tensor, room: Tables) -> State:
    """Cells and directions after the moves. Agents that would meet or swap cells stay, and turn nevertheless."""
    cell = state["cell"]
    target = room.target[cell * 6 + act]
    meet = target[:, 0] == target[:, 1]
    swap = (target == cell.flip(1)).all(1)
    return {
        "cell": torch.where((meet | swap).unsqueeze(1), cell, target),
        "direction": room.turned[act * 4 + state["direction"]],
    }


def _onions(noise: Tensor) -> Tensor:
    """Numbers of onions in a random soup, 1 to 3."""
    return 1 + (noise * MAX_ONIONS).long().clamp_(max=MAX_ONIONS - 1)


def _parameters(config: OvercookedConfig) -> dict[str, Parameter]:
    """Parameters that may vary between environments and episodes."""
    return {
        "shaping": Parameter(config.shaping, 0, 100, "factor on the shaped rewards"),
        "cook_time": Parameter(config.cook_time, 1, config.cook_time, "steps until a soup is ready", integer=True),
        "random_objects": Parameter(
            config.random_objects, 0, 1, "probability that a pot or an agent starts with items"
        ),
    }


def _per_env(state: State, name: str, default: float) -> Tensor | float:
    """A parameter as [B, 1] if it varies, else its default."""
    return state[name].unsqueeze(1) if name in state else default


@final
class Layout:
    """Creates the worlds of one layout."""

    Config = OvercookedConfig

    def __init__(self, name: str):
        self.name = name

    def __call__(self, config: OvercookedConfig, with_state: bool = False) -> Overcooked:
        return Overcooked(self.name, kitchen_of(self.name, config), config, with_state)


def kitchen_of(name: str, config: OvercookedConfig) -> Kitchen:
    """Returns the kitchen of a layout's name, or the one that is drawn in the settings.

    Raises:
        ValueError: For an invalid drawing.
    """
    if config.layout is None:
        return drawn_kitchen(LAYOUTS[name])
    return drawn_kitchen(tuple(row.strip() for row in config.layout.strip().replace("/", "\n").upper().split("\n")))


def __getattr__(name: str) -> Layout:
    """Maker of a layout."""
    if name not in LAYOUTS:
        raise AttributeError(f"overcooked: there is no layout named {name!r}")
    return _MAKERS[name]


_MAKERS = {name: Layout(name) for name in LAYOUTS}
