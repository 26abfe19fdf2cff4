"""Scripted policies of particle worlds: baselines and opponents that need no training.

The factories named in `SCRIPTS` of the package have the signature `make(team, env)`. Their policies play with discrete
and with continuous actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.config.schema import Choice
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.particle import tag_scripts
from coterie.envs.worlds.particle.actions import SIGNS
from coterie.envs.worlds.particle.assignment import assign
from coterie.envs.worlds.particle.ball_script import push_ball
from coterie.envs.worlds.particle.physics import DAMPING, DT, Variant

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
    """Returns `tag_scripts.pursue` for the adversaries of particle/simple_tag.

    Raises:
        ValueError: if they do not observe all agents and obstacles.
    """
    config: Any = env.params
    _require_full_tag_observation(config)
    return _act_by(team, lambda obs: {"adversary": _discrete(tag_scripts.pursue(obs["adversary"], config))})


def make_flee(team: TeamSpec, env: Choice) -> Act:
    """Returns `tag_scripts.flee` for the prey of particle/simple_tag.

    Raises:
        ValueError: if they do not observe all agents and obstacles.
    """
    config: Any = env.params
    _require_full_tag_observation(config)
    # Earlier stages of a curriculum slow the prey down further, which the plans do not take into account.
    plans = tag_scripts.EscapePlans(config.variant, config.prey_speed)
    return _act_by(team, lambda obs: {"agent": _discrete(tag_scripts.flee(obs["agent"], config, plans))})


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
