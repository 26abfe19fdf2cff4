"""Scripted policies of particle worlds: baselines and opponents that need no training.

The factories named in `SCRIPTS` of the package have the signature `make(team, env)`. Their policies play with discrete
and with continuous actions. In simple_ball, one player attacks the ball and the others guard their goal. In simple_tag,
the prey plans its escape, and the pursuers cut it off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.config.schema import Choice
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.particle.ball import BALL_SIZE, MAX_SPEED, SIZE, THRUST
from coterie.envs.worlds.particle.formations import assign
from coterie.envs.worlds.particle.particle_world import SIGNS
from coterie.envs.worlds.particle.physics import DAMPING, DT, Variant
from coterie.envs.worlds.particle.tag import SimpleTagConfig, boundary_penalty

# Steps over which the result of a move is extrapolated. In mpe2, thrust changes the position one step later.
_LOOKAHEAD = {"openai": 2, "mpe2": 3}


def move_toward(offset: Tensor, vel: Tensor, variant: Variant = "mpe2", thrust: float = 5.0) -> Tensor:
    """Returns the move that soon brings an agent nearest to a target.

    Args:
        offset: offset to the target, [.., 2].
        vel: velocity of the agent, [.., 2].
        variant: convention of motion and actions.
        thrust: force of a move.

    Returns:
        [..] int64 in 0 .. 4.
    """
    moves = torch.zeros(5, 2, dtype=vel.dtype, device=vel.device)
    moves[1:3, 0] = moves.new_tensor(SIGNS[variant][:2])
    moves[3:5, 1] = moves.new_tensor(SIGNS[variant][2:])
    next_vel = (1 - DAMPING) * vel.unsqueeze(-2) + moves * (thrust * DT)
    remaining = offset.unsqueeze(-2) - next_vel * (DT * _LOOKAHEAD[variant])
    return remaining.square().sum(-1).argmin(-1)


def spread_greedily(obs: Mapping[str, Tensor], variant: Variant = "mpe2") -> dict[str, Action]:
    """Plays particle/simple_spread with discrete actions.

    In every step, landmarks are assigned to agents at the least total distance, and each agent moves to its landmark.

    Args:
        obs: `agent` [B, N, D], with all landmarks visible and as many landmarks as agents.
        variant: convention of motion and actions.
    """
    agent_obs = obs["agent"]
    num_envs, n = agent_obs.shape[:2]
    offset = agent_obs[..., 4 : 4 + 2 * n].view(num_envs, n, n, 2)
    landmark = assign(offset.norm(dim=-1).permute(1, 2, 0)).T
    target = offset.gather(2, landmark.view(num_envs, n, 1, 1).expand(-1, -1, -1, 2)).squeeze(2)
    return {"agent": Action(discrete=move_toward(target, agent_obs[..., :2], variant).unsqueeze(-1))}


def follow_speaker(obs: Mapping[str, Tensor], variant: Variant = "mpe2") -> dict[str, Action]:
    """Plays particle/simple_speaker_listener with discrete actions.

    The speaker names the goal and the listener moves to it. Before the first message, it moves to the center of the
    landmarks.

    Args:
        obs: `speaker` [B, 1, 3], `listener` [B, 1, 11], or one of them.
        variant: convention of motion and actions.
    """
    actions = {}
    if "speaker" in obs:
        actions["speaker"] = Action(discrete=obs["speaker"].argmax(-1, keepdim=True))
    if "listener" in obs:
        message = obs["listener"][..., 8:11]
        message = torch.where(message.any(-1, keepdim=True), message, 1 / 3)
        landmarks = obs["listener"][..., 2:8].unflatten(-1, (3, 2))
        goal = (landmarks * message.unsqueeze(-1)).sum(-2)
        actions["listener"] = Action(discrete=move_toward(goal, obs["listener"][..., :2], variant).unsqueeze(-1))
    return actions


# ---------------------------------------------------------------------------------------- factories

Act = Callable[[Timestep], dict[str, Action]]


def make_spread_greedily(team: TeamSpec, env: Choice) -> Act:
    """Returns `spread_greedily` for a team of particle/simple_spread.

    Raises:
        ValueError: if there is not one landmark per agent, or agents do not observe all of them.
    """
    config: Any = env.params
    if config.landmarks not in (None, config.agents):
        raise ValueError(
            f"env.landmarks: {config.landmarks} landmarks for {config.agents} agents. Expected one per agent."
        )
    _require_full_observation(config.agents, num_landmark_neighbors=config.num_landmark_neighbors)
    return _act_by(team, lambda obs: spread_greedily(obs, config.variant))


def make_follow_speaker(team: TeamSpec, env: Choice) -> Act:
    """Returns `follow_speaker` for one or both roles of particle/simple_speaker_listener."""
    config: Any = env.params
    return _act_by(team, lambda obs: follow_speaker(obs, config.variant))


def make_pursue(team: TeamSpec, env: Choice) -> Act:
    """Returns `pursue` for the adversaries of particle/simple_tag.

    Raises:
        ValueError: if they do not observe all agents and obstacles.
    """
    config: Any = env.params
    _require_full_tag_observation(config)
    return _act_by(team, lambda obs: {"adversary": _discrete(pursue(obs["adversary"], config))})


def make_flee(team: TeamSpec, env: Choice) -> Act:
    """Returns `flee` for the prey of particle/simple_tag.

    Raises:
        ValueError: if they do not observe all agents and obstacles.
    """
    config: Any = env.params
    _require_full_tag_observation(config)
    # Earlier stages of a curriculum slow the prey down further, which the plans do not take into account.
    plans = EscapePlans(config.variant, config.prey_speed)
    return _act_by(team, lambda obs: {"agent": _discrete(flee(obs["agent"], config, plans))})


def make_push_ball(team: TeamSpec, env: Choice) -> Act:
    """Returns `push_ball` for one or both sides of particle/simple_ball."""
    config: Any = env.params
    return _act_by(team, lambda obs: {side: _discrete(push_ball(own, config.agents)) for side, own in obs.items()})


def _require_full_tag_observation(config: Any) -> None:
    _require_full_observation(
        None,
        num_agent_neighbors=config.num_agent_neighbors,
        num_landmark_neighbors=config.num_landmark_neighbors,
    )


def _require_full_observation(all_of_them: int | None, **neighbors: int | None) -> None:
    """Raises ValueError if the number of observed neighbors of a kind is limited."""
    for key, number in neighbors.items():
        if number is not None and number != all_of_them:
            raise ValueError(
                f"env.{key}: {number}, but the script needs all of them in their fixed order. Remove the setting."
            )


def _discrete(move: Tensor) -> Action:
    return Action(discrete=move.unsqueeze(-1))


def _act_by(team: TeamSpec, rule: Callable[[Mapping[str, Tensor]], dict[str, Action]]) -> Act:
    """Turns a rule with discrete actions into a policy with the team's type of actions."""
    roles = {role.name: role for role in team.roles}

    def act(timestep: Timestep) -> dict[str, Action]:
        return {name: _for_role(a, roles[name]) for name, a in rule(timestep.obs).items() if name in roles}

    return act


def _for_role(action: Action, role: RoleSpec) -> Action:
    """Converts a discrete action to the role's type: full thrust in one direction, or one symbol at full strength."""
    if not role.action.continuous or action.discrete is None:
        return action
    one_hot = torch.nn.functional.one_hot(action.discrete.squeeze(-1), role.action.continuous)
    return Action(continuous=one_hot.to(torch.float32) * 2 - 1)


_PREDICTION_TIME = 0.2  # time for which the ball's velocity is extrapolated
_BALL_CONTACT_DISTANCE = SIZE + BALL_SIZE
_ALIGNED = 0.07  # distance to the line through goal and ball below which the attacker pushes
_DETOUR = 0.22  # distance at which the attacker moves around the ball
_GUARD = 0.35  # position of a guard, as a fraction of the way from its goal to the ball
_MOVE_LOOKAHEAD = 3  # steps over which the result of a move is extrapolated


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
    approach = (
        predicted - direction * _BALL_CONTACT_DISTANCE + torch.where(behind < _BALL_CONTACT_DISTANCE / 2, detour, 0.0)
    )
    attack = torch.where(aligned, predicted + direction, approach)
    guard = own_goal + (predicted - own_goal) * _GUARD
    attack_position = predicted - direction * _BALL_CONTACT_DISTANCE
    distance = attack_position.norm(dim=-1, keepdim=True)
    teammates_distance = (attack_position.unsqueeze(-2) - teammates).norm(dim=-1)
    attacks = distance <= teammates_distance.amin(-1, keepdim=True) if n > 1 else torch.ones_like(aligned)
    target = torch.where(attacks, attack, guard)
    moves = move_directions("mpe2", obs)
    next_vel = (1 - DAMPING) * vel.unsqueeze(-2) + moves * (THRUST * DT)
    next_vel = next_vel * (MAX_SPEED / next_vel.norm(dim=-1, keepdim=True).clamp_min(1e-6)).clamp(max=1)
    return (target.unsqueeze(-2) - next_vel * (DT * _MOVE_LOOKAHEAD)).norm(dim=-1).argmin(-1)


_PURSUER_SPEED, _PURSUER_THRUST, _PREY_SPEED, _PREY_THRUST = 1.0, 3.0, 1.3, 4.0
_CONTACT_DISTANCE = 0.125  # between pursuer and prey
_FIRST_MOVE_STEPS, _PLAN_STEPS = 4, 8
_EVALUATED_STEPS = (2, 4, 6, 8)
_OBSTACLE_SIZE = 0.2
_BOUNDARY_WEIGHT = 0.5
_MAX_PREDICTION_TIME = 0.4  # longest time for which pursuers extrapolate the prey's velocity
_FLANKING = 0.15  # offset of a pursuer's target to its own side of the prey, as a fraction of its distance


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
    displacement = vel * (DT * _MOVE_LOOKAHEAD)
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
