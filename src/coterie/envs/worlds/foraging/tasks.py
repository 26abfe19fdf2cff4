"""Makers of the tasks: `getattr(module, task_name)` returns the maker of a task."""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Any, final

from pydantic import create_model

from coterie.envs.worlds.foraging import find, settings
from coterie.envs.worlds.foraging.task import Foraging, ForagingConfig


@final
class Task:
    """Creates the worlds of one task. `Config` holds its settings with the defaults that its name stands for."""

    def __init__(self, name: str):
        self.name = name
        changed: dict[str, Any] = {}
        for key, value in settings(name).items():
            field = copy(ForagingConfig.model_fields[key])
            field.default = value
            changed[key] = (field.annotation, field)
        self.Config: type[Any] = create_model(
            f"Foraging_{name}", __base__=ForagingConfig, __doc__=f"Settings of foraging/{name}.", **changed
        )

    def __call__(self, config: Any, with_state: bool = False) -> Foraging:
        return Foraging(self.name, config, with_state)


@cache
def _task(name: str) -> Task:
    return Task(name)


def __getattr__(name: str) -> Task:
    """Maker of a task; most task names are not valid Python identifiers."""
    if find(name) is None:
        raise AttributeError(f"foraging: no task named {name!r}")
    return _task(name)
