"""Environments with Gymnasium's methods that are not derived from its class."""

from __future__ import annotations

from typing import Any, final

import gymnasium
from gymnasium import spaces


def as_gym(env: Any) -> Any:
    """The environment as a gymnasium.Env where it has the methods and spaces of one; others as they are."""
    if isinstance(env, gymnasium.Env) or not (callable(getattr(env, "reset", None)) and hasattr(env, "step")):
        return env
    found = (getattr(env, "observation_space", None), getattr(env, "action_space", None))
    return Alike(env) if all(isinstance(space, spaces.Space) for space in found) else env


@final
class Alike(gymnasium.Env):
    """Passes every call on to an environment that has the same ones."""

    def __init__(self, env: Any):
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = getattr(env, "metadata", None) or {"render_modes": []}
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def render(self) -> Any:
        self.env.render_mode = self.render_mode
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()
