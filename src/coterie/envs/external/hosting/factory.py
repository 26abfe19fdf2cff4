"""Makes instances of other libraries' environments by name, in any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.config import registry
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.wrappers.apply import apply_wrappers


def instance_factory(name: str, params: Mapping[str, Any]) -> tuple[Layout, Callable[[], Instance]]:
    """Returns the layout of an environment with its wrappers, and a function that makes instances of it.

    Args:
        name: Name of the environment.
        params: Its settings `env.*`, validated before.

    Raises:
        UserError: For settings that the library refuses, and wrappers that do not fit the environment.
    """
    kind = registry.environment(name)
    config = kind.Config.model_validate(dict(params))
    return apply_wrappers(kind.layout(config), lambda: kind.instance(config), config.wrappers)
