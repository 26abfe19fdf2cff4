"""Replays as a library's own environment writes them, such as StarCraft II's, to be watched with its own programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from pydantic import BaseModel

from coterie import registry
from coterie.envs.adapters.adapter import Adapter
from coterie.envs.hosting.hosted import Alone, HostedEnv
from coterie.envs.hosting.instance import Instance
from coterie.envs.hosting.opening import opened
from coterie.envs.vector import VectorEnv
from coterie.envs.wrappers.wrapper import Wrapper
from coterie.errors import UserError


@runtime_checkable
class KeepsReplays(Protocol):
    """A copy whose library writes replays."""

    def save_replay(self, folder: Path) -> list[Path]:
        """Writes what was played to the folder, which is made; returns the files. UserError if there is nothing."""
        ...


def with_replays(
    name: str, params: Mapping[str, Any] | BaseModel, device: torch.device | str
) -> tuple[VectorEnv, Callable[[Path], list[Path]]]:
    """One copy of the environment, and what has it write a replay of what it played.

    UserError for an environment whose library writes none.
    """
    nothing = UserError(f"{name} saves no replays: record its pictures, --video FILE")
    if registry.is_batch_factory(name) or not isinstance(registry.environment(name), Adapter):
        raise nothing
    layout, make = opened(name, params.model_dump() if isinstance(params, BaseModel) else params)
    made: list[Instance] = []

    def one() -> Instance:
        made.append(make())
        return made[-1]

    env = HostedEnv(Alone(one, layout, 1), 0, device)
    copy = made[0]
    while isinstance(copy, Wrapper):
        copy = copy.inner
    if not isinstance(copy, KeepsReplays):
        env.close()
        raise nothing
    return env, copy.save_replay
