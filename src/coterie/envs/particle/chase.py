"""The two sides of particle/simple_tag by rules: prey that looks where it is safe, pursuers that cut it off."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.envs.particle.physics import DAMPING, DT, Variant
from coterie.envs.particle.tag import SimpleTagConfig, fence
from coterie.envs.particle.task import SIGNS

_PURSUER_SPEED, _PURSUER_THRUST, _PREY_SPEED, _PREY_THRUST = 1.0, 3.0, 1.3, 4.0
_TOUCH = 0.125  # pursuer and prey
_HALF_PLAN, _PLAN = 4, 8  # steps of the first move of a plan, and of all of it
_OBSTACLE = 0.2
_FENCE_COST = 0.5
_MOST_AHEAD = 0.4  # how long pursuers expect prey to run on as it does
_SPREAD = 0.15  # how far to its own side a pursuer aims, as a part of its distance
_LOOK = 3


def directions(variant: Variant, like: Tensor) -> Tensor:
    """What each of the five moves pushes towards: [5, 2]."""
    moves = like.new_zeros(5, 2)
    moves[1:3, 0] = like.new_tensor(SIGNS[variant][:2])
    moves[3:5, 1] = like.new_tensor(SIGNS[variant][2:])
    return moves


def flee(obs: Tensor, config: SimpleTagConfig) -> Tensor:
    """The prey's moves [B, n] from observations [B, n, D] with all agents and obstacles seen.

    Of all plans of two moves, one after the other, each takes that at which the pursuers, were they to run straight at
    it, come least near, and which keeps within the fence and off the obstacles.
    """
    seen = _Seen(obs, config, config.adversaries)
    moves = directions(config.variant, obs)
    speed = config.prey_speed  # stages of a curriculum make it slower still, which only makes plans bold
    first, second = moves.repeat_interleave(5, 0), moves.repeat(5, 1)
    vel = seen.vel.unsqueeze(-2).expand(*obs.shape[:2], 25, 2)
    way = torch.zeros_like(vel)
    room, cost = None, torch.zeros_like(vel[..., 0])
    for step in range(_PLAN):
        before = vel
        vel = (1 - DAMPING) * vel + (first if step < _HALF_PLAN else second) * (_PREY_THRUST * DT * speed)
        vel = vel * (_PREY_SPEED * speed / vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
        way = way + DT * (before if config.variant == "mpe2" else vel)
        apart = (seen.others.unsqueeze(-3) - way.unsqueeze(-2)).norm(dim=-1)  # [B, n, 25, pursuers]
        left = (apart - _TOUCH - _PURSUER_SPEED * DT * step).amin(-1)
        room = left if room is None else torch.minimum(room, left)
        at = (seen.pos.unsqueeze(-2) + way).permute(3, 0, 1, 2).flatten(1, 2)
        cost = cost + _FENCE_COST / _PLAN * fence(at).view_as(cost)
        if config.obstacles:
            rock = (seen.obstacles.unsqueeze(-3) - way.unsqueeze(-2)).norm(dim=-1)
            cost = cost + (_OBSTACLE + 0.06 - rock).clamp_min(0).sum(-1)
    assert room is not None
    return (room - cost).argmax(-1) // 5


def pursue(obs: Tensor, config: SimpleTagConfig) -> Tensor:
    """The pursuers' moves [B, n] from observations [B, n, D] with all agents and obstacles seen.

    All go for the prey that is nearest to the middle of them, where it will be when they come, and the farther they are
    the more to their own side of it, so that it is met from several.
    """
    n, prey = config.adversaries, config.good
    seen = _Seen(obs, config, n - 1)
    mates, hunted = seen.others, seen.rest[..., :prey, :]
    middle = mates.sum(-2) / n  # of all pursuers, from oneself
    chosen = (hunted - middle.unsqueeze(-2)).norm(dim=-1).argmin(-1)
    pick = chosen[..., None, None].expand(*chosen.shape, 1, 2)
    to = hunted.gather(-2, pick).squeeze(-2)
    prey_vel = seen.prey_vel.gather(-2, pick).squeeze(-2)
    distance = to.norm(dim=-1, keepdim=True)
    ahead = (distance / _PURSUER_SPEED).clamp(max=_MOST_AHEAD)
    meet = (to + prey_vel * ahead + seen.pos).clamp(-1, 1) - seen.pos
    if n > 1:  # [B, n, n - 1, 2]: from the prey to the mates; how much they crowd where one is itself
        sides = torch.nn.functional.normalize(mates - to.unsqueeze(-2), dim=-1)
        own = -to / distance.clamp_min(1e-6)
        away = own - sides.mean(-2)
        meet = meet + _SPREAD * distance * away
    return _steer(meet, seen, config)


def _steer(wanted: Tensor, seen: _Seen, config: SimpleTagConfig) -> Tensor:
    """The move that soon brings a pursuer nearest to what is `wanted` [B, n, 2] away, round the obstacles."""
    moves = directions(config.variant, wanted)
    vel = (1 - DAMPING) * seen.vel.unsqueeze(-2) + moves * (_PURSUER_THRUST * DT)
    vel = vel * (_PURSUER_SPEED / vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
    way = vel * (DT * _LOOK)
    left = (wanted.unsqueeze(-2) - way).norm(dim=-1)
    if config.obstacles:
        rock = (seen.obstacles.unsqueeze(-3) - way.unsqueeze(-2)).norm(dim=-1)
        left = left + 2 * (_OBSTACLE + 0.075 - rock).clamp_min(0).sum(-1)
    return left.argmin(-1)


class _Seen:
    """The parts of an observation of tag: vel, pos [B, n, 2]; obstacles, others (the pursuers), rest (the prey) and
    prey_vel: [B, n, .., 2].
    """

    def __init__(self, obs: Tensor, config: SimpleTagConfig, pursuers: int):
        rocks = config.obstacles
        pairs = obs.unflatten(-1, (-1, 2))
        self.vel, self.pos = pairs[..., 0, :], pairs[..., 1, :]
        self.obstacles = pairs[..., 2 : 2 + rocks, :]
        agents = config.adversaries + config.good - 1
        around = pairs[..., 2 + rocks : 2 + rocks + agents, :]
        self.others, self.rest = around[..., :pursuers, :], around[..., pursuers:, :]
        self.prey_vel = pairs[..., 2 + rocks + agents :, :]
