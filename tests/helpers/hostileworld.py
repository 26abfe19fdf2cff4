"""An environment whose names would do something to a terminal, a page or a line of code."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

ESCAPE = "\x1b]0;title\x07\u202e\x9b31m\r"
"""Sets the title of a terminal, rings its bell, reverses the order of text, changes its color, returns to its start."""
TAG = "<script>alert(1)</script>"
NAMES = (f"a{ESCAPE}", f"b{TAG}", "c\n[red]d[/red]", "e'\"\\")
PARTS = spaces.Dict(
    {f"s{ESCAPE}": spaces.Box(-1, 1, (2,)), f"t{TAG}": spaces.Box(-1, 1, (1,)), "u\n'\"": spaces.Box(-1, 1)}
)


class Hostile:
    """Episodes of four steps. Actions are rewards. `fail` raises in the third step."""

    def __init__(self, fail: bool = False):
        self.metadata: dict[str, Any] = {"render_modes": [], "name": f"world{ESCAPE}{TAG}"}
        self.possible_agents, self.agents, self.fail = list(NAMES), list(NAMES), fail

    def observation_space(self, agent: str) -> spaces.Space:
        return PARTS

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.time = list(NAMES), 0
        return self._observe(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.time += 1
        if self.fail and self.time == 3:
            raise RuntimeError(f"boom{ESCAPE}{TAG}")
        infos = {agent: {f"m{ESCAPE}": 1.0, f"n{TAG}": 2.0} for agent in NAMES}
        rewards, ended = (
            {agent: float(action) for agent, action in actions.items()},
            dict.fromkeys(NAMES, self.time >= 4),
        )
        observed = self._observe()
        if self.time >= 4:
            self.agents = []
        return observed, rewards, ended, dict.fromkeys(NAMES, False), infos

    def _observe(self) -> dict[str, Any]:
        parts = {name: np.zeros(space.shape, np.float32) for name, space in PARTS.spaces.items()}
        return {agent: dict(parts) for agent in self.agents}

    def close(self) -> None:
        pass
