"""Outside environments by name, wherever a process has to make copies of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie import registry
from coterie.envs.hosting.instance import Instance, Layout


def opened(name: str, params: Mapping[str, Any]) -> tuple[Layout, Callable[[], Instance]]:
    """What the environment is made of, and what makes a copy of it. params: the environment's keys, validated before.
    UserError for what the library refuses.
    """
    kind = registry.environment(name)
    config = kind.Config.model_validate(dict(params))
    return kind.layout(config), lambda: kind.instance(config)
