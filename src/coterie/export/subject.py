"""Teams that can be exported, and one-line reasons why others cannot."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.specs import RoleSpec, TeamSpec
from coterie.nets.team import Block
from coterie.policies.base import Mode, Policy, RandomPolicy
from coterie.policies.deterministic import DeterministicPolicy
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.epsilon_soft import EpsilonSoftPolicy
from coterie.policies.remapped import RemappedPolicy
from coterie.policies.squashed import SquashedPolicy
from coterie.policies.stochastic import StochasticPolicy

NetworkPolicy = StochasticPolicy | EpsilonGreedyPolicy | DeterministicPolicy | SquashedPolicy

HEADS: dict[type[Policy], str] = {
    StochasticPolicy: "stochastic",
    EpsilonSoftPolicy: "stochastic",
    EpsilonGreedyPolicy: "epsilon_greedy",
    DeterministicPolicy: "deterministic",
    SquashedPolicy: "squashed",
}
"""Name of the head of each policy, which makes actions of the outputs of its network."""


@dataclass(frozen=True)
class Subject:
    """A team to export.

    Attributes:
        team: The team, with the names of its roles in the environment.
        policy: Its policy. That of a frozen team has the role names of the run that it comes from.
        mode: Action selection in evaluation.
    """

    team: TeamSpec
    policy: NetworkPolicy
    mode: Mode

    @property
    def head(self) -> str:
        """Name of the policy's head."""
        return HEADS[type(self.policy)]

    @property
    def roles(self) -> tuple[tuple[RoleSpec, RoleSpec], ...]:
        """Every role with the role of the policy's own team that it corresponds to."""
        return tuple(zip(self.team.roles, self.policy.team.roles, strict=True))

    def roles_of(self, block: Block) -> list[RoleSpec]:
        """Returns the roles, by their names in the environment, that a block of the policy's network reads."""
        inner = {role.name for role in block.roles}
        return [own for own, its in self.roles if its.name in inner]


def subject_of(team: TeamSpec, policy: Policy, mode: Mode) -> Subject:
    """Returns the team to export.

    Raises:
        UserError: If the policy cannot be exported, with the reason.
    """
    if isinstance(policy, RemappedPolicy):
        return subject_of(team, policy.inner, policy.mode)
    if isinstance(policy, RandomPolicy):
        raise UserError(f"team '{team.name}' cannot be exported: it acts at random. Export a team that learned.")
    if type(policy) not in HEADS:
        raise UserError(
            f"team '{team.name}' cannot be exported: its policy {type(policy).__name__} is code, not one of Coterie's "
            "networks. Use coterie.load in Python instead."
        )
    assert isinstance(policy, NetworkPolicy)
    return Subject(team, policy, mode)


def sensors(space: spaces.Space) -> dict[str, spaces.Box]:
    """Returns the arrays of an observation by name, `outer.inner` if nested; a single array has the empty name."""
    return {name: box for name, (_, box) in sensor_paths(space).items()}


def sensor_paths(space: spaces.Space, *path: str) -> dict[str, tuple[tuple[str, ...], spaces.Box]]:
    """Returns the keys that lead to each array of an observation, and its space, by name."""
    if isinstance(space, spaces.Dict):
        found: dict[str, tuple[tuple[str, ...], spaces.Box]] = {}
        for key, part in space.spaces.items():
            found |= sensor_paths(part, *path, str(key))
        return found
    assert isinstance(space, spaces.Box)
    return {".".join(path): (path, space)}


def tensor_name(*parts: str) -> str:
    """Returns the name of a tensor, such as `obs.agent`, of letters, digits, dots and underscores."""
    return ".".join(re.sub(r"[^A-Za-z0-9_.]", "_", part) for part in parts if part)
