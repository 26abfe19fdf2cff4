"""Scripted policies of both sides of particle/simple_tag: prey that plans its escape, pursuers that cut it off."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.envs.worlds.particle.actions import SIGNS
from coterie.envs.worlds.particle.physics import DAMPING, DT, Variant
from coterie.envs.worlds.particle.tag import SimpleTagConfig, boundary_penalty

_PURSUER_SPEED, _PURSUER_THRUST, _PREY_SPEED, _PREY_THRUST = 1.0, 3.0, 1.3, 4.0
_CONTACT_DISTANCE = 0.125  # between pursuer and prey
_FIRST_MOVE_STEPS, _PLAN_STEPS = 4, 8
_EVALUATED_STEPS = (2, 4, 6, 8)
_OBSTACLE_SIZE = 0.2
_BOUNDARY_WEIGHT = 0.5
_MAX_PREDICTION_TIME = 0.4  # longest time for which pursuers extrapolate the prey's velocity
_FLANKING = 0.15  # offset of a pursuer's target to its own side of the prey, as a fraction of its distance
_LOOKAHEAD = 3  # steps over which the result of a move is extrapolated


def move_directions(variant: Variant, like: Tensor) -> Tensor:
    """Returns the directions of the five moves: [5, 2]."""
    moves = like.new_zeros(5, 2)
    moves[1:3, 0] = like.new_tensor(SIGNS[variant][:2])
    moves[3:5, 1] = like.new_tensor(SIGNS[variant][2:])
    return moves


class EscapePlans:
    """The plans of prey: two of the five moves in sequence, and the trajectory of each.

    Args:
        variant: convention of motion and actions.
        speed: factor on thrust and speed limit.

    Attributes:
        first_move: the first move of every plan, [25].
    """

    def __init__(self, variant: Variant, speed: float):
        moves = move_directions(variant, torch.zeros(()))
        self.first_move = torch.arange(5).repeat_interleave(5)
        vel, displacement, coasting, checkpoints = torch.zeros(25, 2), torch.zeros(25, 2), 1.0, []
        coasted = 0.0  # displacement per unit of initial velocity
        for step in range(1, _PLAN_STEPS + 1):
            previous_vel, previous_coasting = vel, coasting
            direction = moves[self.first_move] if step <= _FIRST_MOVE_STEPS else moves.repeat(5, 1)
            vel = (1 - DAMPING) * vel + direction * (_PREY_THRUST * DT * speed)
            vel = vel * (_PREY_SPEED * speed / vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
            coasting *= 1 - DAMPING
            displacement = displacement + DT * (previous_vel if variant == "mpe2" else vel)
            coasted += DT * (previous_coasting if variant == "mpe2" else coasting)
            if step in _EVALUATED_STEPS:
                checkpoints.append((displacement, coasted))
        self._displacements = torch.stack([displacement for displacement, _ in checkpoints], 1)  # [25, T, 2]
        self._coasted = torch.tensor([coasted for _, coasted in checkpoints])
        self._pursuer_reach = _CONTACT_DISTANCE + _PURSUER_SPEED * DT * (torch.tensor(_EVALUATED_STEPS) - 1)

    def trajectories(self, vel: Tensor) -> Tensor:
        """Returns the displacements under all plans for prey with velocities [B, n, 2]: [B, n, 25, T, 2]."""
        return self._displacements.to(vel) + vel[..., None, None, :] * self._coasted.to(vel).unsqueeze(-1)

    def clearance(self, distance: Tensor) -> Tensor:
        """Returns the smallest margin to pursuers at these distances, [B, n, 25, T] to [B, n, 25]."""
        return (distance - self._pursuer_reach.to(distance)).amin(-1)


def flee(obs: Tensor, config: SimpleTagConfig, plans: EscapePlans) -> Tensor:
    """Returns the moves of the prey.

    Each selects the plan of two moves with the largest clearance to pursuers that run straight at it, with penalties
    for leaving the arena and for obstacles.

    Args:
        obs: observations of the prey, [B, n, D], with all agents and obstacles.
        config: settings of the environment.
        plans: plans to select from.

    Returns:
        [B, n] int64.
    """
    view = _TagObservation(obs, config, config.adversaries)
    trajectories = plans.trajectories(view.vel)
    clearance = plans.clearance(_nearest_distance(view.pursuers, trajectories))
    positions = (view.pos[..., None, None, :] + trajectories).movedim(-1, 0).flatten(1, 3)
    cost = _BOUNDARY_WEIGHT * boundary_penalty(positions).view(trajectories.shape[:-1]).mean(-1)
    if config.obstacles:
        overlap = (_OBSTACLE_SIZE + 0.06 - _nearest_distance(view.obstacles, trajectories)).clamp_min(0)
        cost = cost + overlap.sum(-1) * (_PLAN_STEPS / len(_EVALUATED_STEPS))
    return plans.first_move.to(obs.device)[(clearance - cost).argmax(-1)]


def _nearest_distance(bodies: Tensor, trajectories: Tensor) -> Tensor:
    """Returns the distance from trajectories to the nearest of `bodies` [B, n, m, 2]: [B, n, 25, T]."""
    x, y = (bodies[..., None, None, :, i] - trajectories[..., i].unsqueeze(-1) for i in range(2))
    return (x.square() + y.square()).amin(-1).sqrt()


def pursue(obs: Tensor, config: SimpleTagConfig) -> Tensor:
    """Returns the moves of the pursuers.

    All chase the prey nearest to their center. They aim at its predicted position, and from afar at a point shifted to
    their own side of it, so that they close in from several sides.

    Args:
        obs: observations of the pursuers, [B, n, D], with all agents and obstacles.
        config: settings of the environment.

    Returns:
        [B, n] int64.
    """
    n, prey = config.adversaries, config.good
    view = _TagObservation(obs, config, n - 1)
    teammates, candidates = view.pursuers, view.prey[..., :prey, :]
    center = teammates.sum(-2) / n  # of all pursuers, relative to the agent
    nearest = (candidates - center.unsqueeze(-2)).norm(dim=-1).argmin(-1)
    index = nearest[..., None, None].expand(*nearest.shape, 1, 2)
    target = candidates.gather(-2, index).squeeze(-2)
    target_vel = view.prey_vel.gather(-2, index).squeeze(-2)
    distance = target.norm(dim=-1, keepdim=True)
    prediction_time = (distance / _PURSUER_SPEED).clamp(max=_MAX_PREDICTION_TIME)
    aim = (target + target_vel * prediction_time + view.pos).clamp(-1, 1) - view.pos
    if n > 1:
        # Directions from the prey to the teammates, [B, n, n - 1, 2], and to the agent.
        teammate_sides = torch.nn.functional.normalize(teammates - target.unsqueeze(-2), dim=-1)
        own_side = -target / distance.clamp_min(1e-6)
        aim = aim + _FLANKING * distance * (own_side - teammate_sides.mean(-2))
    return _move_toward(aim, view, config)


def _move_toward(offset: Tensor, view: _TagObservation, config: SimpleTagConfig) -> Tensor:
    """Returns the move that soon brings a pursuer nearest to `offset` [B, n, 2] and avoids obstacles."""
    moves = move_directions(config.variant, offset)
    vel = (1 - DAMPING) * view.vel.unsqueeze(-2) + moves * (_PURSUER_THRUST * DT)
    vel = vel * (_PURSUER_SPEED / vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
    displacement = vel * (DT * _LOOKAHEAD)
    cost = (offset.unsqueeze(-2) - displacement).norm(dim=-1)
    if config.obstacles:
        distance = (view.obstacles.unsqueeze(-3) - displacement.unsqueeze(-2)).norm(dim=-1)
        cost = cost + 2 * (_OBSTACLE_SIZE + 0.075 - distance).clamp_min(0).sum(-1)
    return cost.argmin(-1)


class _TagObservation:
    """The parts of an observation: vel, pos [B, n, 2]; obstacles, pursuers, prey and prey_vel [B, n, .., 2]."""

    def __init__(self, obs: Tensor, config: SimpleTagConfig, pursuers: int):
        obstacles = config.obstacles
        pairs = obs.unflatten(-1, (-1, 2))
        self.vel, self.pos = pairs[..., 0, :], pairs[..., 1, :]
        self.obstacles = pairs[..., 2 : 2 + obstacles, :]
        agents = config.adversaries + config.good - 1
        others = pairs[..., 2 + obstacles : 2 + obstacles + agents, :]
        self.pursuers, self.prey = others[..., :pursuers, :], others[..., pursuers:, :]
        self.prey_vel = pairs[..., 2 + obstacles + agents :, :]
