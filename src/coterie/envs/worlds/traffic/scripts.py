"""Scripted drivers: baselines that need no training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.traffic.junction import BRAKE, GAS, ROLE, positions
from coterie.envs.worlds.traffic.roads import roads

Act = Callable[[Timestep], dict[str, Action]]


def gas(team: TeamSpec, env: Any) -> Act:
    """All cars always drive on."""

    def act(timestep: Timestep) -> dict[str, Action]:
        return {ROLE: Action(discrete=torch.full_like(timestep.alive, GAS, dtype=torch.int64).unsqueeze(-1))}

    return act


def right_of_way(team: TeamSpec, env: Any) -> Act:
    """Cars that know about each other: of those that want to enter one square, the one with the longest queue behind it
    goes, and a car brakes if the square ahead of it does not become free.

    A car that brakes on the square of an arrival can still be hit by a new car.
    """
    config = env.params
    table = roads(config.level, config.size, config.vision)
    none = len(table.squares)
    ahead = torch.full((len(table.route), none + 1), none)  # the next square by route and square; none at the end
    rows = torch.arange(len(table.route)).unsqueeze(1)
    ahead[rows, table.route[:, :-1]] = table.route[:, 1:]
    ahead[:, none] = none

    def act(timestep: Timestep) -> dict[str, Action]:
        square, route = positions(timestep.obs[ROLE], config)
        square = square.masked_fill(~timestep.alive, none)
        target = ahead.to(square.device)[route, square]
        brakes = _brakes(square, target, none)
        return {ROLE: Action(discrete=torch.where(brakes, BRAKE, GAS).unsqueeze(-1))}

    return act


def _brakes(square: Tensor, target: Tensor, none: int) -> Tensor:
    """Returns which cars have to brake [B, N] bool, from their squares and the squares ahead [B, N]."""
    n = square.shape[1]
    follows = (target.unsqueeze(2) == square.unsqueeze(1)) & (target < none).unsqueeze(2)  # [B, car, car ahead]
    queue = torch.ones_like(square)
    for _ in range(n - 1):
        queue = 1 + (follows * queue.unsqueeze(2)).amax(1)
        queue = queue.clamp(max=n)  # cars in a circle
    order = queue * n + torch.arange(n, device=square.device)  # ties go to the last slot
    rival = (target.unsqueeze(2) == target.unsqueeze(1)) & (target < none).unsqueeze(2)
    rival = rival & (order.unsqueeze(1) > order.unsqueeze(2))  # [B, car, rival that goes first]
    brakes = torch.zeros_like(square, dtype=torch.bool)
    for _ in range(n):
        brakes = ((rival & ~brakes.unsqueeze(1)) | (follows & brakes.unsqueeze(1))).any(2) | brakes
    return brakes
