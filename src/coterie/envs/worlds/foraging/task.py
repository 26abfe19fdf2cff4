"""The world: agents on a grid collect food whose level needs their combined levels.

A step has the order of the package `lbforaging`: actions that are impossible become `none`; all agents move at once,
unless several want to enter or keep one square, in which case those that move stay; then food is loaded. The package
processes loading agents in the order of a set. The result does not depend on it, because food is never placed so that
a square is next to two items. Like in the package, an agent can enter the square of one that tried to leave it and
could not, and both then share it.
"""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.foraging.observations import (
    View,
    entity_lists,
    envs_last,
    reversed_axes,
    square_layers,
    whole_field,
)
from coterie.envs.worlds.foraging.render import draw
from coterie.envs.worlds.foraging.spawn import Rules, noise_size, spawn
from coterie.envs.worlds.world import Observation, Outcome, State, World

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
        self._moves: dict[torch.device, Tensor] = {}
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"agent_{i}" for i in range(config.players)),
            _observation_space(config, self.view),
            action_space=spaces.Discrete(len(ACTIONS)),
            choice_names=(ACTIONS,),
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
