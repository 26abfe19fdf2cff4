"""Warehouses of the package `rware`, and worlds that are put into the same states."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rware import warehouse as package
from torch import Tensor

from coterie.core.types import Action
from coterie.envs.worlds.warehouse import site
from coterie.envs.worlds.warehouse.warehouse import ROLE, Warehouse, WarehouseMaker
from coterie.envs.worlds.world import Observation, Outcome, State

REWARDS = {
    "individual": package.RewardType.INDIVIDUAL,
    "global": package.RewardType.GLOBAL,
    "two_stage": package.RewardType.TWO_STAGE,
}
TYPES = {
    "flattened": package.ObservationType.FLATTENED,
    "image": package.ObservationType.IMAGE,
    "image_dict": package.ObservationType.IMAGE_DICT,
}


def world_of(name: str, **settings: Any) -> Warehouse:
    """A world by the package's name without `rware-` and `-v2`."""
    place = site(name)
    assert place is not None
    maker = WarehouseMaker(name, place)
    return maker(maker.Config(**settings), with_state=False)  # pyright: ignore[reportArgumentType]


class Draw:
    """Generator that stores the number drawn at each goal as noise that leads the world to the same draw."""

    def __init__(self, env: Any):
        self._env, self._own = env, env.np_random
        self.start()

    def start(self) -> None:
        self.noise, self._goal = np.full(len(self._env.goals), 0.5), 0

    def choice(self, candidates: list[Any]) -> Any:
        env, drawn = self._env, int(self._own.integers(len(candidates)))
        for goal in range(self._goal, len(env.goals)):
            x, y = env.goals[goal]
            shelf = env.grid[1, y, x]
            if shelf and env.shelfs[shelf - 1] in env.request_queue:
                self.noise[goal], self._goal = (drawn + 0.5) / len(candidates), goal + 1
                return candidates[drawn]
        raise AssertionError("a draw without a delivery")


@dataclass
class Pair:
    """Environments of the package, a world of the same settings, and the world's state."""

    native: list[Any]
    world: Warehouse
    state: State

    def step(self, action: Tensor) -> tuple[Outcome, Observation, dict[str, np.ndarray]]:
        """Steps both by actions [B, N, 1 + m], with the package's draws.

        Returns the world's outcome and observation, and `obs`, `features`, `reward` and `done` of the package.
        """
        results = []
        for env, own in zip(self.native, action.tolist(), strict=True):
            env.np_random.start()
            results.append(env.step([each if len(each) > 1 else each[0] for each in own]))
        noise = torch.tensor(np.stack([env.np_random.noise for env in self.native]), dtype=torch.float32)
        self.state, outcome = self.world.step(self.state, {ROLE: Action(discrete=action)}, noise)
        seen = [list(one[0]) for one in results]
        return (
            outcome,
            self.world.observe(self.state),
            shown(seen)
            | {
                "reward": np.array([one[1] for one in results]),
                "done": np.array([one[2] for one in results]),
            },
        )


def shown(seen: list[list[Any]]) -> dict[str, np.ndarray]:
    """The package's observations by environment and agent as arrays [B, N, D]."""
    if not isinstance(seen[0][0], dict):
        return {"obs": np.array([[np.asarray(one).reshape(-1) for one in env] for env in seen])}
    return {
        "obs": np.array([[one["image"].reshape(-1) for one in env] for env in seen]),
        "features": np.array([[one["features"] for one in env] for env in seen]),
    }


def pair(name: str, num_envs: int, seed: int, *, loaded: float = 0.0, **settings: Any) -> Pair:
    """Resets environments of the package and puts the world into their states.

    Args:
        name: Name of the warehouse.
        num_envs: Number of environments.
        seed: Seed of the first reset.
        loaded: Probability that an agent on a highway starts with a requested shelf.
        **settings: Settings of the world.
    """
    world = world_of(name, **settings)
    config, native, rng = world.config, [], np.random.default_rng(seed)
    layers = [package.ImageLayer[layer.upper()] for layer in config.image_observation_layers]
    for index in range(num_envs):
        env = _quietly(
            shelf_columns=config.shelf_columns,
            column_height=config.column_height,
            shelf_rows=config.shelf_rows,
            n_agents=config.agents,
            msg_bits=config.msg_bits,
            sensor_range=config.sensor_range,
            request_queue_size=int(world.parameters["request_queue_size"].value),
            max_inactivity_steps=config.max_inactivity_steps,
            max_steps=config.max_steps,
            reward_type=REWARDS[config.reward_type],
            layout=config.layout and config.layout.replace("/", "\n"),
            observation_type=TYPES[config.observation_type],
            image_observation_layers=layers,
            image_observation_directional=config.image_observation_directional,
            normalised_coordinates=config.normalized_coordinates,
        )
        env.reset(seed=seed + index)
        env._np_random = Draw(env)
        for agent, shelf in zip(env.agents, env.request_queue, strict=False):
            if env.highways[agent.y, agent.x] and rng.random() < loaded:
                agent.carrying_shelf, shelf.x, shelf.y = shelf, agent.x, agent.y
        env._recalc_grid()
        native.append(env)
    return Pair(native, world, state_of(native, world))


def _quietly(**settings: Any) -> Any:
    """An environment of the package, whose spaces warn about precision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return package.Warehouse(**settings)


def state_of(native: list[Any], world: Warehouse) -> State:
    """The state of a world that equals those of the package's environments."""
    state = world.reset(torch.rand(len(native), world.reset_noise_size))
    states = [package_state(env) for env in native]
    found = {name: np.array([one[name] for one in states]) for name in states[0]}
    border, width = world.config.sensor_range, world.tables(torch.device("cpu")).width
    grids = torch.from_numpy(found.pop("grid")).to(torch.int16)
    grids = torch.nn.functional.pad(grids, (border,) * 4).flatten(2)
    x, y = torch.from_numpy(found.pop("x")), torch.from_numpy(found.pop("y"))
    state |= {name: torch.from_numpy(value) for name, value in found.items()}
    return state | {"cell": (y + border) * width + x + border, "robots": grids[:, 0], "shelves": grids[:, 1]}


def package_state(env: Any) -> dict[str, Any]:
    """The state of an environment of the package, with the names of the world's."""
    wanted = {shelf.id for shelf in env.request_queue}
    return {
        "x": [int(agent.x) for agent in env.agents],
        "y": [int(agent.y) for agent in env.agents],
        "direction": [agent.dir.value for agent in env.agents],
        "carrying": [agent.carrying_shelf.id if agent.carrying_shelf else 0 for agent in env.agents],
        "delivered": [agent.has_delivered for agent in env.agents],
        "requested": [shelf in wanted for shelf in range(len(env.shelfs) + 1)],
        "grid": env.grid.copy(),
    }


def package_moves(cells: list[list[int]], targets: list[list[int]]) -> list[bool]:
    """Which agents at `cells` (column, row) that want `targets` move in the package."""
    floor = max(max(place) for place in cells + targets) + 1
    layout = "\n".join(["." * floor] * (floor - 1) + ["g" * floor])
    env = _quietly(
        **dict.fromkeys(("shelf_columns", "column_height", "shelf_rows"), 1),
        **dict.fromkeys(("msg_bits", "sensor_range", "request_queue_size"), 0),
        **dict.fromkeys(("max_inactivity_steps", "max_steps"), None),
        n_agents=len(cells),
        reward_type=package.RewardType.GLOBAL,
        layout=layout,
    )
    package.Agent.counter = 0
    env.shelfs, env._cur_inactive_steps = [], 0
    actions = []
    for (x, y), target in zip(cells, targets, strict=True):
        step = (target[0] - x, target[1] - y)
        facing = {(0, -1): "UP", (0, 1): "DOWN", (-1, 0): "LEFT", (1, 0): "RIGHT"}.get(step)
        env.agents.append(package.Agent(x, y, package.Direction[facing or "UP"], 0))
        actions.append(0 if facing is None else 1)
    env._recalc_grid()
    env.step(actions)
    return [[agent.x, agent.y] == target for agent, target in zip(env.agents, targets, strict=True)]
