"""Replays in the native format of an environment's library, such as StarCraft II replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from pydantic import BaseModel

from coterie.core.errors import UserError
from coterie.envs import registry
from coterie.envs.contract.vector import VectorEnv, close_env
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.hosting.factory import instance_factory, making
from coterie.envs.external.hosting.instance import Instance, Wrapper
from coterie.envs.external.hosting.vector_adapter import BackendVectorEnv, SerialBackend


@runtime_checkable
class KeepsReplays(Protocol):
    """An environment whose library writes replays."""

    def save_replay(self, folder: Path) -> list[Path]:
        """Saves the episodes played to the folder, which is created; returns the files. UserError if there is nothing
        to save.
        """
        ...


def with_replays(
    name: str, params: Mapping[str, Any] | BaseModel, device: torch.device | str
) -> tuple[VectorEnv, Callable[[Path], list[Path]]]:
    """Returns one environment and a function that saves a replay of the episodes played.

    Raises:
        UserError: For an environment whose library does not write replays.
    """
    unsupported = UserError(f"{name}: replays cannot be saved. Record a video instead: --video FILE")
    if registry.is_batch_factory(name) or not isinstance(registry.environment(name), Adapter):
        raise unsupported
    with making(name):
        layout, make = instance_factory(name, params.model_dump() if isinstance(params, BaseModel) else params)
    made: list[Instance] = []

    def one() -> Instance:
        with making(name):
            made.append(make())
        return made[-1]

    env = BackendVectorEnv(SerialBackend(one, layout, 1), 0, device)
    instance = made[0]
    while isinstance(instance, Wrapper):
        instance = instance.inner
    if not isinstance(instance, KeepsReplays):
        close_env(env)
        raise unsupported
    return env, instance.save_replay
