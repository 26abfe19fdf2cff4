"""Last actions of agents, as inputs of policies and critics."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.specs import TeamSpec
from coterie.nets.layers import action_size


def last_actions(vectors: dict[str, Tensor], first: Tensor, before: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns every agent's action at the timestep before, by role [R, B, n, P]; zero where an agent is new.

        last_0 = before;  last_t = vectors_{t-1};  last_t = 0 where first_t

    Args:
        vectors: Action vectors by role, in the team's order [T, B, n, P].
        first: [R, B, N] bool with R = T, or T + 1 with the timestep to bootstrap from.
        before: Action vectors before the first timestep, by role [B, n, P].
    """
    timesteps = len(first)
    last, start = {}, 0
    for role, vector in vectors.items():
        agents = slice(start, start + vector.shape[-2])
        start = agents.stop
        shifted = torch.cat([before[role].unsqueeze(0), vector[: timesteps - 1]])
        last[role] = shifted.masked_fill(first[..., agents].unsqueeze(-1), 0)
    return last


def unpad_by_role(team: TeamSpec, padded: Tensor) -> dict[str, Tensor]:
    """Returns vectors by role [.., n, P] from [.., N, longest P], the inverse of `pad_by_agent`."""
    if len(team.roles) == 1:
        return {team.roles[0].name: padded}
    parts = padded.split([role.n for role in team.roles], -2)
    return {role.name: part[..., : action_size(role.action)] for role, part in zip(team.roles, parts, strict=True)}
