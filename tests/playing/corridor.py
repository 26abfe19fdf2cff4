"""The corridor as an environment of the command line: `env=playing.corridor:make`."""

from __future__ import annotations

from typing import Any

from coterie.envs.world import WorldEnv
from playing.tables import Corridor


def make(copies: int, seed: int, device: Any, limit: int = 20, mortal: bool = False, numbers: bool = False) -> WorldEnv:
    """Copies of the corridor."""
    return WorldEnv(Corridor(limit, mortal, numbers), copies, seed, device)
