"""A scripted policy that needs no training: a courier that acts on what each agent observes.

Couriers drive on one-way streets past all shelves. One that sees a requested shelf next to its cell fetches it, takes
the shortest street to a goal, and puts the shelf into the first free place that it passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.config.schema import Choice
from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.warehouse.layout import regular_floor
from coterie.envs.worlds.warehouse.observations import OWN, SEEN
from coterie.envs.worlds.warehouse.streets import streets
from coterie.envs.worlds.warehouse.task import ROLE, TOGGLE

Act = Callable[[Timestep], dict[str, Action]]


def couriers(team: TeamSpec, env: Choice) -> Act:
    """warehouse/*: agents deliver requested shelves and put them back.

    Raises:
        ValueError: If observations do not show the cells around an agent, or the floor is a drawing.
    """
    config: Any = env.params
    if config.layout is not None:
        raise ValueError("env.layout: the courier plans its streets from env.shelf_rows and env.shelf_columns only.")
    if config.observation_type != "flattened" or config.sensor_range < 1:
        raise ValueError("the courier reads env.observation_type=flattened with env.sensor_range of at least 1.")
    floor = regular_floor(config.shelf_rows, config.shelf_columns, config.column_height)
    (height, width), side = floor.size, 2 * config.sensor_range + 1
    middle = side * side // 2
    around = [middle, middle - side, middle + side, middle - 1, middle + 1]  # own cell, up, down, left, right

    def act(timestep: Timestep) -> dict[str, Action]:
        obs = timestep.obs[ROLE]
        plan = streets(floor, obs.device)
        x, y = obs[..., 0], obs[..., 1]
        if config.normalized_coordinates:
            x, y = x * (width - 1), y * (height - 1)
        cell = (y * width + x).round().long()
        loaded, direction = obs[..., 2] > 0, obs[..., 3:7].argmax(-1)
        seen = obs[..., OWN:].unflatten(-1, (side * side, SEEN + config.msg_bits))[..., around, :]
        agent, shelf, requested = seen[..., 1:, 0] > 0, seen[..., 1:, -2] > 0, seen[..., 1:, -1] > 0
        wanted = seen[..., 0, -1] > 0  # the shelf on the agent's own cell
        next_cell = plan.ahead.view(-1, 4)[cell]
        at_home = ~plan.highway[cell]
        place = ~plan.highway[next_cell] & ~agent & (next_cell != cell[..., None])
        inviting = place & torch.where(loaded[..., None], ~shelf, requested) & ~(loaded & wanted)[..., None]
        inviting = inviting & ~at_home[..., None]
        heading = torch.where(loaded & wanted, plan.to_goal[cell], plan.tour[cell])
        heading = torch.where(inviting.any(-1), inviting.byte().argmax(-1), heading)
        drive = plan.drive[direction, heading]
        toggles = at_home & (loaded != wanted)
        return _action(torch.where(toggles, TOGGLE, drive), config.msg_bits)

    return act


def _action(choice: Tensor, msg_bits: int) -> dict[str, Action]:
    """Actions with empty messages."""
    return {ROLE: Action(discrete=torch.nn.functional.pad(choice.unsqueeze(-1), (0, msg_bits)))}
