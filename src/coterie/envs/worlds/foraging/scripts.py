"""A scripted forager: a baseline that needs no training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.foraging.foraging import LOAD, ROLE

Act = Callable[[Timestep], dict[str, Action]]
_FAR = 10_000
_STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Change of row and column of the actions 1 to 4."""


def greedy(team: TeamSpec, env: Any) -> Act:
    """Each agent goes to the nearest food that it can collect alone. If there is none, all go to the same food, the one
    with the smallest sum of their distances. Agents take shortest paths around food and each other, and load.

    Raises:
        ValueError: If observations are not lists of the whole field with levels.
    """
    params = env.params
    if params.sight is not None and params.sight < params.size - 1:
        raise ValueError(f"env.sight={params.sight}: the script needs the whole field. Set env.sight=null.")
    if params.grid_observation or not params.observe_agent_levels:
        raise ValueError(
            "the script reads lists with the levels of agents. Set env.grid_observation=false and "
            "env.observe_agent_levels=true."
        )

    def act(timestep: Timestep) -> dict[str, Action]:
        obs = timestep.obs[ROLE].long()
        foods = obs[:, 0, : 3 * params.foods].unflatten(-1, (params.foods, 3))
        own = obs[:, :, 3 * params.foods : 3 * params.foods + 3]
        return {ROLE: Action(discrete=_choose(foods, own, params.size).unsqueeze(-1))}

    return act


def _choose(foods: Tensor, agents: Tensor, side: int) -> Tensor:
    """Actions [B, P] for food [B, F, 3] and agents [B, P, 3], each as row, column and level."""
    place, level = agents[..., :2], agents[..., 2]
    food, food_level = foods[..., :2], foods[..., 2]
    present = food_level > 0
    gap = (place.unsqueeze(2) - food.unsqueeze(1)).abs().sum(-1)  # [B, P, F]
    alone = present.unsqueeze(1) & (food_level.unsqueeze(1) <= level.unsqueeze(2))
    nearest = torch.where(alone, gap, _FAR).argmin(-1)
    together = torch.where(present, gap.sum(1), _FAR * agents.shape[1]).argmin(-1, keepdim=True)
    goal = torch.where(alone.any(-1), nearest, together)
    far = gap.gather(-1, goal.unsqueeze(-1)).squeeze(-1)
    target = food.gather(1, goal.unsqueeze(-1).expand(-1, -1, 2))
    walk = _walk(place, food, present, target, side)
    return torch.where(present.any(-1, keepdim=True), torch.where(far == 1, LOAD, walk), 0)


def _walk(place: Tensor, food: Tensor, present: Tensor, target: Tensor, side: int) -> Tensor:
    """First steps [B, P] of shortest paths to a square next to `target` [B, P, 2]; 0 to wait or if there is none.

    An agent waits if another that is closer to the first row, or else to the first column, could enter the same square.
    """
    num_envs, n = place.shape[:2]
    width = side + 2  # with a border
    wall = torch.ones(num_envs, width, width, dtype=torch.bool, device=place.device)
    wall[:, 1:-1, 1:-1] = False
    wall = wall.flatten(1)

    def square(at: Tensor) -> Tensor:
        return (at[..., 0] + 1) * width + at[..., 1] + 1

    wall = wall.scatter(1, square(place), True)
    wall = wall | torch.zeros_like(wall).scatter(1, torch.where(present, square(food), 0), True)
    far = torch.full((num_envs, n, width * width), _FAR, device=place.device)
    far = far.scatter(2, square(target).unsqueeze(-1), 0)
    # Agents start on walls, so that paths of others do not lead through them.
    wall = wall.unsqueeze(1).expand(-1, n, -1)
    wall = wall.scatter(2, square(target).unsqueeze(-1), False)
    for _ in range(4 * side):
        grid = far.unflatten(-1, (width, width))
        near = torch.full_like(grid, _FAR)
        near[:, :, 1:-1] = torch.minimum(grid[:, :, :-2], grid[:, :, 2:])
        near[..., 1:-1] = torch.minimum(near[..., 1:-1], torch.minimum(grid[..., :-2], grid[..., 2:]))
        far = torch.minimum(far, near.flatten(2) + 1).masked_fill(wall, _FAR)
    moves = torch.tensor(_STEPS, device=place.device)
    to = place.unsqueeze(2) + moves  # [B, P, 4, 2]
    reached = far.gather(2, square(to))
    best = reached.argmin(-1)
    entered = to.gather(2, best.view(num_envs, n, 1, 1).expand(-1, -1, -1, 2)).squeeze(2)
    rival = (entered.unsqueeze(2) - place.unsqueeze(1)).abs().sum(-1) == 1  # [B, P, P]
    order = place[..., 0] * side + place[..., 1]
    rival = rival & (order.unsqueeze(1) < order.unsqueeze(2))
    # Agents next to food load it, and leave the square to others.
    gap = (place.unsqueeze(2) - food.unsqueeze(1)).abs().sum(-1)
    rival = rival & ~((gap == 1) & present.unsqueeze(1)).any(-1).unsqueeze(1)
    waits = rival.any(-1) | (reached.amin(-1) >= _FAR)
    return torch.where(waits, 0, best + 1)
