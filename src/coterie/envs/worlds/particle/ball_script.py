"""Scripted policy of a side of particle/simple_ball: one player attacks the ball, the others guard their goal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.envs.worlds.particle.ball import BALL_SIZE, MAX_SPEED, SIZE, THRUST
from coterie.envs.worlds.particle.physics import DAMPING, DT
from coterie.envs.worlds.particle.tag_scripts import move_directions

_PREDICTION_TIME = 0.2  # time for which the ball's velocity is extrapolated
_CONTACT_DISTANCE = SIZE + BALL_SIZE
_ALIGNED = 0.07  # distance to the line through goal and ball below which the attacker pushes
_DETOUR = 0.22  # distance at which the attacker moves around the ball
_GUARD = 0.35  # position of a guard, as a fraction of the way from its goal to the ball
_LOOKAHEAD = 3  # steps over which the result of a move is extrapolated


def push_ball(obs: Tensor, n: int) -> Tensor:
    """Returns the moves of a side.

    The player nearest to the ball attacks: it moves behind the ball, seen from the opponents' goal, and pushes. The
    others stay between the ball and their own goal.

    Args:
        obs: observations of the side, [B, n, D].
        n: number of players per side.

    Returns:
        [B, n] int64.
    """
    pairs = obs.unflatten(-1, (-1, 2))
    vel, ball, ball_vel, goal, own_goal = (pairs[..., i, :] for i in (0, 2, 3, 4, 5))
    teammates = pairs[..., 6 : 6 + n - 1, :]
    predicted = ball + ball_vel * _PREDICTION_TIME
    direction = normalize(goal - predicted, dim=-1)
    behind = (predicted * direction).sum(-1, keepdim=True)  # distance behind the ball, along the direction of attack
    lateral = predicted - behind * direction
    aligned = (behind > 0) & (lateral.norm(dim=-1, keepdim=True) < _ALIGNED)
    detour = normalize(-lateral, dim=-1) * _DETOUR
    approach = predicted - direction * _CONTACT_DISTANCE + torch.where(behind < _CONTACT_DISTANCE / 2, detour, 0.0)
    attack = torch.where(aligned, predicted + direction, approach)
    guard = own_goal + (predicted - own_goal) * _GUARD
    attack_position = predicted - direction * _CONTACT_DISTANCE
    distance = attack_position.norm(dim=-1, keepdim=True)
    teammates_distance = (attack_position.unsqueeze(-2) - teammates).norm(dim=-1)
    attacks = distance <= teammates_distance.amin(-1, keepdim=True) if n > 1 else torch.ones_like(aligned)
    target = torch.where(attacks, attack, guard)
    moves = move_directions("mpe2", obs)
    next_vel = (1 - DAMPING) * vel.unsqueeze(-2) + moves * (THRUST * DT)
    next_vel = next_vel * (MAX_SPEED / next_vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
    return (target.unsqueeze(-2) - next_vel * (DT * _LOOKAHEAD)).norm(dim=-1).argmin(-1)
