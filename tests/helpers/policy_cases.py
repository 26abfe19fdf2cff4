"""A team of two roles with masks, and timesteps for tests of policies."""

from __future__ import annotations

import torch
from gymnasium import spaces

from coterie.core.specs import EnvSpec, RoleSpec, TeamSpec
from coterie.core.types import Timestep
from coterie.nets.config import NetworkConfig

CPU = torch.device("cpu")
SMALL = NetworkConfig((8,), "tanh")


def draw(seed: int = 0) -> torch.Generator:
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)


def make_team(kind: str) -> TeamSpec:
    """Two guards and a scout with `discrete`, `continuous` or `hybrid` actions."""
    discrete, numbers = spaces.Discrete(4), spaces.Box(-1.0, 1.0, (2,))
    space = {"discrete": discrete, "continuous": numbers, "hybrid": spaces.Tuple((discrete, numbers))}[kind]
    roles = (
        RoleSpec("guard", "all", ("guard_0", "guard_1"), spaces.Box(-9, 9, (5,)), space),
        RoleSpec("scout", "all", ("scout_0",), spaces.Box(-9, 9, (3,)), space),
    )
    return EnvSpec("two", roles, {}).default_teams()[0]


def make_timestep(team: TeamSpec, num_envs: int, mask: tuple[bool, ...] | None = None, seed: int = 1) -> Timestep:
    """Random observations; `mask` holds the choices that are available to the guards."""
    generator = draw(seed)
    obs = {
        role.name: torch.randn(num_envs, role.n, *(role.observation_space.shape or ()), generator=generator)
        for role in team.roles
    }
    masks = {} if mask is None else {"guard": torch.tensor(mask).expand(num_envs, 2, -1)}
    alive = torch.ones(num_envs, team.n, dtype=torch.bool)
    return Timestep(obs, masks, {}, alive, torch.zeros_like(alive), torch.ones(num_envs, dtype=torch.bool))
