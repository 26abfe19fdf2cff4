"""The corridor as an environment for the command line: `env=corridor:make`."""

from __future__ import annotations

from typing import Any

from coterie.envs.worlds.world import WorldEnv
from tables import Corridor


def make(
    num_envs: int, seed: int, device: Any, limit: int = 20, agents_can_die: bool = False, numbers: bool = False
) -> WorldEnv:
    """Creates environments of the corridor."""
    return WorldEnv(Corridor(limit, agents_can_die, numbers), num_envs, seed, device)
