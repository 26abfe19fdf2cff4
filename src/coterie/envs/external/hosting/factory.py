"""Makes instances of other libraries' environments by name, in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from coterie.config.schema import WorkersConfig
from coterie.core.errors import EnvironmentFailedError, ReportedError
from coterie.core.waiting import limited
from coterie.envs import registry
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.hosting.wrappers import apply_wrappers
from coterie.envs.registry import place_of


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


def start_limit(name: str, workers: WorkersConfig | None = None) -> AbstractContextManager[None]:
    """Returns a context manager that limits the seconds to make an environment, see `making`."""
    config = workers or WorkersConfig()
    fix = f"Fix the environment, or raise workers.timeout={config.timeout:g}: five times as long is allowed."
    return limited(f"the construction of environment '{name}'", config.start_timeout, fix)


@contextmanager
def making(name: str, workers: WorkersConfig | None = None) -> Iterator[None]:
    """Context manager for code that makes one environment in this process, or reads its layout.

    Args:
        name: Name of the environment.
        workers: Settings that limit the seconds; by default their defaults do.

    Raises:
        EnvironmentFailedError: For any exception that is not a one-line error of Coterie already, and if the limit
            `WorkersConfig.start_timeout` is exceeded.
    """
    with start_limit(name, workers):
        try:
            yield
        except (ReportedError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise EnvironmentFailedError.of(
                f"environment '{name}'", "its constructor", error, place_of(name)
            ) from error
