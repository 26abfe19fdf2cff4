"""Actions as vectors: of a role, of a whole team, and vectors of different lengths in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.core.device_constants import constant
from coterie.core.specs import ActionSpec, RoleSpec, TeamSpec
from coterie.core.types import Action


def action_size(spec: ActionSpec) -> int:
    """Returns P, the length of an action vector."""
    return spec.mask_size + spec.continuous


def encode_actions(spec: ActionSpec, action: Action) -> Tensor:
    """Returns actions of a role as vectors [.., n, P]: every choice one-hot, then the continuous numbers."""
    parts = []
    if action.discrete is not None:
        single = len(spec.choices) == 1
        for k, choices in enumerate(spec.choices):
            chosen = action.discrete if single else action.discrete[..., k : k + 1]
            parts.append((chosen == constant(range(choices), chosen.device, torch.int64)).float())
    if action.continuous is not None:
        parts.append(action.continuous)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


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


class JointAction:
    """The concatenated action vectors of a team's agents, J numbers; agents may have vectors of different lengths.

    A global critic also reads the actions of the M agents of other teams, which follow those of the team.

    Args:
        team: The team.
        device: Device of joint actions.
        other_roles: Roles of other teams whose actions are included.

    Attributes:
        size: J.
        owner: [J], index of the agent that each entry belongs to, N and above for other teams.
        is_own: [N, J] bool, True where the entry belongs to the agent.
    """

    def __init__(self, team: TeamSpec, device: torch.device, other_roles: tuple[RoleSpec, ...] = ()):
        self._roles = (*team.roles, *other_roles)
        self._num_others = sum(role.n for role in other_roles)
        sizes = [action_size(role.action) for role in self._roles for _ in role.agents]
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.size = len(owner)
        self.owner = owner.to(device)
        self.is_own = (owner == torch.arange(team.n)[:, None]).to(device)
        self._team = team

    def encode(self, action: dict[str, Action]) -> dict[str, Tensor]:
        """Returns the team's actions by role as vectors [.., n, P]."""
        return {role.name: encode_actions(role.action, action[role.name]) for role in self._team.roles}

    def join(self, vectors: dict[str, Tensor]) -> Tensor:
        """Concatenates vectors by role [.., n, P] to one joint action [.., J]."""
        parts = [vectors[role.name].flatten(-2) for role in self._roles]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def split(self, joint: Tensor) -> dict[str, Tensor]:
        """Splits a joint action [.., J] into vectors by role [.., n, P]."""
        roles = self._roles
        parts = joint.split([role.n * action_size(role.action) for role in roles], -1)
        return {role.name: part.unflatten(-1, (role.n, -1)) for role, part in zip(roles, parts, strict=True)}

    def mask_absent(self, joint: Tensor, alive: Tensor) -> Tensor:
        """Returns [.., J] with zeros for agents that are not alive; alive: [.., N + M]."""
        return torch.where(alive[..., self.owner], joint, 0.0)

    def mask_team(self, joint: Tensor, mask: Tensor) -> Tensor:
        """Returns [.., J] with zeros for other teams and for agents whose `mask` [.., N] is False."""
        return self.mask_absent(joint, pad(mask, (0, self._num_others)) if self._num_others else mask)

    def others(self, joint: Tensor) -> Tensor:
        """Returns every agent's view of the others' actions [.., N, J], its own entries zero, from [.., J]."""
        return joint.unsqueeze(-2).masked_fill(self.is_own, 0)

    def with_own(self, joint: Tensor, own: Tensor) -> Tensor:
        """Returns [.., N, J]: for every agent, `joint` with its own entries taken from `own`, both [.., J].

        The gradient of entry i reaches only agent i's actions in `own`.
        """
        return torch.where(self.is_own, own.unsqueeze(-2), joint.unsqueeze(-2))


def mask_by_role(vectors: dict[str, Tensor], roles: tuple[RoleSpec, ...], mask: Tensor) -> dict[str, Tensor]:
    """Returns vectors by role [.., n, P] with zeros where `mask` [.., N] of the agents of all `roles` is False."""
    masks = mask.split([role.n for role in roles], -1)
    return {
        role.name: torch.where(role_mask.unsqueeze(-1), vectors[role.name], 0.0)
        for role, role_mask in zip(roles, masks, strict=True)
    }


def pad_by_agent(vectors: dict[str, Tensor]) -> Tensor:
    """Joins vectors by role [.., n, P] to one tensor [.., N, longest P], padded with zeros.

    Policies that read last actions store them in the hidden state in this form.
    """
    width = max(vector.shape[-1] for vector in vectors.values())
    missing = [width - vector.shape[-1] for vector in vectors.values()]
    parts = [pad(v, (0, extra)) if extra else v for v, extra in zip(vectors.values(), missing, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)
