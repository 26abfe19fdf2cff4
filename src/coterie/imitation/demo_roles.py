"""Roles as demonstrations describe them: agents, observations and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from coterie.core.specs import ActionSpec, RoleSpec
from coterie.core.tree import Tree


@dataclass(frozen=True)
class DemoRole:
    """A role in demonstrations.

    Attributes:
        name: Name of the role.
        group: Agents of a group are rewarded together.
        agents: Names of the agents.
        observation: {"shape": [..], "type": "float32" or "uint8"}, or {"sensors": {NAME: one of these}}.
        choices: As in `coterie.core.specs.ActionSpec`, like the rest.
        continuous: Number of continuous components.
        low: Lower bounds of the continuous components.
        high: Upper bounds of the continuous components.
        integer: True for components of which the environment takes integers; () if there are none.
    """

    name: str
    group: str
    agents: tuple[str, ...]
    observation: dict[str, Any]
    choices: tuple[int, ...] = ()
    continuous: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    integer: tuple[bool, ...] = ()

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.agents)

    @property
    def action(self) -> ActionSpec:
        """The action space."""
        return ActionSpec(self.choices, self.continuous, self.low, self.high, self.integer)

    @classmethod
    def from_spec(cls, role: RoleSpec) -> DemoRole:
        """Returns the description of an environment's role."""
        action = role.action
        return cls(
            name=role.name,
            group=role.group,
            agents=role.agents,
            observation=_describe_space(role.observation_space),
            choices=action.choices,
            continuous=action.continuous,
            low=action.low,
            high=action.high,
            integer=action.integer,
        )

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> DemoRole:
        """Returns the role described by JSON.

        Raises:
            ValueError: If the description is invalid.
        """
        fields: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in entry.items()}
        role = cls(**fields)
        prefix = f"role {role.name!r}"
        if not all(isinstance(text, str) and text for text in (role.name, role.group)):
            raise ValueError(f"{prefix}: expected strings as name and group")
        if role.name in {"episode", "state"}:
            raise ValueError(f"{prefix}: reserved, because tensors of the episodes have this name")
        is_list = isinstance(role.agents, tuple) and bool(role.agents)
        if not (is_list and all(isinstance(agent, str) for agent in role.agents)):
            raise ValueError(f"{prefix}: expected a list of names as agents")
        if not (isinstance(role.choices, tuple) and all(type(n) is int and n > 0 for n in role.choices)):
            raise ValueError(f"{prefix}: expected a list of positive integers as choices")
        bounds = [role.low, role.high]
        if type(role.continuous) is not int or any(
            not isinstance(x, tuple) or len(x) != role.continuous or any(type(y) not in (int, float) for y in x)
            for x in bounds
        ):
            raise ValueError(f"{prefix}: expected an integer as continuous, and as many numbers as low and high")
        if not isinstance(role.integer, tuple) or len(role.integer) not in (0, role.continuous):
            raise ValueError(f"{prefix}: expected as many true or false as integer, or none")
        if not role.choices and not role.continuous:
            raise ValueError(f"{prefix}: expected choices or continuous actions")
        if not _is_observation(role.observation):
            raise ValueError(f'{prefix}: expected {{"shape": [..], "type": "float32" or "uint8"}} as observation')
        return role

    def difference(self, role: RoleSpec) -> str | None:
        """Returns how an environment's role differs in what a policy depends on; None if it does not."""
        other = DemoRole.from_spec(role)
        if other.n != self.n:
            return f"{self.n} agents in the demonstrations, {other.n} in the environment"
        if other.observation != self.observation:
            own, its = _observation_text(self.observation), _observation_text(other.observation)
            return f"it observes {own} in the demonstrations, {its} now"
        if self.agents != other.agents and set(self.agents) == set(other.agents):
            order = ", ".join(self.agents)
            return f"its agents are in another order in the demonstrations ({order}). Set env.agent_order to that order"
        if self.action != other.action:
            return f"it acts in {_action_text(self.action)} in the demonstrations, {_action_text(other.action)} now"
        return None


def observation_tensors(name: str, observation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns shape and type of every tensor of an observation, by the tensor's name."""
    if "sensors" not in observation:
        return {name: observation}
    found: dict[str, dict[str, Any]] = {}
    for sensor, part in observation["sensors"].items():
        found |= observation_tensors(f"{name}/{sensor}", part)
    return found


def flatten_observation(name: str, obs: Tree) -> dict[str, Tensor]:
    """Returns an observation, a tensor or a dict of them, as tensors by name."""
    if isinstance(obs, Tensor):
        return {name: obs if obs.dtype == torch.uint8 else obs.float()}
    return {
        key: leaf for sensor, part in obs.items() for key, leaf in flatten_observation(f"{name}/{sensor}", part).items()
    }


def unflatten_observation(tensors: dict[str, Tensor], name: str, observation: dict[str, Any]) -> Tree:
    """Returns the observation that `flatten_observation` was given."""
    if "sensors" not in observation:
        return tensors[name]
    return {key: unflatten_observation(tensors, f"{name}/{key}", part) for key, part in observation["sensors"].items()}


def _describe_space(space: spaces.Space) -> dict[str, Any]:
    """Returns the description of an observation space."""
    if isinstance(space, spaces.Dict):
        return {"sensors": {name: _describe_space(part) for name, part in space.spaces.items()}}
    kind = "uint8" if str(space.dtype) == "uint8" else "float32"
    return {"shape": list(space.shape or ()), "type": kind}


def _is_observation(observation: Any) -> bool:
    """Returns True if this is a valid description of an observation space."""
    if not isinstance(observation, dict):
        return False
    if "sensors" in observation:
        parts = observation["sensors"]
        return isinstance(parts, dict) and bool(parts) and all(_is_observation(part) for part in parts.values())
    shape = observation.get("shape")
    is_shape = isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)
    return is_shape and observation.get("type") in ("float32", "uint8")


def _observation_text(observation: dict[str, Any]) -> str:
    if "sensors" in observation:
        return ", ".join(f"{name}: {_observation_text(part)}" for name, part in observation["sensors"].items())
    shape = " x ".join(map(str, observation["shape"]))
    return f"{shape} numbers" if observation["type"] == "float32" else f"images {shape}"


def _action_text(action: ActionSpec) -> str:
    parts = [f"{' x '.join(map(str, action.choices))} choices"] if action.choices else []
    if action.continuous:
        bounds = ", ".join(f"{low:g} to {high:g}" for low, high in zip(action.low, action.high, strict=True))
        kind = "integers" if all(action.integer or [False]) else "numbers"
        parts.append(f"{action.continuous} {kind} ({bounds})")
    return " and ".join(parts)
