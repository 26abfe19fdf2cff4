"""Scripted drivers: baselines that need no training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coterie.core.specs import TeamSpec
from coterie.core.types import Action, Timestep
from coterie.envs.worlds.traffic.junction import GAS, ROLE

Act = Callable[[Timestep], dict[str, Action]]


def gas(team: TeamSpec, env: Any) -> Act:
    """All cars always drive on."""

    def act(timestep: Timestep) -> dict[str, Action]:
        return {ROLE: Action(discrete=torch.full_like(timestep.alive, GAS, dtype=torch.int64).unsqueeze(-1))}

    return act
