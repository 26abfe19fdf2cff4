"""The world: agents on a grid collect food whose level needs their combined levels.

A step has the order of the package `lbforaging`: actions that are impossible become `none`; all agents move at once,
unless several want to enter or keep one square, in which case those that move stay; then food is loaded. The package
processes loading agents in the order of a set. The result does not depend on it, because food is never placed so that
a square is next to two items. Like in the package, an agent can enter the square of one that tried to leave it and
could not, and both then share it.

Tensors of observations have environments in the last axis where noted, so that operations on few agents and food items
run over adjacent memory.

`getattr(module, task_name)` returns the maker of a task.
"""

from __future__ import annotations

import functools
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from torch import Tensor

from coterie.core.specs import Entities, EnvSpec, ObservationParts, RoleSpec
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.foraging import find, settings
from coterie.envs.worlds.foraging.render import draw
from coterie.envs.worlds.foraging.spawn import noise_size, spawn
from coterie.envs.worlds.world import Advanced, Observation, Outcome, State, World
from coterie.kernels import native
from coterie.kernels.foraging import ForagingConstants, Rules, StepInputs, foraging_step

_LEVELS = 1 << 16
"""Agents' levels are below this."""


@dataclass(frozen=True)
class View:
    """Constants of the observations.

    Attributes:
        side: Side length of the field in squares.
        players: Number of agents.
        sight: View range in squares along each axis, at least 1.
        with_levels: True if the levels of agents are part of observations.
    """

    side: int
    players: int
    sight: int
    with_levels: bool

    @property
    def is_full(self) -> bool:
        """True if all agents always see the whole field."""
        return self.sight >= self.side - 1


def envs_last(x: Tensor) -> Tensor:
    """Returns [B, M] as [M, B], or [B, M, 2] as [2, M, B], contiguous."""
    return reversed_axes(x).contiguous()


def reversed_axes(x: Tensor) -> Tensor:
    """Returns a view with all axes in reverse order."""
    return x.permute(*range(x.ndim - 1, -1, -1))


def entity_lists(state: State, view: View) -> Tensor:
    """Observations as lists [B, P, D]: row, column and level of all food, then of the agent itself, then of the others.

    Rows and columns count from the first row and column in sight. Food and agents out of sight are left out, and those
    that follow take their places; the remaining places contain -1, -1, 0. As in the package, agents are in sight
    within the `2 x sight + 1` rows and columns from the first one in sight, even where the field's edge cuts off rows.
    """
    names = ("players", "levels", "food", "food_level")
    pos, level, food, food_level = (envs_last(state[name]).float() for name in names)
    others = other_players(view.players, pos.device)
    sight = state.get("sight")
    if view.is_full and sight is None:
        foods = _compacted(food.unsqueeze(1), food_level.unsqueeze(0), (food_level > 0).unsqueeze(0))
        foods = foods.expand(view.players, -1, -1, -1)
        own = torch.cat((pos, level.unsqueeze(0)))  # [3, P, B]
        rest = own.index_select(1, others).view(3, view.players, -1, own.shape[-1]).permute(1, 2, 0, 3)
    else:
        reach = view.sight if sight is None else sight
        base = (pos - reach).clamp_(min=0)  # [2, P, B], the first row and column in sight
        gap = food.unsqueeze(1) - pos.unsqueeze(2)
        seen = (gap[0].abs() <= reach) & (gap[1].abs() <= reach) & (food_level > 0)
        foods = _compacted(food.unsqueeze(1) - base.unsqueeze(2), food_level.unsqueeze(0), seen)
        own = torch.cat((pos - base, level.unsqueeze(0)))
        offset = pos.index_select(1, others).view(2, view.players, -1, pos.shape[-1]) - base.unsqueeze(2)
        first, last = offset.amin(0), offset.amax(0)
        seen = (first >= 0) & (last <= 2 * reach)
        rest = _compacted(offset, level.index_select(0, others).view(seen.shape), seen)
    players = torch.cat((own.permute(1, 0, 2).unsqueeze(1), rest), 1)  # [P, P, 3, B]
    if not view.with_levels:
        players = players[:, :, :2]
    return torch.cat((foods.flatten(1, 2), players.flatten(1, 2)), 1).permute(2, 0, 1).contiguous()


def entity_parts(foods: int, view: View) -> ObservationParts:
    """Returns the parts of observations that are lists, with room for `foods` food items."""
    absent = (-1.0, -1.0, 0.0)
    size, first = 3 if view.with_levels else 2, 3 * foods
    return ObservationParts(
        (
            Entities.rows("own", (first, size)),
            Entities.rows("object", (0, 3), count=foods, absent=absent),
            Entities.rows("ally", (first + size, size), count=view.players - 1, absent=absent[:size]),
        ),
        position=(first, first + 1) if view.is_full else (),  # else it is relative to what is in sight
    )


def whole_field(state: State) -> Tensor:
    """Row, column and level of all food and of all agents, [B, 3 F + 3 P]; -1, -1, 0 for food that was collected."""
    food, food_level = envs_last(state["food"]), envs_last(state["food_level"])
    foods = _compacted(food.unsqueeze(1), food_level.unsqueeze(0), (food_level > 0).unsqueeze(0))[0]
    players = torch.cat((state["players"], state["levels"].unsqueeze(-1)), -1).flatten(1)
    return torch.cat((foods.flatten(0, 1).T, players), -1).float()


def square_layers(state: State, view: View) -> Tensor:
    """Observations as layers [B, P, W, W, 3] of the W = 2 sight + 1 squares around each agent along both axes.

    The layers are the agents' levels (1 each without levels), the levels of food, and 1 for squares that can be
    entered. If several agents are on one square, the last one is shown.
    """
    side, sight, n = view.side, view.sight, view.players
    width = side + 2 * sight
    pos, level = state["players"], state["levels"]
    device, num_envs = pos.device, len(pos)
    inside, windows = window_tables(side, sight, device)
    squares = (pos[..., 0] + sight) * width + pos[..., 1] + sight
    shown = level if view.with_levels else torch.ones_like(level)
    numbered = torch.arange(n, device=device) * _LEVELS + shown
    agents = torch.zeros(num_envs, width * width, dtype=torch.int64, device=device)
    agents = agents.scatter_reduce(1, squares, numbered, "amax") % _LEVELS
    # Collected food is at row -1 and column -1, which is outside the field, and has level 0.
    places = (state["food"][..., 0] + sight) * width + state["food"][..., 1] + sight
    foods = torch.zeros_like(agents).scatter(1, places, state["food_level"])
    within = inside[state["size"].long()] if "size" in state else inside[side].expand(num_envs, -1)
    access = within.scatter(1, squares, False) & (foods == 0)
    layers = torch.stack((agents, foods, access.long()), -1)  # [B, width * width, 3]
    index = windows[pos[..., 0] * side + pos[..., 1]].flatten(1)
    seen = layers.gather(1, index.unsqueeze(-1).expand(-1, -1, 3))
    return seen.view(num_envs, n, 2 * sight + 1, 2 * sight + 1, 3).float()


def _compacted(offset: Tensor, level: Tensor, visible: Tensor) -> Tensor:
    """Moves visible entries to the front of their list.

    Args:
        offset: [2, V, M, B], rows and columns of M entries as V agents see them.
        level: [V or 1, M, B].
        visible: [V, M, B] bool.

    Returns:
        [V, M, 3, B]: row, column and level; -1, -1, 0 for the rest.
    """
    entries = torch.stack((*offset, level.expand(visible.shape)), 2)  # [V, M, 3, B]
    agents, count, num_envs = visible.shape
    place = torch.where(visible, visible.cumsum(1) - 1, count)  # the last place is cut off
    listed = entries.new_full((agents, count + 1, 3, num_envs), -1)
    listed[:, :, 2] = 0
    return listed.scatter_(1, place.unsqueeze(2).expand(entries.shape), entries)[:, :count]


@functools.cache
def other_players(players: int, device: torch.device) -> Tensor:
    """Indices of all other agents, agent by agent."""
    indices = [j for i in range(players) for j in range(players) if j != i]
    return torch.tensor(indices, dtype=torch.int64, device=device)


@functools.cache
def window_tables(side: int, sight: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tables of the field with a border of `sight` squares.

    Returns:
        For each side length up to `side`, True for the squares of the field [side + 1, (side + 2 sight)²]; and the
        squares around each square of the field [side², (2 sight + 1)²].
    """
    width, seen = side + 2 * sight, torch.arange(2 * sight + 1)
    line = torch.arange(width)
    part = (line >= sight) & (line < sight + torch.arange(side + 1)[:, None])
    inside = (part[:, :, None] & part[:, None]).flatten(1)
    row = torch.arange(side).view(-1, 1, 1, 1) + seen.view(1, 1, -1, 1)
    column = torch.arange(side).view(1, -1, 1, 1) + seen
    return inside.to(device), (row * width + column).flatten(2).flatten(0, 1).to(device)


ROLE = "agent"
ACTIONS = ("none", "north", "south", "west", "east", "load")
LOAD = ACTIONS.index("load")
_MOVES = ((0, -1, 1, 0, 0, 0), (0, 0, 0, -1, 1, 0))
"""Change of row and of column by each action."""


class ForagingConfig(BaseModel):
    """Settings shared by all foraging tasks. Defaults of a task follow from its name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    size: int = Field(8, ge=3, le=64)
    """Side length of the field in squares."""
    players: int = Field(2, ge=1, le=64)
    """Number of agents."""
    foods: int = Field(2, ge=1, le=64)
    """Number of food items at the start; fewer if no square is left for them."""
    sight: int | None = Field(None, ge=1, le=1000)
    """View range of agents in squares along each axis; None: the whole field."""
    coop: bool = False
    """Give all food the highest level, which all of the three weakest agents have to collect together."""
    min_player_level: int = Field(1, ge=1, le=1000)
    """Lowest level of agents."""
    max_player_level: int = Field(2, ge=1, le=1000)
    """Highest level of agents."""
    min_food_level: int = Field(1, ge=1, le=1000)
    """Lowest level of food."""
    max_food_level: int | None = Field(None, ge=1, le=1000)
    """Highest level of food; None: the sum of the levels of the three weakest agents."""
    penalty: float = Field(0.0, ge=0, le=10**6)
    """Subtracted from the reward of agents that fail to load food."""
    normalize_reward: bool = True
    """Scale rewards so that all food of an episode is worth 1 in total."""
    grid_observation: bool = False
    """Observe layers of the squares around the agent instead of lists of food and agents."""
    observe_agent_levels: bool = True
    """Observe the levels of agents."""
    action_mask: bool = False
    """Mask actions that have no effect: moves into food and off the field, and loading away from food."""
    version: Literal[2, 3] = 3
    """Version of the package's tasks whose levels of food apply; 2: food has the highest level only with coop."""
    episode_limit: int | None = Field(50, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""

    @model_validator(mode="after")
    def _has_room_and_levels(self) -> ForagingConfig:
        if self.players > self.size**2:
            raise ValueError(f"players={self.players} do not fit on {self.size**2} squares. Choose a larger size.")
        if self.min_player_level > self.max_player_level:
            raise ValueError(
                f"min_player_level={self.min_player_level} is above max_player_level={self.max_player_level}. "
                "Set both to the same level for agents of one level."
            )
        highest = self.min_player_level * min(self.players, 3) if self.max_food_level is None else self.max_food_level
        if self.min_food_level > highest:
            raise ValueError(
                f"min_food_level={self.min_food_level} is above the highest level of food, which can be {highest}. "
                "Choose a lower one, or raise max_food_level."
            )
        return self


@final
class Foraging(World):
    """Agents move, and load food next to them together.

    Each of the agents that collect a food item receives the item's level times its own level. With `normalize_reward`,
    this is divided by the sum of the agents' levels and by the level of all food of the episode. Metrics, at the last
    step:
    `collected` (fraction of the levels of all food), `done` (all food was collected).
    """

    def __init__(self, name: str, config: ForagingConfig, with_state: bool = False):
        self.config, self._with_state = config, with_state
        side = config.size
        self.view = View(
            side=side,
            players=config.players,
            sight=min(config.sight or side, side),
            with_levels=config.observe_agent_levels,
        )
        self.reset_noise_size = noise_size(config.players, config.foods)
        self.terminate_at_limit = config.terminate_at_limit
        self.parameters = _parameters(config)
        self.apply_parameters = self._apply_parameters
        self.fused_step = self._fused_step
        self._constants = self._kernel_constants()
        self._moves: dict[torch.device, Tensor] = {}
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"agent_{i}" for i in range(config.players)),
            _observation_space(config, self.view),
            action_space=spaces.Discrete(len(ACTIONS)),
            choice_names=(ACTIONS,),
            parts=ObservationParts() if config.grid_observation else entity_parts(config.foods, self.view),
        )
        self.spec = EnvSpec(
            name,
            (role,),
            {"global": 3 * (config.foods + config.players)} if with_state else {},
            metrics=("collected", "done"),
            episode_limit=config.episode_limit,
        )

    def reset(self, noise: Tensor) -> State:
        # Varying parameters need the numbers again, see `_apply_parameters`. The first step drops them.
        return self._spawn(noise, {}) | {"noise": noise}

    def _apply_parameters(self, state: State) -> State:
        return {**state, **self._spawn(state["noise"], state)}

    def _spawn(self, noise: Tensor, varying: State) -> State:
        """Returns initial states with the parameters in `varying`, by name [B]."""
        config = self.config
        whole = {name: value.long() for name, value in varying.items() if name in self.parameters}
        rules = Rules(
            size=whole.get("size", config.size),
            foods=whole.get("foods", config.foods),
            min_player_level=config.min_player_level,
            max_player_level=whole.get("max_player_level", config.max_player_level),
            min_food_level=config.min_food_level,
            max_food_level=config.max_food_level,
            coop=whole["coop"] > 0 if "coop" in whole else config.coop,
            exclusive=config.version == 2,
        )
        return spawn(noise, rules, config.size, config.players, config.foods)

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        chosen = action[ROLE].discrete
        assert chosen is not None
        act = envs_last(chosen.squeeze(-1))  # [P, B]; all tensors here have environments in the last axis
        pos, level = envs_last(state["players"]), envs_last(state["levels"])
        food, food_level = envs_last(state["food"]), envs_last(state["food_level"])
        moved = self._moved(state, pos, food, act)
        loads = _next_to(pos, food) & (act == LOAD).unsqueeze(1)  # [P, F, B]
        strength = (loads * level.unsqueeze(1)).sum(0)
        # Levels of absent food are 0, but nobody loads it.
        collected = (strength >= food_level) & (strength > 0)
        spawned = state["spawned"]
        # An agent loads at most one item, and one division of whole numbers rounds like the package's.
        reward = ((loads & collected) * (level.unsqueeze(1) * food_level)).float()
        if self.config.normalize_reward:
            reward = reward / (strength * spawned).clamp(min=1)
        reward = reward.sum(1)
        penalty = state.get("penalty", self.config.penalty)
        if "penalty" in state or self.config.penalty:
            reward = torch.where((loads & ~collected).any(1), -penalty, reward)
        left = food_level.masked_fill(collected, 0)
        remaining = left.sum(0)
        done = remaining == 0
        now = {
            "players": reversed_axes(moved),
            "food": reversed_axes(torch.where(collected, -1, food)),
            "food_level": reversed_axes(left),
        }
        kept = {name: value for name, value in state.items() if name != "noise"}
        return kept | now, Outcome(
            reward=reward.T.contiguous(),
            terminated=done,
            metrics=lambda: {"collected": 1 - remaining / spawned.clamp(min=1), "done": done.float()},
        )

    def _moved(self, state: State, pos: Tensor, food: Tensor, act: Tensor) -> Tensor:
        """Positions after all moves, [2, P, B]."""
        target = self._targets(state, pos, food, act)
        square = target[0] * self.config.size + target[1]
        alone = (square.unsqueeze(1) == square).sum(0) == 1
        return torch.where(alone, target, pos)

    def _targets(self, state: State, pos: Tensor, food: Tensor, act: Tensor) -> Tensor:
        """Squares that agents want to enter or keep, [2, P, B], where food and the edge of the field are obstacles."""
        if pos.device not in self._moves:
            self._moves[pos.device] = torch.tensor(_MOVES, device=pos.device)
        change = self._moves[pos.device].index_select(1, act.flatten()).view(2, *act.shape)
        target = (pos + change).clamp_(0, self.config.size - 1)
        if "size" in state:
            target = torch.minimum(target, state["size"].long() - 1)
        occupied = (target[0].unsqueeze(1) == food[0]) & (target[1].unsqueeze(1) == food[1])
        return torch.where(occupied.any(1), pos, target)

    def observe(self, state: State) -> Observation:
        obs = square_layers(state, self.view) if self.config.grid_observation else entity_lists(state, self.view)
        mask = {ROLE: self._legal(state)} if self.config.action_mask else {}
        return Observation({ROLE: obs}, mask, {"global": whole_field(state)} if self._with_state else {})

    def _legal(self, state: State) -> Tensor:
        """True for actions that have an effect, and for `none`, [B, P, 6]."""
        pos, food = envs_last(state["players"]), envs_last(state["food"])
        every = torch.arange(1, LOAD, device=pos.device).view(-1, 1, 1)
        n, num_envs = pos.shape[1:]
        many = pos.unsqueeze(1).expand(-1, 4, -1, -1).reshape(2, 4 * n, num_envs)
        target = self._targets(state, many, food, every.expand(-1, n, num_envs).reshape(4 * n, num_envs))
        moves = (target != many).any(0).view(4, n, num_envs)
        load = _next_to(pos, food).any(1)
        return torch.cat((torch.ones_like(load)[None], moves, load[None])).permute(2, 1, 0)

    def _fused_step(
        self, state: State, action: dict[str, Action], resetting: Tensor | None, initial: State | None
    ) -> Advanced | None:
        """Does the work of `step`, of starting episodes, and of `observe` by the kernel; see `World.fused_step`."""
        chosen = action[ROLE].discrete
        assert chosen is not None
        if chosen.dtype is not torch.int64 or not chosen.is_cpu or native.is_traced(state["players"]):
            return None
        varying = {name: value for name, value in state.items() if name in self.parameters}
        if resetting is not None and initial is not None:
            varying = {name: torch.where(resetting, initial[name], value) for name, value in varying.items()}
        size, sight, penalty = (varying.get(name) for name in ("size", "sight", "penalty"))
        inputs = StepInputs(
            state=state,
            action=chosen,
            size=None if size is None else size.long(),
            sight=None if sight is None else sight.long(),
            penalty=None if penalty is None else penalty.float(),
            resetting=resetting,
            initial=initial,
        )
        out = foraging_step(self._constants, inputs)
        observation = Observation(
            {ROLE: out.obs},
            {} if out.mask is None else {ROLE: out.mask},
            {} if out.whole_field is None else {"global": out.whole_field},
        )
        outcome = Outcome(
            reward=out.reward,
            terminated=out.done,
            metrics=lambda: dict(zip(self.spec.metrics, out.metrics, strict=True)),
        )
        return varying | out.state, outcome, observation

    def _kernel_constants(self) -> ForagingConstants:
        config, view = self.config, self.view
        return ForagingConstants(
            side=view.side,
            players=view.players,
            foods=config.foods,
            sight=view.sight,
            with_levels=view.with_levels,
            grid=config.grid_observation,
            normalized=config.normalize_reward,
            moves=_MOVES,
            load=LOAD,
            penalty=config.penalty,
            masked=config.action_mask,
            with_state=self._with_state,
        )

    def render(self, state: State, size: int) -> np.ndarray:
        side = int(state["size"]) if "size" in state else self.config.size
        return draw(self.spec.name, {name: value[0].tolist() for name, value in state.items()}, side, size)


def _next_to(pos: Tensor, food: Tensor) -> Tensor:
    """True for food on a neighboring square: [P, F, B] for positions [2, P, B] and [2, F, B].

    Absent food, in row -1 and column -1, is next to no square of the field.
    """
    gap = (pos.unsqueeze(2) - food.unsqueeze(1)).abs()
    return gap[0] + gap[1] == 1


def field_state(
    field: Tensor, positions: Tensor, levels: Tensor, *, foods: int, spawned: Tensor | None = None
) -> State:
    """Returns states with given fields, in the package's terms.

    Args:
        field: Level of the food on every square [B, side, side], 0 for none.
        positions: Row and column of every agent [B, P, 2].
        levels: [B, P].
        foods: Number of food items for which the state has room, at least as many as on any field.
        spawned: Level of all food at the start of the episode [B]; None if no food was collected yet.
    """
    side, flat = field.shape[-1], field.long().flatten(1)
    square = torch.argsort((flat == 0).byte(), dim=1, stable=True)[:, :foods]
    level = flat.gather(1, square)
    food = torch.stack((square // side, square % side), -1)
    return {
        "players": positions.long(),
        "levels": levels.long(),
        "food": torch.where(level.unsqueeze(-1) > 0, food, -1),
        "food_level": level,
        "spawned": flat.sum(1) if spawned is None else spawned.long(),
    }


def _parameters(config: ForagingConfig) -> dict[str, Parameter]:
    """Parameters that may vary between episodes, by name."""
    smallest = max(3, int(np.ceil(np.sqrt(config.players))))
    found = {
        "size": Parameter(config.size, smallest, config.size, "side length of the field", integer=True),
        "foods": Parameter(config.foods, 1, config.foods, "number of food items", integer=True),
        "coop": Parameter(float(config.coop), 0, 1, "1: all food has the highest level", integer=True),
        "max_player_level": Parameter(
            *(config.max_player_level, config.min_player_level, config.max_player_level),
            "highest level of agents",
            integer=True,
        ),
        "penalty": Parameter(config.penalty, 0, 100, "penalty for failing to load food"),
    }
    if not config.grid_observation:
        sight = min(config.sight or config.size, config.size)
        found["sight"] = Parameter(sight, 1, config.size, "view range of agents in squares", integer=True)
    return found


def _observation_space(config: ForagingConfig, view: View) -> spaces.Box:
    highest = config.max_player_level * min(config.players, 3)
    if config.max_food_level is not None:
        highest = config.max_food_level
    if config.grid_observation:
        width = 2 * view.sight + 1
        agents = config.max_player_level if config.observe_agent_levels else 1
        high = np.broadcast_to(np.array([agents, highest, 1], np.float32), (width, width, 3))
        return spaces.Box(np.zeros_like(high), high, dtype=np.float32)
    last = config.size - 1
    agent = [last, last, config.max_player_level] if config.observe_agent_levels else [last, last]
    high = [last, last, highest] * config.foods + agent * config.players
    low = [-1, -1, 0] * config.foods + [-1, -1, 0][: len(agent)] * config.players
    return spaces.Box(np.array(low, np.float32), np.array(high, np.float32))


@final
class Task:
    """Creates the worlds of one task. `Config` holds its settings with the defaults that its name stands for."""

    def __init__(self, name: str):
        self.name = name
        changed: dict[str, Any] = {}
        for key, value in settings(name).items():
            field = copy(ForagingConfig.model_fields[key])
            field.default = value
            changed[key] = (field.annotation, field)
        self.Config: type[Any] = create_model(
            f"Foraging_{name}", __base__=ForagingConfig, __doc__=f"Settings of foraging/{name}.", **changed
        )

    def __call__(self, config: Any, with_state: bool = False) -> Foraging:
        return Foraging(self.name, config, with_state)


@cache
def _task(name: str) -> Task:
    return Task(name)


def __getattr__(name: str) -> Task:
    """Maker of a task; most task names are not valid Python identifiers."""
    if find(name) is None:
        raise AttributeError(f"foraging: no task named {name!r}")
    return _task(name)
