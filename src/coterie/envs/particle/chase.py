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
_LOOKED_AT = (2, 4, 6, 8)  # steps after which a plan is weighed
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


class Flight:
    """The plans of prey: two of the five moves, one after the other, and where each leads from rest.

    speed: factor on thrust and speed limit.
    """

    def __init__(self, variant: Variant, speed: float):
        moves = directions(variant, torch.zeros(()))
        self.first = torch.arange(5).repeat_interleave(5)
        """[25], the first move of every plan."""
        vel, way, coast, ways = torch.zeros(25, 2), torch.zeros(25, 2), 1.0, []
        carried = 0.0
        for step in range(1, _PLAN + 1):
            before, was = vel, coast
            push = moves[self.first] if step <= _HALF_PLAN else moves.repeat(5, 1)
            vel = (1 - DAMPING) * vel + push * (_PREY_THRUST * DT * speed)
            vel = vel * (_PREY_SPEED * speed / vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
            coast *= 1 - DAMPING
            way = way + DT * (before if variant == "mpe2" else vel)
            carried += DT * (was if variant == "mpe2" else coast)
            if step in _LOOKED_AT:
                ways.append((way, carried))
        self._ways = torch.stack([way for way, _ in ways], 1)  # [25, T, 2]
        self._carried = torch.tensor([part for _, part in ways])
        self._reach = _TOUCH + _PURSUER_SPEED * DT * (torch.tensor(_LOOKED_AT) - 1)

    def ways(self, vel: Tensor) -> Tensor:
        """Where all plans lead to, from velocities [B, n, 2]: [B, n, 25, T, 2]."""
        return self._ways.to(vel) + vel[..., None, None, :] * self._carried.to(vel).unsqueeze(-1)

    def room(self, apart: Tensor) -> Tensor:
        """How far off pursuers who are `apart` [B, n, 25, T] at least would stay: [B, n, 25]."""
        return (apart - self._reach.to(apart)).amin(-1)


def flee(obs: Tensor, config: SimpleTagConfig, flight: Flight) -> Tensor:
    """The prey's moves [B, n] from observations [B, n, D] with all agents and obstacles seen.

    Of all plans of two moves, one after the other, each takes that at which the pursuers, were they to run straight at
    it, come least near, and which keeps within the fence and off the obstacles.
    """
    seen = _Seen(obs, config, config.adversaries)
    ways = flight.ways(seen.vel)
    room = flight.room(_nearest(seen.others, ways))
    at = (seen.pos[..., None, None, :] + ways).movedim(-1, 0).flatten(1, 3)
    cost = _FENCE_COST * fence(at).view(ways.shape[:-1]).mean(-1)
    if config.obstacles:
        cost = cost + (_OBSTACLE + 0.06 - _nearest(seen.obstacles, ways)).clamp_min(0).sum(-1) * (
            _PLAN / len(_LOOKED_AT)
        )
    return flight.first.to(obs.device)[(room - cost).argmax(-1)]


def _nearest(spots: Tensor, ways: Tensor) -> Tensor:
    """[B, n, 25, T]: the distance from where plans lead to the nearest of `spots` [B, n, m, 2]."""
    x, y = (spots[..., None, None, :, i] - ways[..., i].unsqueeze(-1) for i in range(2))
    return (x.square() + y.square()).amin(-1).sqrt()


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
