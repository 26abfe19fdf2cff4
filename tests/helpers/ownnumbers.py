"""An environment whose constructor takes numbers of any size."""

from typing import Any

import gymnasium


def make(big: int = 3, small: float = 0.5, **more: Any) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")
