"""A side of particle/simple_ball by a rule: one goes behind the ball and pushes, the others stand before their goal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.envs.particle.ball import BALL_SIZE, MAX_SPEED, SIZE, THRUST
from coterie.envs.particle.chase import directions
from coterie.envs.particle.physics import DAMPING, DT

_AHEAD = 0.2  # how long the ball is expected to roll on as it does
_BEHIND = SIZE + BALL_SIZE  # between the middles where one touches the other
_LINE = 0.07  # as near as this to the line through goal and ball, one pushes
_ROUND = 0.22  # how wide of the ball one goes to come behind it
_GUARD = 0.35  # of the way from the own goal to the ball
_LOOK = 3


def push_ball(obs: Tensor, n: int) -> Tensor:
    """The moves [B, n] of a side of n players from its observations [B, n, D]."""
    pairs = obs.unflatten(-1, (-1, 2))
    vel, ball, ball_vel, goal, home = (pairs[..., i, :] for i in (0, 2, 3, 4, 5))
    mates = pairs[..., 6 : 6 + n - 1, :]
    there = ball + ball_vel * _AHEAD
    aim = normalize(goal - there, dim=-1)
    along = (there * aim).sum(-1, keepdim=True)  # how far one is behind the ball
    aside = there - along * aim
    lined = (along > 0) & (aside.norm(dim=-1, keepdim=True) < _LINE)
    wide = normalize(-aside, dim=-1) * _ROUND
    behind = there - aim * _BEHIND + torch.where(along < _BEHIND / 2, wide, 0.0)
    attack = torch.where(lined, there + aim, behind)
    guard = home + (there - home) * _GUARD
    spots = there - aim * _BEHIND
    others = (spots.unsqueeze(-2) - mates).norm(dim=-1)
    first = spots.norm(dim=-1, keepdim=True) <= others.amin(-1, keepdim=True) if n > 1 else torch.ones_like(lined)
    wanted = torch.where(first, attack, guard)
    moves = directions("mpe2", obs)
    next_vel = (1 - DAMPING) * vel.unsqueeze(-2) + moves * (THRUST * DT)
    next_vel = next_vel * (MAX_SPEED / next_vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
    return (wanted.unsqueeze(-2) - next_vel * (DT * _LOOK)).norm(dim=-1).argmin(-1)
