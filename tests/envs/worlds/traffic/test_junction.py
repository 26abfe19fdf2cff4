"""Traffic junctions: literal situations, and a plain Python reference on random actions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from coterie.config.schema import Choice
from coterie.core.types import Action
from coterie.envs.make import make
from coterie.envs.worlds.traffic.junction import (
    BRAKE,
    GAS,
    Easy,
    EasyConfig,
    Hard,
    HardConfig,
    Medium,
    MediumConfig,
    positions,
)
from coterie.envs.worlds.traffic.roads import Level, lanes, roads, routes
from coterie.envs.worlds.traffic.scripts import gas, right_of_way

WORLDS: dict[str, tuple[Any, Any]] = {"easy": (Easy, EasyConfig), "medium": (Medium, MediumConfig)}
WORLDS["hard"] = Hard, HardConfig
DOWN, ACROSS = 0, 1
"""Routes of junction-easy."""


def world_of(level: str, **settings: Any) -> Any:
    world, config = WORLDS[level]
    return world(config(**settings), True)


def state_of(world: Any, *cars: tuple[int, int, int] | None) -> dict[str, torch.Tensor]:
    """Returns the state of one environment with cars as (route, place, age); None for an empty slot."""
    state = world.reset(torch.zeros(1, 1))
    state["alive"] = torch.tensor([[car is not None for car in cars]])
    for k, name in enumerate(("route", "place", "age")):
        state[name] = torch.tensor([[0 if car is None else car[k] for car in cars]])
    return state


# -------------------------------------------------------------------------------------------------------------- routes


def test_routes_of_an_easy_junction_cross_in_the_middle():
    down = [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2)]
    assert routes("easy", 5) == [[down], [[(column, row) for row, column in down]]]


def test_cars_keep_to_the_right_and_go_straight_right_or_left():
    from_top, from_bottom = routes("medium", 6)[:2]
    assert from_top == [
        [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2)],
        [(0, 2), (1, 2), (2, 2), (2, 1), (2, 0)],
        [(0, 2), (1, 2), (2, 2), (3, 2), (3, 3), (3, 4), (3, 5)],
    ]
    assert from_bottom[1] == [(5, 3), (4, 3), (3, 3), (3, 4), (3, 5)]


def test_a_hard_junction_has_seven_routes_per_arrival():
    found = routes("hard", 18)
    assert [len(paths) for paths in found] == [7] * 8
    # From the top on the left: straight and left, then straight through the third junction.
    assert found[0][2] == [(row, 4) for row in range(14)] + [(13, column) for column in range(5, 18)]
    # Right at the first junction leads off the grid.
    assert found[0][3] == [(row, 4) for row in range(5)] + [(4, column) for column in range(3, -1, -1)]


@pytest.mark.parametrize(("level", "size"), [("easy", 7), ("medium", 14), ("hard", 18), ("hard", 9)])
def test_routes_lead_from_one_edge_to_another_along_lanes(level, size):
    directions = {lane[0] for lane in lanes(level, size)}
    for path in (path for arrival in routes(level, size) for path in arrival):
        steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(path)}
        assert steps <= directions
        assert len(set(path)) == len(path)
        (row, column), (end_row, end_column) = path[0], path[-1]
        assert {0, size - 1} & {row, column}
        assert {0, size - 1} & {end_row, end_column}


def test_a_slot_is_used_again_in_the_step_in_which_its_car_leaves():
    env = make("traffic/junction-easy", {"cars": 1, "arrival_rate": 1.0, "size": 5, "episode_limit": 40}, num_envs=1)
    timestep = env.reset()
    assert not timestep.alive.any()
    gas = {"car": Action(discrete=torch.zeros(1, 1, 1, dtype=torch.int64))}
    firsts, ends = [], []
    for _ in range(40):
        result, timestep = env.step(gas)
        firsts.append(timestep.first.item())
        ends.append(result.terminated.item())
        assert timestep.alive.all()
    # A life has five timesteps, and the step that ends the episode begins no next life.
    assert firsts == [now % 5 == 0 and now < 39 for now in range(40)]
    assert ends == [now % 5 == 0 and now > 0 for now in range(40)]


# ------------------------------------------------------------------------------------------------------------ reference


class Reference:
    """One junction in plain Python, with the rules of the page, from the same uniform numbers."""

    def __init__(self, level: Level, config: Any):
        self.level, self.config = level, config
        self.arrivals = routes(level, config.size)
        self.paths = [path for paths in self.arrivals for path in paths]
        self.road = sorted({square for path in self.paths for square in path})
        self.cars: list[dict[str, Any] | None] = [None] * config.cars
        self.collisions = self.arrived = 0

    def step(self, actions: list[int], noise: list[float]) -> tuple[list[float], list[bool]]:
        config, places = self.config, len(self.arrivals)
        left, acted = [False] * config.cars, list(self.cars)
        for i, car in enumerate(self.cars):
            if car is None:
                continue
            car["age"] += 1
            car["braked"] = actions[i] == BRAKE
            if actions[i] == GAS:
                car["place"] += 1
            if car["place"] == len(self.paths[car["route"]]):
                self.cars[i], left[i] = None, True
                self.arrived += 1
        free = [i for i in range(config.cars) if self.cars[i] is None]
        free.sort(key=lambda i: noise[2 * places + i])
        for place in range(places):
            if noise[place] < config.arrival_rate and free:
                per_place = len(self.arrivals[place])
                route = place * per_place + int(noise[places + place] * per_place)
                self.cars[free.pop(0)] = {"route": route, "place": 0, "age": 0, "braked": False}
        rewards = [0.0] * config.cars
        for i, car in enumerate(self.cars):
            if car is None:
                continue
            hit = sum(self.at(other) == self.at(car) for other in self.cars if other is not None) > 1
            self.collisions += hit
            if acted[i] is car:
                rewards[i] = -config.time_penalty * car["age"] - config.collision_penalty * hit
        return rewards, left

    def at(self, car: dict[str, Any]) -> tuple[int, int]:
        return self.paths[car["route"]][car["place"]]

    def observation(self, car: dict[str, Any] | None, size: int) -> list[float]:
        if car is None:
            return [0.0] * size
        row, column = self.at(car)
        seen: list[float] = [float(car["braked"]), car["route"] / (len(self.paths) - 1)]
        if self.config.observe_position:
            seen += [row / (self.config.size - 1), column / (self.config.size - 1)]
        reach = range(-self.config.vision, self.config.vision + 1)
        for square in ((row + down, column + across) for down in reach for across in reach):
            known = square in self.road
            if self.config.observe_position:
                seen.append(float(known))
            else:
                kinds = [0.0] * (len(self.road) + 1)
                kinds[self.road.index(square) if known else len(self.road)] = 1
                seen += kinds
            seen.append(float(sum(other is not None and self.at(other) == square for other in self.cars)))
        return seen


CASES = [
    ("easy", {}),
    ("easy", {"vision": 1, "cars": 7, "arrival_rate": 0.6}),
    ("medium", {"observe_position": True, "vision": 2}),
    ("medium", {"vision": 1, "size": 6, "cars": 3, "time_penalty": 0.5, "collision_penalty": 3.0}),
    ("hard", {"arrival_rate": 0.3}),
    ("hard", {"size": 9, "vision": 3, "observe_position": True, "arrival_rate": 0.5}),
]


@pytest.mark.parametrize(("level", "settings"), CASES)
def test_random_episodes_equal_a_plain_reference(level, settings):
    num_envs, steps = 3, 30
    world = world_of(level, **settings)
    references = [Reference(level, world.config) for _ in range(num_envs)]
    generator = torch.Generator().manual_seed(0)
    state = world.reset(torch.zeros(num_envs, 1))
    for _ in range(steps):
        actions = (torch.rand(num_envs, world.config.cars, 1, generator=generator) < 0.3).long()
        noise = torch.rand(num_envs, world.step_noise_size, generator=generator)
        state, outcome = world.step(state, {"car": Action(discrete=actions)}, noise)
        seen = world.observe(state)
        metrics = outcome.metrics()
        for b, reference in enumerate(references):
            rewards, left = reference.step(actions[b, :, 0].tolist(), noise[b].tolist())
            assert outcome.reward[b].tolist() == pytest.approx(rewards)
            assert outcome.agent_terminated[b].tolist() == left
            assert seen.alive[b].tolist() == [car is not None for car in reference.cars]
            size = seen.obs["car"].shape[-1]
            expected = [reference.observation(car, size) for car in reference.cars]
            np.testing.assert_allclose(seen.obs["car"][b].numpy(), expected, atol=1e-6)
            assert metrics["success"][b] == (reference.collisions == 0)
            assert metrics["collisions"][b] == reference.collisions
            assert metrics["arrived"][b] == reference.arrived
    assert metrics["collisions"].sum() > 0
    assert metrics["arrived"].sum() > 0


# ---------------------------------------------------------------------------------------------------------- environment


def test_the_arrival_rate_can_differ_between_environments():
    world = world_of("hard")
    state = world.reset(torch.zeros(2, 1)) | {"arrival_rate": torch.tensor([0.0, 1.0])}
    actions = torch.zeros(2, 20, 1, dtype=torch.int64)
    state, _ = world.step(state, {"car": Action(discrete=actions)}, torch.rand(2, world.step_noise_size))
    assert state["alive"].sum(1).tolist() == [0, 8]


@pytest.mark.parametrize(
    ("level", "settings", "message"),
    [
        ("easy", {"size": 8}, "size=8 does not fit the roads. Choose an odd number."),
        ("medium", {"size": 7}, "size=7 does not fit the roads. Choose an even number."),
        ("hard", {"size": 6}, "size=6 does not fit the roads. Choose a multiple of 3 from 9."),
        ("easy", {"vision": 7}, "vision=7 is beyond the grid. Choose at most size - 1 = 6."),
    ],
)
def test_grids_on_which_the_roads_do_not_fit_are_refused(level, settings, message):
    with pytest.raises(ValidationError, match=message):
        WORLDS[level][1](**settings)


def test_pictures_show_cars_and_collisions():
    world = world_of("easy")
    empty = world.render(state_of(world, None, None, None, None, None), 240)
    assert empty.shape == (240, 240, 3)
    one = world.render(state_of(world, (DOWN, 3, 3), None, None, None, None), 240)
    both = world.render(state_of(world, (DOWN, 3, 3), (ACROSS, 3, 3), None, None, None), 240)
    assert (one != empty).any()
    assert (both != one).any()


@pytest.mark.parametrize(
    ("level", "settings"), [("easy", {}), ("medium", {"vision": 1}), ("hard", {"observe_position": True})]
)
def test_squares_and_routes_can_be_read_from_observations(level, settings):
    world = world_of(level, **settings)
    count = min(world.config.cars, 2 if level == "easy" else 12)
    cars = [(route, route % 4, 0) for route in range(count)]
    state = state_of(world, *cars, *[None] * (world.config.cars - count))
    square, route = positions(world.observe(state).obs["car"], world.config)
    assert square[0, :count].equal(world.squares(state)[0, :count])
    assert route[0, :count].equal(state["route"][0, :count])


@pytest.mark.parametrize("level", WORLDS)
def test_right_of_way_avoids_all_collisions_and_gas_does_not(level):
    env = make(f"traffic/junction-{level}", {}, 64, 0)
    success = {}
    for script in (gas, right_of_way):
        act = script(env.spec.default_teams()[0], Choice(name=env.spec.name, params=WORLDS[level][1]()))
        timestep = env.reset(0)
        for _ in range({"easy": 20, "medium": 40, "hard": 80}[level]):
            result, timestep = env.step(act(timestep))
        success[script.__name__] = float(result.metrics["success"].mean())
        assert result.metrics["arrived"].min() > 0
    assert success["right_of_way"] == 1
    assert success["gas"] < 0.8


def test_every_window_of_a_road_square_has_it_in_the_middle():
    table = roads("hard", 18, 2)
    assert table.window[:-1, 12].tolist() == list(range(len(table.squares)))
    assert (table.window[-1] == len(table.squares)).all()
