"""Checks environments of Python code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.config.resolve import resolve_kwargs
from coterie.envs.contract.report import Report
from coterie.envs.external.checking.check_env import check_env as check


def check_env(env: str | Callable[..., Any], **params: Any) -> Report:
    """Checks an environment against the contract like `coterie check-env`.

    Args:
        env: Name of the environment, or a function or class that makes it.
        **params: Settings of the environment, such as `size=8`.

    Returns:
        The report: `ok`, `findings`, each with its fix, and `render(width)` for the text of the command.

    Raises:
        UserError: If there is no such environment, or a setting is invalid.
    """
    config = resolve_kwargs(env={"name": env, **params}, algo="random").config
    return check(config.env.name, config.env.params)
