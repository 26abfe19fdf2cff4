"""The worlds: cars drive on fixed routes through one or four junctions, and each chooses gas or brake.

A step has the order of the package `ic3net_envs`: cars move or stay, those at the end of their routes leave, new cars
arrive, then squares with several cars are collisions.
"""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from coterie.core.device_constants import DeviceConstant
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.traffic.render import draw
from coterie.envs.worlds.traffic.roads import Level, Roads, lanes, roads
from coterie.envs.worlds.world import Observation, Outcome, State, World

ROLE = "car"
ACTIONS = ("gas", "brake")
GAS, BRAKE = range(2)


class JunctionConfig(BaseModel):
    """Settings shared by all traffic junctions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    level: ClassVar[Level]

    cars: int = Field(5, ge=1, le=256)
    """Maximum number of cars at a time: the number of agents."""
    size: int = Field(7, ge=4, le=96)
    """Side length of the grid in squares."""
    vision: int = Field(0, ge=0, le=95)
    """View range of cars in squares along each axis; 0: the car's own square."""
    arrival_rate: float = Field(0.3, ge=0, le=1)
    """Probability per step that a car arrives, at each of the places of arrival."""
    collision_penalty: float = Field(10.0, ge=0, le=10**6)
    """Subtracted from the reward of every car that shares its square, in each step."""
    time_penalty: float = Field(0.01, ge=0, le=10**6)
    """Subtracted from the reward of every car in each step, times the number of its steps so far."""
    observe_position: bool = False
    """Observe the car's position as two numbers and squares as road or not, instead of one-hot road squares."""
    episode_limit: int | None = Field(20, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""
    terminate_at_limit: bool = False
    """Treat the step limit as termination instead of truncation."""

    @model_validator(mode="after")
    def _fits_roads(self) -> JunctionConfig:
        fits, wanted = {
            "easy": (self.size % 2 == 1, "an odd number"),
            "medium": (self.size % 2 == 0, "an even number"),
            "hard": (self.size % 3 == 0 and self.size >= 9, "a multiple of 3 from 9"),
        }[self.level]
        if not fits:
            raise ValueError(f"size={self.size} does not fit the roads. Choose {wanted}.")
        if self.vision >= self.size:
            raise ValueError(f"vision={self.vision} is beyond the grid. Choose at most size - 1 = {self.size - 1}.")
        return self


class Junction(World):
    """Cars arrive at the edge, drive to the end of a random route, and leave; they must not share a square.

    A car's slot can be used again in the step in which it leaves. The new car then starts with `first` True.
    Metrics, at the last step: `success` (no collision in the episode), `collisions` (cars on shared squares, summed
    over the steps), `arrived` (cars that reached the end of their routes).
    """

    def __init__(self, config: JunctionConfig, with_state: bool = False):
        self.config, self._with_state = config, with_state
        self.terminate_at_limit = config.terminate_at_limit
        table = roads(config.level, config.size, config.vision)
        self.arrivals = len(lanes(config.level, config.size))
        self._routes, self._longest = table.route.shape
        self._choices = self._routes // self.arrivals
        self._none = len(table.squares)
        self._route = DeviceConstant(table.route.flatten())
        self._length = DeviceConstant(table.length)
        self._window = DeviceConstant(table.window)
        self._views = DeviceConstant(_views(table, config))
        self._places = DeviceConstant(torch.cat((table.squares / (config.size - 1), torch.zeros(1, 2))))
        self._first_routes = DeviceConstant(torch.arange(self.arrivals) * self._choices)
        self.reset_noise_size = 1
        self.step_noise_size = 2 * self.arrivals + config.cars
        self.parameters = {"arrival_rate": Parameter(config.arrival_rate, 0, 1, "probability that a car arrives")}
        high = np.ones(self._views.tensor.shape[1:], np.float32)
        high[_cars_columns(config, self._none)] = config.cars
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"car_{i}" for i in range(config.cars)),
            spaces.Box(np.zeros_like(high), high, dtype=np.float32),
            action_space=spaces.Discrete(len(ACTIONS)),
            choice_names=(ACTIONS,),
        )
        self.spec = EnvSpec(
            f"junction-{config.level}",
            (role,),
            {"global": 6 * config.cars} if with_state else {},
            agents_can_die=True,
            metrics=("success", "collisions", "arrived"),
            episode_limit=config.episode_limit,
        )

    def reset(self, noise: Tensor) -> State:
        num_envs, cars = len(noise), self.config.cars
        zeros = torch.zeros(num_envs, cars, dtype=torch.int64, device=noise.device)
        none = torch.zeros(num_envs, cars, dtype=torch.bool, device=noise.device)
        count = torch.zeros(num_envs, device=noise.device)
        return {
            **dict.fromkeys(("alive", "braked"), none),
            **dict.fromkeys(("route", "place", "age"), zeros),
            **dict.fromkeys(("collisions", "arrived"), count),
        }

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        chosen = action[ROLE].discrete
        assert chosen is not None
        assert noise is not None
        config, alive, route = self.config, state["alive"], state["route"]
        brakes = chosen.squeeze(-1) == BRAKE
        place = state["place"] + (~brakes).long()
        length = self._length.on(noise.device).index_select(0, route.flatten()).view_as(route)
        leaves = alive & (place >= length)
        stays = alive & ~leaves
        age = (state["age"] + 1) * stays
        new_route = self._new_routes(noise, ~stays, state.get("arrival_rate"))
        now = {
            "alive": stays | (new_route >= 0),
            "braked": stays & brakes,
            "route": torch.where(stays, route, new_route.clamp(min=0)),
            "place": place * stays,
            "age": age,
        }
        square = self.squares(now)
        hits = now["alive"] & (self._count(square).gather(1, square) > 1)
        cost = config.time_penalty * age + config.collision_penalty * hits
        collisions = state["collisions"] + hits.sum(1)
        arrived = state["arrived"] + leaves.sum(1)
        return {**state, **now, "collisions": collisions, "arrived": arrived}, Outcome(
            reward=-cost * stays,  # a new car did not act yet
            agent_terminated=leaves,
            metrics=lambda: {"success": (collisions == 0).float(), "collisions": collisions, "arrived": arrived},
        )

    def _new_routes(self, noise: Tensor, free: Tensor, rate: Tensor | None) -> Tensor:
        """Draws arrivals, and gives each a random free slot and one of the routes from its place.

        Places are filled in order until no slot is free.

        Args:
            noise: [B, step_noise_size].
            free: Slots without a car [B, N] bool.
            rate: Arrival rates [B], None for the setting.

        Returns:
            Routes of the cars that arrive [B, N] int64, -1 in other slots.
        """
        arrives, which, order = noise.split((self.arrivals, self.arrivals, self.config.cars), 1)
        comes = arrives < (self.config.arrival_rate if rate is None else rate.unsqueeze(1))
        number = comes.cumsum(1).masked_fill(~comes, 0)  # from 1, in the order of the places
        route = self._first_routes.on(noise.device) + (which * self._choices).long().clamp(max=self._choices - 1)
        # Arrivals by number, from 1; 0 for none. Column 0 collects what belongs to no arrival.
        ordered = torch.zeros(
            len(noise), 1 + max(self.arrivals, self.config.cars), dtype=route.dtype, device=noise.device
        )
        ordered.scatter_(1, number, route + 1)
        slot = order.masked_fill(~free, 2).argsort(1)  # free slots in a random order, then the others
        given = torch.empty_like(slot).scatter_(1, slot, ordered[:, 1 : 1 + self.config.cars])
        return given.masked_fill(~free, 0) - 1

    def squares(self, state: State) -> Tensor:
        """Returns the road square of every car [B, N] int64; the number of road squares for slots without a car."""
        at = state["route"] * self._longest + state["place"]
        square = self._route.on(at.device).index_select(0, at.flatten()).view_as(at)
        return square.masked_fill(~state["alive"], self._none)

    def _count(self, square: Tensor) -> Tensor:
        """Returns the number of cars on each road square, and 0 for other squares [B, Q + 1]."""
        count = torch.zeros(len(square), self._none + 1, device=square.device)
        count.scatter_add_(1, square, torch.ones_like(square, dtype=count.dtype))
        count[:, self._none] = 0
        return count

    def observe(self, state: State) -> Observation:
        square = self.squares(state)
        count, device = self._count(square), square.device
        obs = self._views.on(device).index_select(0, square.flatten()).view(*square.shape, -1)
        route = state["route"] / max(self._routes - 1, 1)
        obs[..., 0], obs[..., 1] = state["braked"], route
        window = self._window.on(device).index_select(0, square.flatten()).view(len(square), -1)  # [B, N * W * W]
        obs[..., _cars_columns(self.config, self._none)] = count.gather(1, window).view(*square.shape, -1)
        shown = {}
        if self._with_state:
            parts = (state["alive"], state["braked"], route, state["age"] / self._longest)
            cars = torch.cat((torch.stack(parts, -1), self._places.on(device)[square]), -1)
            shown = {"global": cars.flatten(1)}
        return Observation({ROLE: obs}, state=shown, alive=state["alive"])

    def render(self, state: State, size: int) -> np.ndarray:
        alive, route, place = (state[name][0].tolist() for name in ("alive", "route", "place"))
        score = {"collisions": float(state["collisions"]), "arrived": float(state["arrived"])}
        cars = {i: (route[i], place[i]) for i in range(self.config.cars) if alive[i]}
        return draw(self.spec.name, self.config.level, self.config.size, cars, score, size)


def positions(obs: Tensor, config: JunctionConfig) -> tuple[Tensor, Tensor]:
    """Returns the road square and the route of every car [.., N] int64, read from observations [.., N, D]."""
    table = roads(config.level, config.size, config.vision)
    route = (obs[..., 1] * (len(table.route) - 1)).round().long()
    if config.observe_position:
        at = (obs[..., 2:4] * (config.size - 1)).round().long()
        squares = table.squares.to(obs.device)
        return (at.unsqueeze(-2) == squares).all(-1).byte().argmax(-1), route
    none = len(table.squares)
    own = _head(config) + table.window.shape[1] // 2 * (none + 2)
    return obs[..., own : own + none].argmax(-1), route


def _head(config: JunctionConfig) -> int:
    """Number of features before the window: last action, route, and the position if it is observed as numbers."""
    return 4 if config.observe_position else 2


def _cars_columns(config: JunctionConfig, road_squares: int) -> slice:
    """Columns of an observation with the number of cars on each square of the window, its last feature."""
    per_square = 2 if config.observe_position else road_squares + 2
    return slice(_head(config) + per_square - 1, None, per_square)


def _views(table: Roads, config: JunctionConfig) -> Tensor:
    """Returns the part of observations that does not change, [Q + 1, D]: where a car is and the squares around it."""
    none = len(table.squares)
    if config.observe_position:
        square = (table.window < none).float().unsqueeze(-1)
        position = table.squares / (config.size - 1)
    else:
        square = torch.nn.functional.one_hot(table.window, none + 1).float()
        position = torch.zeros(none, 0)
    window = torch.nn.functional.pad(square, (0, 1)).flatten(1)  # the last feature is the number of cars
    head = torch.nn.functional.pad(position, (2, 0, 0, 1))
    views = torch.cat((head, window), 1)
    views[none] = 0
    return views


class EasyConfig(JunctionConfig):
    """Settings of traffic/junction-easy."""

    level = "easy"


@final
class Easy(Junction):
    """Two one-way roads that cross."""

    Config = EasyConfig


class MediumConfig(JunctionConfig):
    """Settings of traffic/junction-medium."""

    level = "medium"

    cars: int = Field(10, ge=1, le=256)
    """Maximum number of cars at a time: the number of agents."""
    size: int = Field(14, ge=4, le=96)
    """Side length of the grid in squares."""
    arrival_rate: float = Field(0.2, ge=0, le=1)
    """Probability per step that a car arrives, at each of the places of arrival."""
    episode_limit: int | None = Field(40, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""


@final
class Medium(Junction):
    """A junction of two roads with a lane in each direction, on which cars go straight or turn."""

    Config = MediumConfig


class HardConfig(JunctionConfig):
    """Settings of traffic/junction-hard."""

    level = "hard"

    cars: int = Field(20, ge=1, le=256)
    """Maximum number of cars at a time: the number of agents."""
    size: int = Field(18, ge=4, le=96)
    """Side length of the grid in squares."""
    arrival_rate: float = Field(0.05, ge=0, le=1)
    """Probability per step that a car arrives, at each of the places of arrival."""
    episode_limit: int | None = Field(80, ge=1, le=10**9)
    """Maximum number of steps before truncation; None: no limit."""


@final
class Hard(Junction):
    """Four junctions of four roads with a lane in each direction, on which cars turn at most twice."""

    Config = HardConfig
