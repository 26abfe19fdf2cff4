"""Outside environments by name, wherever a process has to make copies of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie import registry
from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.wrappers.wrapped import wrapped


def opened(name: str, params: Mapping[str, Any]) -> tuple[Layout, Callable[[], Instance]]:
    """What the environment with its wrappers is made of, and what makes a copy of it. params: the environment's keys,
    validated before. UserError for what the library refuses, and wrappers that do not fit it.
    """
    kind = registry.environment(name)
    config = kind.Config.model_validate(dict(params))
    return wrapped(kind.layout(config), lambda: kind.instance(config), config.wrappers)
