"""Teams that can be exported, and one-line reasons why others cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from coterie.core.errors import UserError
from coterie.core.observations import Entry
from coterie.core.specs import NativeSensor, RoleSpec, TeamSpec
from coterie.envs.external.spaces import accepts_booleans, space_entry
from coterie.nets.team import Block
from coterie.policies.autoregressive import AutoregressivePolicy
from coterie.policies.base import Mode, Policy, RandomPolicy
from coterie.policies.deterministic import DeterministicPolicy
from coterie.policies.epsilon_greedy import EpsilonGreedyPolicy
from coterie.policies.epsilon_soft import EpsilonSoftPolicy
from coterie.policies.remapped import RemappedPolicy
from coterie.policies.squashed import SquashedPolicy
from coterie.policies.stochastic import StochasticPolicy

NetworkPolicy = StochasticPolicy | EpsilonGreedyPolicy | DeterministicPolicy | SquashedPolicy | AutoregressivePolicy

HEADS: dict[type[Policy], str] = {
    StochasticPolicy: "stochastic",
    EpsilonSoftPolicy: "stochastic",
    EpsilonGreedyPolicy: "epsilon_greedy",
    DeterministicPolicy: "deterministic",
    SquashedPolicy: "squashed",
    AutoregressivePolicy: "autoregressive",
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
    def has_outputs(self) -> bool:
        """True if actions are made of the outputs of one pass of a network; false if agents decide one by one."""
        return not isinstance(self.policy, AutoregressivePolicy)

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
    if any(x.shape[1:2] != (policy.team.n,) or x.ndim != 3 for x in policy.initial_hidden_state(1).values()):
        raise UserError(
            f"team '{team.name}' cannot be exported: its memory is that of the whole team, and exports hold one vector "
            "per agent. Train with algo.memory=false, or use coterie.load in Python instead."
        )
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


def nested(arrays: Mapping[str, Any], space: spaces.Space) -> Any:
    """Returns arrays by sensor as a policy reads them: dicts nested as the space is, or the single array."""
    whole: Any = {}
    for name, (keys, _) in sensor_paths(space).items():
        if not keys:
            return arrays[name]
        place = whole
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = arrays[name]
    return whole


def observation_entry(role: RoleSpec) -> Entry:
    """Describes the observations of a role for players, as `policy.json` stores them.

    Returns:
        Name and agents of the role; shape and type of the array that the policy reads, whether it may have booleans,
        the space that the environment returns it in, and what the wrappers of the environment change; or these for
        every sensor under `sensors`, with the keys that lead to it.
    """
    native = {sensor.name: sensor for sensor in role.native}
    parts: dict[str, Entry] = {}
    for name, (keys, box) in sensor_paths(role.observation_space).items():
        sensor = native.get(name, NativeSensor(name, keys, box))
        parts[name] = {
            "shape": list(box.shape),
            "dtype": str(box.dtype),
            "booleans": accepts_booleans(box),
            "keys": [key if isinstance(key, int) else str(key) for key in sensor.keys],
            "space": space_entry(sensor.space),
        }
        if sensor.channels_first:
            parts[name]["channels_first"] = True
        if sensor.grayscale:
            parts[name]["grayscale"] = True
        if sensor.resize is not None:
            parts[name]["resize"] = list(sensor.resize)
        if sensor.frame_stack > 1:
            parts[name]["frame_stack"] = sensor.frame_stack
    single = parts.pop("", {"shape": [], "dtype": "float32", "booleans": False})
    return {"name": role.name, "agents": list(role.agents), **single, "sensors": parts or None}


def tensor_name(*parts: str) -> str:
    """Returns the name of a tensor, such as `obs.agent`, of letters, digits, dots and underscores."""
    return ".".join(re.sub(r"[^A-Za-z0-9_.]", "_", part) for part in parts if part)
