"""What all agents of a team do at once as one vector, and whose part of it is whose."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from coterie.types import Action, ActionSpec, TeamSpec


def action_size(spec: ActionSpec) -> int:
    """P: the length of an action as a vector."""
    return spec.mask_size + spec.continuous


def encoded(spec: ActionSpec, action: Action) -> Tensor:
    """Actions of a role as vectors [.., n, P]: every choice one-hot, then the continuous numbers."""
    parts = []
    if action.discrete is not None:
        for k, choices in enumerate(spec.choices):
            each = torch.arange(choices, device=action.discrete.device)
            parts.append((action.discrete[..., k : k + 1] == each).float())
    if action.continuous is not None:
        parts.append(action.continuous)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def last_actions(vectors: dict[str, Tensor], first: Tensor, before: dict[str, Tensor]) -> dict[str, Tensor]:
    """What every agent did in the row before, by role [R, B, n, P]; zero where a life begins.

        last_0 = before;  last_t = vectors_{t-1};  last_t = 0 where first_t

    vectors: by role, in the team's order [T, B, n, P]; first: [R, B, N] bool, R = T rows or T + 1 with the row to look
    ahead; before: by role [B, n, P], what was done before the first row.
    """
    rows = len(first)
    found, at = {}, 0
    for role, vector in vectors.items():
        agents = slice(at, at + vector.shape[-2])
        at = agents.stop
        last = torch.cat([before[role].unsqueeze(0), vector[: rows - 1]])
        found[role] = last.masked_fill(first[..., agents].unsqueeze(-1), 0)
    return found


def beside(vectors: dict[str, Tensor]) -> Tensor:
    """Vectors by role [.., n, P] as one tensor over the team's agents [.., N, longest P], filled with zeros; a policy
    that reads last actions carries them so.
    """
    width = max(vector.shape[-1] for vector in vectors.values())
    short = [width - vector.shape[-1] for vector in vectors.values()]
    parts = [functional.pad(v, (0, lack)) if lack else v for v, lack in zip(vectors.values(), short, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def by_role(team: TeamSpec, carried: Tensor) -> dict[str, Tensor]:
    """Vectors by role [.., n, P] from what `beside` made of them [.., N, longest P]."""
    if len(team.roles) == 1:
        return {team.roles[0].name: carried}
    parts = carried.split([role.n for role in team.roles], -2)
    return {role.name: part[..., : action_size(role.action)] for role, part in zip(team.roles, parts, strict=True)}


class JointAction:
    """The actions of a team's agents side by side, J numbers; agents may have actions of different lengths.

    owner: [J], whose each number is; own: [N, J] bool, True in the block of numbers that is the agent's own.
    """

    def __init__(self, team: TeamSpec, device: torch.device):
        sizes = [action_size(role.action) for role in team.roles for _ in role.agents]
        owner = torch.repeat_interleave(torch.arange(team.n), torch.tensor(sizes))
        self.size = len(owner)
        self.owner = owner.to(device)
        self.own = (owner == torch.arange(team.n)[:, None]).to(device)
        self._team = team

    def vectors(self, action: dict[str, Action]) -> dict[str, Tensor]:
        """Hard actions by role as vectors [.., n, P]."""
        return {role.name: encoded(role.action, action[role.name]) for role in self._team.roles}

    def join(self, vectors: dict[str, Tensor]) -> Tensor:
        """Vectors by role [.., n, P] as one [.., J]."""
        parts = [vectors[role.name].flatten(-2) for role in self._team.roles]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def present(self, joint: Tensor, alive: Tensor) -> Tensor:
        """[.., J] with zeros for what the dead did; alive: [.., N]."""
        return torch.where(alive[..., self.owner], joint, 0.0)

    def split(self, joint: Tensor) -> dict[str, Tensor]:
        """[.., J] cut back into vectors by role [.., n, P]."""
        roles = self._team.roles
        parts = joint.split([role.n * action_size(role.action) for role in roles], -1)
        return {role.name: part.unflatten(-1, (role.n, -1)) for role, part in zip(roles, parts, strict=True)}

    def others(self, joint: Tensor) -> Tensor:
        """[.., J] as every agent's view of the others [.., N, J]: its own block is zero."""
        return joint.unsqueeze(-2).masked_fill(self.own, 0)

    def replaced(self, joint: Tensor, fresh: Tensor) -> Tensor:
        """[.., N, J]: for every agent the joint action with its own block taken from `fresh`; both are [.., J].

        The gradient of entry i reaches the actions of agent i alone.
        """
        return torch.where(self.own, fresh.unsqueeze(-2), joint.unsqueeze(-2))
