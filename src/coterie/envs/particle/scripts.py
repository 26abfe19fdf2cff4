"""Scripted players that need no training: baselines and opponents to stand beside what was learned.

Those that `SCRIPTS` of the family names are made for a team, `make(team, env)`, and play with either kind of actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.envs.particle import chase
from coterie.envs.particle.assignment import assign
from coterie.envs.particle.ballplay import push_ball
from coterie.envs.particle.physics import DAMPING, DT, Variant
from coterie.envs.particle.task import SIGNS
from coterie.schema import Choice
from coterie.types import Action, RoleSpec, Row, TeamSpec

# Steps that a walker looks ahead with the velocity it would have; in mpe2, thrust moves nothing until the next step.
_LOOK_AHEAD = {"openai": 2, "mpe2": 3}


def walk(offset: Tensor, vel: Tensor, variant: Variant = "mpe2", thrust: float = 5.0) -> Tensor:
    """The move, [..] int64 in 0 .. 4, that soon brings a walker nearest to what is `offset` [.., 2] away.

    vel: [.., 2], its velocity; thrust: the force of a move.
    """
    moves = torch.zeros(5, 2, dtype=vel.dtype, device=vel.device)
    moves[1:3, 0] = moves.new_tensor(SIGNS[variant][:2])
    moves[3:5, 1] = moves.new_tensor(SIGNS[variant][2:])
    next_vel = (1 - DAMPING) * vel.unsqueeze(-2) + moves * (thrust * DT)
    left = offset.unsqueeze(-2) - next_vel * (DT * _LOOK_AHEAD[variant])
    return left.square().sum(-1).argmin(-1)


def spread_greedily(obs: Mapping[str, Tensor], variant: Variant = "mpe2") -> dict[str, Action]:
    """particle/simple_spread with discrete actions: landmarks are assigned to agents at the least total distance, in
    every step anew, and each agent walks to its own.

    obs: `agent` [B, N, D], with as many landmarks as agents and all of them seen. Returns the action of every agent.
    """
    seen = obs["agent"]
    copies, n = seen.shape[:2]
    offset = seen[..., 4 : 4 + 2 * n].view(copies, n, n, 2)
    places = assign(offset.norm(dim=-1).permute(1, 2, 0)).T
    own = offset.gather(2, places.view(copies, n, 1, 1).expand(-1, -1, -1, 2)).squeeze(2)
    return {"agent": Action(discrete=walk(own, seen[..., :2], variant).unsqueeze(-1))}


def follow_speaker(obs: Mapping[str, Tensor], variant: Variant = "mpe2") -> dict[str, Action]:
    """particle/simple_speaker_listener with discrete actions: the speaker names the goal, the listener walks to it.

    obs: `speaker` [B, 1, 3], `listener` [B, 1, 11], or one of them. Before anything is said, it walks to the landmarks'
    middle.
    """
    actions = {}
    if "speaker" in obs:
        actions["speaker"] = Action(discrete=obs["speaker"].argmax(-1, keepdim=True))
    if "listener" in obs:
        heard = obs["listener"][..., 8:11]
        heard = torch.where(heard.any(-1, keepdim=True), heard, 1 / 3)
        landmarks = obs["listener"][..., 2:8].unflatten(-1, (3, 2))
        goal = (landmarks * heard.unsqueeze(-1)).sum(-2)
        actions["listener"] = Action(discrete=walk(goal, obs["listener"][..., :2], variant).unsqueeze(-1))
    return actions


# ---------------------------------------------------------------------------------------------------- made for a team

Act = Callable[[Row], dict[str, Action]]


def spreaders(team: TeamSpec, env: Choice) -> Act:
    """particle/simple_spread by `spread_greedily`. ValueError where landmarks are not one an agent, or not all seen."""
    config: Any = env.params
    if config.landmarks not in (None, config.agents):
        raise ValueError(f"landmarks={config.landmarks} with agents={config.agents}: expected one for each")
    _require_sight(config, ("num_landmark_neighbors",), config.agents)
    return _mover(team, lambda obs: spread_greedily(obs, config.variant))


def speaker_and_listener(team: TeamSpec, env: Choice) -> Act:
    """particle/simple_speaker_listener by `follow_speaker`: either of the two, or both."""
    config: Any = env.params
    return _mover(team, lambda obs: follow_speaker(obs, config.variant))


def pursuers(team: TeamSpec, env: Choice) -> Act:
    """The adversaries of particle/simple_tag. ValueError where they do not see everybody."""
    config: Any = env.params
    _require_sight(config, ("num_agent_neighbors", "num_landmark_neighbors"), None)
    return _mover(team, lambda obs: {"adversary": _chosen(chase.pursue(obs["adversary"], config))})


def prey(team: TeamSpec, env: Choice) -> Act:
    """The prey of particle/simple_tag. ValueError where they do not see everybody."""
    config: Any = env.params
    _require_sight(config, ("num_agent_neighbors", "num_landmark_neighbors"), None)
    # Stages of a curriculum make prey slower still, which only makes it bold.
    flight = chase.Flight(config.variant, config.prey_speed)
    return _mover(team, lambda obs: {"agent": _chosen(chase.flee(obs["agent"], config, flight))})


def ball_players(team: TeamSpec, env: Choice) -> Act:
    """Either side of particle/simple_ball, or both, by `push_ball`."""
    config: Any = env.params
    return _mover(team, lambda obs: {side: _chosen(push_ball(seen, config.agents)) for side, seen in obs.items()})


def _require_sight(config: Any, keys: tuple[str, ...], enough: int | None) -> None:
    for key in keys:
        given = getattr(config, key)
        if given is not None and given != enough:
            raise ValueError(f"{key}={given}: it needs to see all of them in their order: leave env.{key} out")


def _chosen(move: Tensor) -> Action:
    return Action(discrete=move.unsqueeze(-1))


def _mover(team: TeamSpec, rule: Callable[[Mapping[str, Tensor]], dict[str, Action]]) -> Act:
    """Acts by a rule that chooses, with the team's own kind of actions."""
    roles = {role.name: role for role in team.roles}

    def act(row: Row) -> dict[str, Action]:
        return {name: _as_numbers(a, roles[name]) for name, a in rule(row.obs).items() if name in roles}

    return act


def _as_numbers(action: Action, role: RoleSpec) -> Action:
    """The same with numbers where the role has them: full thrust one way, or the symbol said aloud."""
    if not role.action.continuous or action.discrete is None:
        return action
    marks = torch.nn.functional.one_hot(action.discrete.squeeze(-1), role.action.continuous)
    return Action(continuous=marks.to(torch.float32) * 2 - 1)
