"""Observations of the warehouse: flattened numbers or image layers of the window, and the state for critics."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from coterie.envs.worlds.warehouse.config import WarehouseConfig
from coterie.envs.worlds.warehouse.layout import Tables
from coterie.envs.worlds.world import State

OWN, SEEN = 8, 7
"""Numbers that an agent observes of itself, and of each cell of its window without messages."""


def observation_space(config: WarehouseConfig, size: tuple[int, int]) -> spaces.Space:
    """Observation space of an agent on a floor of `size` (height, width)."""
    window = (2 * config.sensor_range + 1) ** 2
    if config.observation_type == "flattened":
        high = np.ones(OWN + window * (SEEN + config.msg_bits), np.float32)
        if not config.normalized_coordinates:
            high[:2] = max(size[1] - 1, 1), max(size[0] - 1, 1)
        return spaces.Box(np.zeros_like(high), high)
    high = [4.0 if layer == "agent_direction" else 1.0 for layer in config.image_observation_layers]
    high = np.repeat(np.array(high, np.float32), window)
    image = spaces.Box(np.zeros_like(high), high)
    if config.observation_type == "image":
        return image
    return spaces.Dict({"features": spaces.Box(0, 1, (6,), np.float32), "image": image})


def flattened(config: WarehouseConfig, tables: Tables, state: State) -> Tensor:
    """[B, N, D]: column and row, load, direction (4), highway; then per cell of the window, row by row: agent, its
    direction (4), its message, shelf, requested shelf.
    """
    cell, direction, carrying = state["cell"], state["direction"], state["carrying"]
    num_envs, num_agents = cell.shape
    own = tables.own[cell * 4 + direction]
    own[..., 2] = carrying > 0
    window = (cell[:, :, None] + tables.window).flatten(1)  # [B, N K]
    agent, shelf = state["robots"].gather(1, window).long(), state["shelves"].gather(1, window).long()
    facing = torch.nn.functional.pad(direction + 1, (1, 0)).gather(1, agent)
    seen = tables.seen[3 * facing + (shelf > 0) + state["requested"].gather(1, shelf)]
    if config.msg_bits:
        heard = torch.nn.functional.pad(state["message"], (0, 0, 1, 0))
        heard = heard.gather(1, agent[..., None].expand(-1, -1, config.msg_bits))
        seen = torch.cat((seen[..., :5], heard, seen[..., 5:]), -1)
    return torch.cat((own, seen.view(num_envs, num_agents, -1)), -1)


def images(config: WarehouseConfig, tables: Tables, state: State) -> Tensor:
    """[B, N, L K]: the layers of the window, each row by row; 0 outside the floor."""
    cell, direction = state["cell"], state["direction"]
    num_envs, num_agents = cell.shape
    order = tables.window.expand(4, -1)
    if config.image_observation_directional:
        order = tables.window[tables.turn]
    window = (cell[:, :, None] + order[direction]).flatten(1)
    agent, shelf = state["robots"].gather(1, window).long(), state["shelves"].gather(1, window).long()

    def layer(name: str) -> Tensor:
        if name == "shelves":
            return shelf > 0
        if name == "requests":
            return state["requested"].gather(1, shelf)
        if name == "agents":
            return agent > 0
        if name == "agent_direction":
            return torch.nn.functional.pad(direction + 1, (1, 0)).gather(1, agent)
        if name == "agent_load":
            return torch.nn.functional.pad(state["carrying"] > 0, (1, 0)).gather(1, agent)
        marked = torch.zeros_like(tables.highway)
        marked[tables.goals if name == "goals" else tables.cells] = True
        return marked[window] if name == "goals" else marked[window] & (agent == 0)

    layers = [layer(name).float().view(num_envs, num_agents, 1, -1) for name in config.image_observation_layers]
    return torch.cat(layers, 2).flatten(2)


def features(tables: Tables, state: State) -> Tensor:
    """[B, N, 6]: direction (4), highway, load."""
    own = tables.own[state["cell"] * 4 + state["direction"], 3:]
    return torch.cat((own, (state["carrying"] > 0).unsqueeze(-1).float()), -1)


def global_state_size(size: tuple[int, int], num_agents: int) -> int:
    return OWN * num_agents + 2 * size[0] * size[1]


def global_state(tables: Tables, state: State) -> Tensor:
    """[B, F]: per agent column and row as fractions, load, direction (4), highway; then for every cell of the floor
    whether there is a shelf, and for every cell whether there is a requested one.
    """
    cell = state["cell"]
    own = tables.own[cell * 4 + state["direction"]]
    own[..., :2] = tables.fraction[cell]
    own[..., 2] = state["carrying"] > 0
    shelf = state["shelves"][:, tables.cells].long()
    return torch.cat((own.flatten(1), (shelf > 0).float(), state["requested"].gather(1, shelf).float()), 1)
