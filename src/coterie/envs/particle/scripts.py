"""Scripted policies that need no training: baselines to stand beside what was learned."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.envs.particle.assignment import assign
from coterie.envs.particle.physics import DAMPING, DT, Variant
from coterie.envs.particle.task import SIGNS
from coterie.types import Action

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

    obs: `speaker` [B, 1, 3] and `listener` [B, 1, 11]. Before anything is said, it walks to the landmarks' middle.
    """
    heard = obs["listener"][..., 8:11]
    heard = torch.where(heard.any(-1, keepdim=True), heard, 1 / 3)
    landmarks = obs["listener"][..., 2:8].unflatten(-1, (3, 2))
    goal = (landmarks * heard.unsqueeze(-1)).sum(-2)
    return {
        "speaker": Action(discrete=obs["speaker"].argmax(-1, keepdim=True)),
        "listener": Action(discrete=walk(goal, obs["listener"][..., :2], variant).unsqueeze(-1)),
    }
