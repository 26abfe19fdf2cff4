"""A stand-in for the football engine that replays a script, for tests without the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie.envs.external import football
from coterie.envs.external.football import Package

START: dict[str, Any] = {
    "left_team": [[-1.0, 0.0], [0.6, 0.0], [0.7, 0.2], [0.7, -0.2]],
    "left_team_direction": [[0.0, 0.0], [0.01, 0.0], [0.0, 0.02], [0.0, 0.0]],
    "right_team": [[1.0, 0.0], [0.75, 0.0]],
    "right_team_direction": [[0.0, 0.0], [-0.01, 0.03]],
    "ball": [0.62, -0.1, 0.11],
    "ball_direction": [0.02, 0.01, -0.03],
    "ball_owned_team": 0,
    "ball_owned_player": 1,
    "left_agent_controlled_player": [1, 2, 3],
    "right_agent_controlled_player": [1],
    "game_mode": 0,
    "score": [0, 0],
    "steps_left": 400,
}
"""A raw observation of 3 vs 1."""


def raw(**changes: Any) -> dict[str, Any]:
    """`START` with changes."""
    seen = {**START, **changes}
    return {key: np.array(value) if "team" in key and isinstance(value, list) else value for key, value in seen.items()}


class Config:
    """The used part of the package's configuration class."""

    def __init__(self, values: dict[str, Any]):
        self.values = dict(values)

    def __setitem__(self, key: str, value: Any) -> None:
        self.values[key] = value

    def serialize(self) -> dict[str, Any]:
        return self.values


class Core:
    """Returns the observations of `script` in order, the first one after a reset.

    Attributes:
        received: Actions of every step.
        episodes: Seed and number of every episode.
    """

    script: list[dict[str, Any]] = []  # noqa: RUF012
    made: list[Core] = []  # noqa: RUF012

    def __init__(self, config: Config):
        self.config, self.received, self.episodes = config, [], []
        self.made.append(self)

    def reset(self, inc: int) -> None:
        assert inc == 0
        self.at = 0
        self.episodes.append((self.config.values["game_engine_random_seed"], self.config.values["episode_number"]))

    def observation(self) -> dict[str, Any]:
        return self.script[self.at]

    def step(self, actions: list[int]) -> tuple[dict[str, Any], int, bool, dict[str, Any]]:
        self.received.append(actions)
        self.at += 1
        return self.script[self.at], 0, self.at == len(self.script) - 1, {}

    def close(self) -> None:
        self.config.values["closed"] = True


def play(monkeypatch: pytest.MonkeyPatch, *script: dict[str, Any]) -> list[Core]:
    """Replaces the package by the stand-in and returns its instances. The last observation of the script ends the
    episode.
    """
    monkeypatch.setattr(Core, "script", list(script))
    monkeypatch.setattr(Core, "made", [])
    monkeypatch.setattr(football, "load_package", lambda: Package(Config, Core, ()))
    return Core.made
