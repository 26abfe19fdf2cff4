"""Scripted teams that need no training: how far plain rules come in a battle.

Each reads the world's own state, a dict of [B, ...] tensors, and gives the action of every agent. Rules give open
choices only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.envs.skirmish.battle import ROLE, Skirmish
from coterie.envs.skirmish.force import FIRST_TARGET, MOVES, NOOP, STOP
from coterie.envs.skirmish.sight import SIGHT
from coterie.envs.skirmish.units import STEP
from coterie.envs.world import State
from coterie.types import Action

_FAR = 1e6
_TOO_NEAR = 5.0


def attack_nearest(world: Skirmish, state: State) -> dict[str, Action]:
    """Everybody attacks the nearest enemy that it can choose, walks to the nearest in sight, or waits."""
    distance, _ = _around(world, state)
    return _attack(world, state, distance)


def attack_weakest(world: Skirmish, state: State) -> dict[str, Action]:
    """As `attack_nearest`, but of the enemies that it can choose it takes the one with the fewest points left."""
    n, points = world.force.n, world.layout.points
    left = state["units"][:, points, n:].sum(1)
    return _attack(world, state, left.unsqueeze(1).expand(-1, n, -1))


def hit_and_run(world: Skirmish, state: State) -> dict[str, Action]:
    """As `attack_weakest`, but who shoots walks away from an enemy that is near while its weapon is not ready."""
    n, cooldown = world.force.n, world.layout.place["cooldown"]
    distance, offset = _around(world, state)
    near, who = distance.min(2)
    away = -offset.gather(3, who[:, None, :, None].expand(-1, 2, -1, 1)).squeeze(3)
    flight = _open_move(world, state, away)
    shoots = torch.tensor([unit.range > 1 for unit in world.force.units[:n]], device=near.device)
    waits = shoots & (state["units"][:, cooldown, :n] > STEP)
    attack = attack_weakest(world, state)[ROLE].discrete
    assert attack is not None
    runs = waits & (near < _TOO_NEAR) & (state["units"][:, 2, :n] > 0)
    return {ROLE: Action(torch.where(runs.unsqueeze(-1), flight.unsqueeze(-1), attack))}


def _around(world: Skirmish, state: State) -> tuple[Tensor, Tensor]:
    """[B, n, m] distances to the enemies and [B, 2, n, m] offsets."""
    units, n = state["units"], world.force.n
    offset = units[:, :2, None, n:] - units[:, :2, :n, None]
    return torch.hypot(offset[:, 0], offset[:, 1]), offset


def _attack(world: Skirmish, state: State, cost: Tensor) -> dict[str, Action]:
    """Each attacks the enemy with the least cost [B, n, m] of those that it can choose, else walks to the nearest."""
    m = world.force.m
    mask = world.view(state).action_mask[ROLE]
    distance, offset = _around(world, state)
    fit = mask[..., FIRST_TARGET : FIRST_TARGET + m]
    target = cost.masked_fill(~fit, _FAR).argmin(2) + FIRST_TARGET
    near, who = distance.min(2)
    towards = offset.gather(3, who[:, None, :, None].expand(-1, 2, -1, 1)).squeeze(3)
    walk = torch.where(near < SIGHT, _open_move(world, state, towards), STOP)
    chosen = torch.where(fit.any(2), target, walk)
    alive = state["units"][:, 2, : world.force.n] > 0
    return {ROLE: Action(torch.where(alive, chosen, NOOP).unsqueeze(-1))}


def _open_move(world: Skirmish, state: State, wanted: Tensor) -> Tensor:
    """[B, n]: the open move that leads most nearly in the direction `wanted` [B, 2, n]."""
    mask = world.view(state).action_mask[ROLE][..., FIRST_TARGET - len(MOVES) : FIRST_TARGET]
    moves = torch.tensor(MOVES, dtype=wanted.dtype, device=wanted.device)
    gain = torch.einsum("md,bdn->bnm", moves, wanted)
    return gain.masked_fill(~mask, -_FAR).argmax(2) + FIRST_TARGET - len(MOVES)
