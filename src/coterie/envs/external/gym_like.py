"""Environments that implement Gymnasium's interface without subclassing it."""

from __future__ import annotations

from typing import Any, final

import gymnasium
from gymnasium import spaces


def as_gym(env: Any) -> Any:
    """Wraps the environment as a gymnasium.Env if it has the methods and spaces of one; returns others unchanged."""
    if isinstance(env, gymnasium.Env) or not (callable(getattr(env, "reset", None)) and hasattr(env, "step")):
        return env
    found = (getattr(env, "observation_space", None), getattr(env, "action_space", None))
    return GymLike(env) if all(isinstance(space, spaces.Space) for space in found) else env


@final
class GymLike(gymnasium.Env):
    """Forwards every call to an environment with the same methods."""

    def __init__(self, env: Any):
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata = getattr(env, "metadata", None) or {"render_modes": []}
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed)

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    def render(self) -> Any:
        self.env.render_mode = self.render_mode
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()
