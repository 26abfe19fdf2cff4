"""The package `gfootball`, imported when a match is opened, and what it says of its scenarios.

Its own wrappers and `create_environment` need an interface of gym's that is gone. What lies beneath is used here: its
configuration, and the match that its `FootballEnv` plays too, by numbers and without a copy of every observation.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from coterie.envs.football import three_vs_three
from coterie.envs.football.tasks import TASKS, Task
from coterie.errors import UserError, nearest

INSTALL = 'pip install "coterie[football]" && pip install --no-deps --no-build-isolation gfootball'
_LIBRARIES = "it compiles, and docs/environments/football.md names the system libraries that it wants"


@dataclass(frozen=True)
class Package:
    """What is used of it: `Config` of `gfootball.env.config`, `Core` the class of a match, names of all scenarios."""

    Config: Any
    Core: Any
    scenarios: tuple[str, ...]


def package(name: str) -> Package:
    """The package. UserError that says how it is installed, where it is not; name: of the environment that wants it."""
    try:
        return _package()
    except ModuleNotFoundError as error:
        raise UserError(f"environment '{name}' needs {error.name}: {INSTALL} ({_LIBRARIES})") from error
    except ImportError as error:
        said = " ".join(str(error).split())
        raise UserError(f"environment '{name}': {said}: {INSTALL} ({_LIBRARIES})") from error


@functools.cache
def _package() -> Package:
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gym, which it imports for a base class, says on every import that it is old
        config = importlib.import_module("gfootball.env.config")
        core = importlib.import_module("gfootball.env.football_env_core")
        builder = importlib.import_module("gfootball.env.scenario_builder")
    sys.modules[f"gfootball.scenarios.{three_vs_three.NAME}"] = three_vs_three  # where scenarios are looked for
    found = (name for name in builder.all_scenarios() if name != "tests")
    return Package(config.Config, core.FootballEnvCore, (*found, three_vs_three.NAME))


def settings(found: Package, scenario: str, players: tuple[int, int]) -> Any:
    """The package's configuration of a match with so many controlled players on the left and the right."""
    left, right = players
    # With a seed it draws none from the global generator. Nothing is written to disk unless it is asked for.
    return found.Config(
        {
            "level": scenario,
            "players": [f"agent:left_players={left},right_players={right}"],
            "game_engine_random_seed": 0,
        }
    )


def task_of(name: str, scenario: str) -> Task:
    """What is known of a scenario; those without a preset are read off the package. UserError if there is none."""
    if scenario in TASKS:
        return TASKS[scenario]
    try:
        known = package(name).scenarios
    except UserError as error:
        said = f"there is no environment '{name}' among those known without the package: {_nearest(name, TASKS)}"
        raise UserError(f"{said}; others need it: {INSTALL}") from error
    if scenario not in known:
        raise UserError(f"there is no environment '{name}': {_nearest(name, known)}")
    return read(package(name), scenario)


def read(found: Package, scenario: str) -> Task:
    """What the package's scenario says of itself; of a side with less than eleven all but one are controlled."""
    made = settings(found, scenario, (1, 0)).ScenarioConfig()
    sides = made.controllable_left_players, made.controllable_right_players
    left, right = (n if n in (1, 11) else n - 1 for n in sides)
    return Task(
        *sides,
        made.game_duration,
        (left, right),
        made.end_episode_on_score,
        made.end_episode_on_out_of_play,
        made.end_episode_on_possession_change,
    )


def _nearest(name: str, known: Any) -> str:
    return nearest(name, [f"football/{other}" for other in known])
