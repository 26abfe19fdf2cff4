"""Text and records of a run's teams: which roles form them and why, their agents and spaces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec, is_channels_first

_MOST_AGENTS = 8
"""Agents of a role that are listed; of larger roles, the first and the last."""

_LONGEST_SPACE = 80
"""Characters of a space. In longer ones, the lowest and highest bounds stand for all."""


def describe_teams(teams: Sequence[TeamSpec], spec: EnvSpec, assigned: Collection[str] = ()) -> list[str]:
    """Returns a line on the number of teams and the reason for it, and a line for each role.

    Args:
        teams: The teams, in the environment's order.
        spec: The environment.
        assigned: Teams whose roles the settings `teams.NAME.roles` list.
    """
    lines = [f"{_count(len(teams), 'team')}: {', '.join(team.name for team in teams)}, because {why(spec, assigned)}"]
    return lines + [f"team {team.name}: {describe_role(role)}" for team in teams for role in team.roles]


def image_notes(spec: EnvSpec) -> list[str]:
    """Returns a sentence for each sensor whose images seem to have their channels first."""
    notes = []
    for role in spec.roles:
        space = role.observation_space
        for name, part in (space.spaces if isinstance(space, spaces.Dict) else {"": space}).items():
            if is_channels_first(part):
                shape, of = (
                    list(part.shape or ()),
                    f"sensor {name} of role {role.name}" if name else f"role {role.name}",
                )
                notes.append(
                    f"images of {of} are {shape}, read as {shape[0]} rows with {shape[2]} channels. If its channels "
                    "come first, set env.wrappers.channels_last=true, or return [height, width, channels]"
                )
    return notes


def why(spec: EnvSpec, assigned: Collection[str] = ()) -> str:
    """Returns the reason for the teams, as the rest of a sentence."""
    if not assigned:
        return spec.grouping
    settings = " and ".join(f"teams.{name}.roles" for name in assigned)
    return f"{settings} {'is' if len(assigned) == 1 else 'are'} set"


def describe_role(role: RoleSpec) -> str:
    """Returns the agents and spaces of a role in one line."""
    seen, acts = describe_space(role.observation_space), describe_space(role.action_space)
    return f"role {role.name} ({describe_agents(role.agents)}) observes {seen} and acts in {acts}"


def describe_agents(agents: Sequence[str]) -> str:
    """Returns the names of a role's agents; of many, the first and the last."""
    if len(agents) <= _MOST_AGENTS:
        return ", ".join(agents)
    return f"{len(agents)} agents, {agents[0]} to {agents[-1]}"


def describe_space(space: spaces.Space) -> str:
    """Returns a space as one line, with the range of its bounds if they are too long to list."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{name}: {describe_space(part)}' for name, part in space.spaces.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(describe_space(part) for part in space.spaces)})"
    text = " ".join(str(space).split())
    if isinstance(space, spaces.Box) and space.low.size and (len(text) > _LONGEST_SPACE or "[" in text):
        return f"Box({np.min(space.low)}, {np.max(space.high)}, {space.shape}, {space.dtype})"
    return text if len(text) <= 4 * _LONGEST_SPACE else f"{text[: 4 * _LONGEST_SPACE - 3]}..."


def team_records(teams: Mapping[str, TeamSpec]) -> dict[str, Any]:
    """Returns the manifest's entry `teams`: by team, the agents and spaces of each role."""
    return {
        name: {
            "common_reward": team.common_reward,
            "roles": {
                role.name: {
                    "agents": list(role.agents),
                    "observation_space": describe_space(role.observation_space),
                    "action_space": describe_space(role.action_space),
                }
                for role in team.roles
            },
        }
        for name, team in teams.items()
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
