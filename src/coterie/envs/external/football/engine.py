"""The `gfootball` package, imported when a match starts, and the scenarios it defines.

Its wrappers and `create_environment` depend on an interface that gym has removed. Coterie uses the layers below: the
configuration, and the match class used by its `FootballEnv`, with numeric actions and without copying observations.
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

from coterie.core.errors import UserError, message_of, nearest
from coterie.core.installation import install_extra, pip
from coterie.envs.external.football import three_vs_three
from coterie.envs.external.football.tasks import TASKS, Task

_LIBRARIES = "it is compiled; docs/environments/football.md lists the required system libraries"


@dataclass(frozen=True)
class Package:
    """Used parts of the package: `Config` of `gfootball.env.config`, `Core` (the match class), and the names of all
    scenarios.
    """

    Config: Any
    Core: Any
    scenarios: tuple[str, ...]


def package(name: str) -> Package:
    """Imports the package. UserError with installation instructions if it is missing; `name` is the requesting
    environment.
    """
    try:
        return load_package()
    except ModuleNotFoundError as error:
        raise UserError(
            f"environment '{name}' needs {error.name}. Install it with: {_install()} ({_LIBRARIES})"
        ) from error
    except ImportError as error:
        said = message_of(error)
        raise UserError(f"environment '{name}': {said}. Install it with: {_install()} ({_LIBRARIES})") from error


@functools.cache
def load_package() -> Package:
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gym, imported for a base class, emits a deprecation notice on every import
        config = importlib.import_module("gfootball.env.config")
        core = importlib.import_module("gfootball.env.football_env_core")
        builder = importlib.import_module("gfootball.env.scenario_builder")
    sys.modules[f"gfootball.scenarios.{three_vs_three.NAME}"] = three_vs_three  # search path of scenarios
    found = (name for name in builder.all_scenarios() if name != "tests")
    return Package(config.Config, core.FootballEnvCore, (*found, three_vs_three.NAME))


def settings(found: Package, scenario: str, players: tuple[int, int]) -> Any:
    """Package configuration of a match with the given numbers of controlled players on the left and right."""
    left, right = players
    # With a seed, the engine does not use the global generator. Nothing is written to disk unless requested.
    return found.Config(
        {
            "level": scenario,
            "players": [f"agent:left_players={left},right_players={right}"],
            "game_engine_random_seed": 0,
        }
    )


def task_of(name: str, scenario: str) -> Task:
    """Properties of a scenario, read from the package unless it has a preset. UserError if it does not exist."""
    if scenario in TASKS:
        return TASKS[scenario]
    try:
        known = package(name).scenarios
    except UserError as error:
        said = f"no such environment: '{name}' among the scenarios known without the package. {_nearest(name, TASKS)}"
        raise UserError(f"{said}; others need it: {_install()}") from error
    if scenario not in known:
        raise UserError(f"no such environment: '{name}'. {_nearest(name, known)}")
    return read(package(name), scenario)


def read(found: Package, scenario: str) -> Task:
    """Properties from the scenario's definition; on sides of fewer than eleven, all players but one are controlled."""
    made = settings(found, scenario, (1, 0)).ScenarioConfig()
    sides = made.controllable_left_players, made.controllable_right_players
    left, right = (n if n in (1, 11) else n - 1 for n in sides)
    return Task(
        *sides,
        frames=made.game_duration,
        controlled=(left, right),
        on_score=made.end_episode_on_score,
        on_out=made.end_episode_on_out_of_play,
        on_loss=made.end_episode_on_possession_change,
    )


def _nearest(name: str, known: Any) -> str:
    return nearest(name, [f"football/{other}" for other in known])


def _install() -> str:
    """Returns the command that installs the engine."""
    return f"{install_extra('football')} && {pip()} install --no-deps --no-build-isolation gfootball"
