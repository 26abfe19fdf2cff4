"""The multi-robot warehouse: agents fetch requested shelves, deliver them at the goals, and bring them back.

The rules are those of the package `rware` 2.0.0, see Papoudakis et al. 2021 and Christianos et al. 2020.
`getattr(module, name)` returns the maker of a name such as `tiny-2ag-easy`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, final

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, Field, create_model
from torch import Tensor

from coterie.core.specs import EnvSpec, RoleSpec
from coterie.core.types import Action
from coterie.envs.contract.parameters import Parameter
from coterie.envs.worlds.warehouse import Site, moves, site
from coterie.envs.worlds.warehouse import observations as views
from coterie.envs.worlds.warehouse.config import WarehouseConfig
from coterie.envs.worlds.warehouse.layout import Tables, drawn_floor, regular_floor, tables
from coterie.envs.worlds.warehouse.render import draw
from coterie.envs.worlds.world import Observation, Outcome, State, World

_Number = TypeVar("_Number", int, float)

ROLE = "agent"
STAY, FORWARD, TURN_LEFT, TURN_RIGHT, TOGGLE = range(5)
NAMES = ("stay", "forward", "turn left", "turn right", "load or unload")


@final
class Warehouse(World):
    """Agents receive 1 for each delivery of a requested shelf to a goal; another shelf is requested then.

    Agents drive forward or turn, and carry one shelf at a time, which they load and unload where shelves start. With a
    shelf, they cannot drive through shelves. Where several agents want one cell, `moves` decides.

    The state has `cell`, `direction`, `carrying` (a shelf's number from 1, 0 for none) and `delivered` [B, N], the
    grids `shelves` and `robots` [B, P] with the numbers of shelves and agents from 1, and `requested` [B, S + 1].
    Metrics, at the last step: `deliveries`, and `blocked`, the number of times that agents could not drive forward
    because of a shelf or other agents.

    Args:
        name: Name of the environment in its family.
        config: The settings.
        with_state: True if observations include a state for critics.
    """

    Config = WarehouseConfig

    def __init__(self, name: str, config: WarehouseConfig, requests: int, with_state: bool = False):
        self.config, self._requests, self._with_state = config, requests, with_state
        columns = (config.shelf_rows, config.shelf_columns, config.column_height)
        self.floor = regular_floor(*columns) if config.layout is None else drawn_floor(config.layout)
        height, width = self.floor.size
        self._num_shelves = self.floor.num_shelves
        if config.agents > height * width:
            raise ValueError(f"agents={config.agents}: the floor has {height * width} cells. Use fewer agents.")
        if requests >= self._num_shelves:
            raise ValueError(
                f"request_queue_size={requests}: expected less than the number of shelves, {self._num_shelves}. "
                "After a delivery, another one has to be requested."
            )
        self.terminate_at_limit = config.terminate_at_limit
        self.reset_noise_size = 3 * config.agents + self._num_shelves
        self.step_noise_size = len(self.floor.goals)
        self.parameters = _parameters(config, requests)
        self.apply_parameters = self._with_requests
        self.spec = self._make_spec(name)

    def _make_spec(self, name: str) -> EnvSpec:
        config = self.config
        messages = [2] * config.msg_bits
        role = RoleSpec(
            ROLE,
            "team",
            tuple(f"agent_{i}" for i in range(config.agents)),
            views.observation_space(config, self.floor.size),
            action_space=spaces.MultiDiscrete([len(NAMES), *messages]) if messages else spaces.Discrete(len(NAMES)),
            choice_names=(NAMES, *((("0", "1"),) * config.msg_bits)),
        )
        size = views.global_state_size(self.floor.size, config.agents)
        return EnvSpec(
            name,
            (role,),
            {"global": size} if self._with_state else {},
            metrics=("deliveries", "blocked"),
            episode_limit=config.max_steps,
        )

    def tables(self, device: torch.device) -> Tables:
        """Tables of the floor on a device."""
        return tables(self.floor, self.config.sensor_range, self.config.normalized_coordinates, device)

    def probes(self, num_items: int, device: torch.device) -> dict[int, Tensor]:
        """Probes of the floor's cells for sets of at most `num_items` cells, see `set_order`."""
        (height, width), border = self.floor.size, self.config.sensor_range
        sizes = moves.table_sizes(num_items)
        return {size: moves.probe_table(width, height, border, size, device) for size in sizes}

    def reset(self, noise: Tensor) -> State:
        n, num_envs, floor = self.config.agents, len(noise), self.tables(noise.device)
        where, facing, loading, order = noise.split((n, n, n, self._num_shelves), 1)
        cell = floor.cells[_sample(where, len(floor.cells))]
        shelves = torch.zeros(num_envs, len(floor.highway), dtype=torch.int16, device=noise.device)
        shelves[:, floor.homes] = torch.arange(1, self._num_shelves + 1, dtype=torch.int16, device=noise.device)
        number = torch.arange(1, n + 1, dtype=torch.int16, device=noise.device).expand(num_envs, -1)
        zeros = torch.zeros(num_envs, dtype=torch.int64, device=noise.device)
        state = {
            "cell": cell,
            "direction": (facing * 4).long().clamp_(max=3),
            "carrying": torch.zeros_like(cell),
            "delivered": torch.zeros_like(cell, dtype=torch.bool),
            "shelves": shelves,
            "robots": torch.zeros_like(shelves).scatter_(1, cell, number),
            "request_order": 1 + order.argsort(1),
            "load_noise": loading,
            "deliveries": zeros,
            "blocked": zeros,
        }
        if self.config.max_inactivity_steps is not None:
            state["inactive"] = zeros
        if self.config.msg_bits:
            state["message"] = noise.new_zeros(num_envs, n, self.config.msg_bits)
        return self._with_requests(state)

    def _with_requests(self, state: State) -> State:
        """Requests the first shelves of the random order, and gives them to the agents that start with one."""
        order, floor = state["request_order"], self.tables(state["cell"].device)
        size = _per_env(state, "request_queue_size", self._requests)
        size = size if isinstance(size, int) else size.clamp(max=self._num_shelves - 1)
        first = (torch.arange(order.shape[1], device=order.device) < size).expand_as(order)
        requested = torch.zeros(len(order), self._num_shelves + 1, dtype=torch.bool, device=order.device)
        state = state | {"requested": requested.scatter(1, order, first)}
        if self.config.start_loaded == 0 and "start_loaded" not in state:
            return state
        held = min(self.config.agents, self._num_shelves)
        loaded = (state["load_noise"] < _per_env(state, "start_loaded", self.config.start_loaded))[:, :held]
        loaded = loaded & first[:, :held] & floor.highway[state["cell"][:, :held]]
        carrying = torch.where(loaded, order[:, :held], 0)
        shelves = state["shelves"]
        homes = floor.homes[order[:, :held] - 1]
        shelves = shelves.scatter(1, homes, shelves.gather(1, homes).masked_fill(loaded, 0))
        here = state["cell"][:, :held]
        shelves = shelves.scatter(1, here, torch.where(loaded, carrying.to(shelves.dtype), shelves.gather(1, here)))
        carrying = torch.nn.functional.pad(carrying, (0, self.config.agents - held))
        return state | {"carrying": carrying, "shelves": shelves}

    def step(self, state: State, action: dict[str, Action], noise: Tensor | None) -> tuple[State, Outcome]:
        chosen = action[ROLE].discrete
        assert chosen is not None
        assert noise is not None
        floor, cell, carrying = self.tables(noise.device), state["cell"], state["carrying"]
        act, loaded = chosen[..., 0], carrying > 0
        target, moved = self._move(state, act == FORWARD, floor)
        under = state["shelves"].gather(1, cell)
        toggles = act == TOGGLE
        loads = toggles & ~loaded & (under > 0)
        unloads = toggles & loaded & ~floor.highway[cell]
        held = torch.where(loads, under.long(), carrying.masked_fill(unloads, 0))
        now = {
            "cell": moved,
            "direction": floor.turned[act * 4 + state["direction"]],
            "carrying": held,
            "shelves": _driven(state["shelves"], cell, moved, under, carrying),
            "robots": _numbered(state["robots"], cell, moved),
            "blocked": state["blocked"] + (target != moved).sum(1),
        }
        if self.config.msg_bits:
            now["message"] = chosen[..., 1:].to(state["message"].dtype)
        reward = self._load_reward(state, carrying, held)
        if self.config.reward_type == "two_stage":
            reward = reward + 0.5 * (unloads & state["delivered"])
        now["delivered"] = state["delivered"] & ~unloads
        return self._deliver(state | now, reward, noise, floor)

    def _move(self, state: State, forward: Tensor, floor: Tables) -> tuple[Tensor, Tensor]:
        """Cells ahead of the agents that drive `forward` [B, N], their own for the others, and where they end up."""
        cell, carrying = state["cell"], state["carrying"]
        target = torch.where(forward, floor.ahead[cell * 4 + state["direction"]], cell)
        robot = state["robots"].gather(1, target).long()
        carried = torch.nn.functional.pad(carrying, (1, 0)).gather(1, robot) > 0
        stands = (state["shelves"].gather(1, target) > 0) & ~carried
        wanted = torch.where((carrying > 0) & stands, cell, target)
        robot = torch.where(wanted == cell, torch.arange(1, cell.shape[1] + 1, device=cell.device), robot)
        occupant = torch.where(robot > 0, robot - 1, self.config.agents)
        return target, torch.where(moves.moving(cell, wanted, occupant, self.probes), wanted, cell)

    def _load_reward(self, state: State, before: Tensor, after: Tensor) -> Tensor:
        """[B, N]: `load_reward` for loading a requested shelf, and its negative for unloading one."""
        like = state["load_noise"]
        if self.config.load_reward == 0 and "load_reward" not in state:
            return torch.zeros_like(like)
        requested = state["requested"]
        change = requested.gather(1, after).to(like.dtype) - requested.gather(1, before).to(like.dtype)
        return change * _per_env(state, "load_reward", self.config.load_reward)

    def _deliver(self, state: State, reward: Tensor, noise: Tensor, floor: Tables) -> tuple[State, Outcome]:
        """Delivers shelves at the goals, one goal after another, and requests others."""
        shelf = state["shelves"][:, floor.goals].long()  # [B, G]
        count = torch.zeros_like(state["deliveries"])
        if shelf.is_cuda or bool(state["requested"].gather(1, shelf).any()):
            agent = state["robots"][:, floor.goals].long() - 1
            for k in range(len(floor.goals)):
                requested, hit = replaced(state["requested"], shelf[:, k], noise[:, k])
                state["requested"] = requested
                count = count + hit
                by = hit[:, None] & (agent[:, k : k + 1] == torch.arange(self.config.agents, device=shelf.device))
                if self.config.reward_type == "two_stage":
                    state["delivered"] = state["delivered"] | by
                    reward = reward + 0.5 * by
                else:
                    reward = reward + (by if self.config.reward_type == "individual" else hit[:, None])
        state["deliveries"] = state["deliveries"] + count
        terminated = None
        if self.config.max_inactivity_steps is not None:
            state["inactive"] = (state["inactive"] + 1).masked_fill(count > 0, 0)
            terminated = state["inactive"] >= self.config.max_inactivity_steps
        return state, Outcome(
            reward=reward,
            terminated=terminated,
            metrics=lambda: {name: state[name].float() for name in ("deliveries", "blocked")},
        )

    def observe(self, state: State) -> Observation:
        floor = self.tables(state["cell"].device)
        shown = {"global": views.global_state(floor, state)} if self._with_state else {}
        if self.config.observation_type == "flattened":
            return Observation({ROLE: views.flattened(self.config, floor, state)}, state=shown)
        image = views.images(self.config, floor, state)
        if self.config.observation_type == "image":
            return Observation({ROLE: image}, state=shown)
        seen = {"features": views.features(floor, state), "image": image}
        return Observation({ROLE: seen}, state=shown)  # pyright: ignore[reportArgumentType] - a dictionary of sensors

    def render(self, state: State, size: int) -> np.ndarray:
        return draw(self.spec.name, self.floor, self.tables(state["cell"].device), state, size)


def replaced(requested: Tensor, shelf: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces a delivered shelf by another one, drawn uniformly from those that are not requested.

    Args:
        requested: [B, S + 1] bool, with an entry for no shelf, which is False.
        shelf: [B] int64, the shelf at the goal; 0 for none.
        noise: [B], uniform numbers in [0, 1); the k-th of n shelves is drawn for numbers from k / n to (k + 1) / n.

    Returns:
        The requested shelves after the step, and where a requested shelf is at the goal, [B] bool.
    """
    hit = requested.gather(1, shelf[:, None]).squeeze(1)
    free = ~requested
    free[:, 0] = False
    rank = free.cumsum(1)
    num_free = rank[:, -1]
    drawn = 1 + torch.minimum((noise * num_free).long(), num_free - 1)
    new = free & (rank == drawn[:, None])
    old = torch.arange(requested.shape[1], device=requested.device) == shelf[:, None]
    return torch.where(hit[:, None], (requested & ~old) | new, requested), hit


def _driven(shelves: Tensor, cell: Tensor, moved: Tensor, under: Tensor, carrying: Tensor) -> Tensor:
    """The grid after agents have carried their shelves from `cell` to `moved`."""
    loaded = carrying > 0
    left = shelves.scatter(1, cell, under.masked_fill(loaded, 0))
    return left.scatter_(1, moved, torch.where(loaded, carrying.to(shelves.dtype), left.gather(1, moved)))


def _numbered(robots: Tensor, cell: Tensor, moved: Tensor) -> Tensor:
    """The grid of agents after they have moved."""
    number = torch.arange(1, cell.shape[1] + 1, dtype=robots.dtype, device=robots.device).expand_as(cell)
    return robots.scatter(1, cell, torch.zeros_like(number)).scatter_(1, moved, number)


def _parameters(config: WarehouseConfig, requests: int) -> dict[str, Parameter]:
    """Parameters that may vary between environments."""
    size = "number of requested shelves; with too many, all but one are requested"
    held = "probability that an agent on a highway starts with a requested shelf"
    return {
        "request_queue_size": Parameter(requests, 0, 10_000, size, integer=True),
        "load_reward": Parameter(config.load_reward, 0, 10, "reward for loading a requested shelf"),
        "start_loaded": Parameter(config.start_loaded, 0, 1, held),
    }


def _per_env(state: State, name: str, default: _Number) -> Tensor | _Number:
    """A parameter as [B, 1] if it varies, else its default."""
    return state[name][:, None] if name in state else default


def _sample(noise: Tensor, count: int) -> Tensor:
    """Draws different numbers of 0 .. count - 1 by exchanging cells of a list, [B, n] from noise [B, n]."""
    pool = torch.arange(count, device=noise.device).repeat(len(noise), 1)
    drawn = []
    for i in range(noise.shape[1]):
        at = i + (noise[:, i : i + 1] * (count - i)).long().clamp_(max=count - i - 1)
        drawn.append(pool.gather(1, at))
        pool.scatter_(1, at, pool[:, i : i + 1].clone())
    return torch.cat(drawn, 1)


@final
class WarehouseMaker:
    """Creates the worlds of one name. `Config` holds its settings with the size and the agents of the name."""

    def __init__(self, name: str, place: Site):
        self.name, self._requests_per_agent = name, place.requests_per_agent
        defaults: dict[str, Any] = {}
        for key in ("agents", "shelf_rows", "shelf_columns"):
            own = WarehouseConfig.model_fields[key]
            limits = {"ge": 1, "le": next(limit.le for limit in own.metadata if hasattr(limit, "le"))}
            defaults[key] = (int, Field(getattr(place, key), description=own.description, **limits))
        self.Config: type[BaseModel] = create_model(
            f"Warehouse_{name}", __base__=WarehouseConfig, __doc__=f"Settings of warehouse/{name}.", **defaults
        )

    def __call__(self, config: WarehouseConfig, with_state: bool = False) -> Warehouse:
        requests = config.request_queue_size
        if requests is None:
            requests = int(config.agents * self._requests_per_agent)
        return Warehouse(self.name, config, requests, with_state)


@cache
def _maker(name: str, place: Site) -> WarehouseMaker:
    return WarehouseMaker(name, place)


def __getattr__(name: str) -> WarehouseMaker:
    """Maker of a warehouse; the names are not valid Python identifiers."""
    place = site(name)
    if place is None:
        raise AttributeError(f"warehouse: there is no warehouse named {name!r}")
    return _maker(name, place)
