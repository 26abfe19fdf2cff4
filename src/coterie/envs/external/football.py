"""Google Research Football, `football/<scenario>`: one or both sides controlled, on the real engine.

The package `gfootball` is imported when a match starts; specs are known without it. Its wrappers and
`create_environment` depend on an interface that gym has removed. Coterie uses the layers below: the configuration, and
the match class used by its `FootballEnv`, with numeric actions and without copying observations. Source: Kurach et al.
2020.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from gymnasium import spaces
from pydantic import BaseModel, Field

from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError, message_of, nearest
from coterie.core.installation import install_extra, pip
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.football_match import (
    CHOICES,
    METRICS,
    OBS_SIZE,
    SIDES,
    STATE_SIZE,
    TASKS,
    Match,
    MatchSettings,
    Task,
)
from coterie.envs.external.hosting.instance import Instance, Layout
from coterie.envs.external.spaces import Observer


class FootballConfig(ExternalEnvConfig):
    """Settings of every scenario."""

    training_only: ClassVar[tuple[str, ...]] = ("shaping",)

    sides: Literal["left", "right", "both"] = "left"
    """Controlled side(s); the built-in AI plays the other. `both`: one team per side."""
    left_players: int | None = Field(None, ge=1, le=11)
    """Controlled players of the left side; by default the number of the scenario. The built-in AI plays the others, and
    the engine decides which players are controlled unless all of them are.
    """
    right_players: int | None = Field(None, ge=1, le=11)
    """Controlled players of the right side."""
    rewards: tuple[Literal["scoring", "checkpoints"], ...] = Field(("scoring",), min_length=1)
    """Rewards: `scoring` is +1 for the side that scores and -1 for the other, `checkpoints` up to 1 for a player that
    brings the ball near the goal.
    """
    shaping: float = Field(0.0, ge=0, le=10**6)
    """Maximum shaping reward per player and step for a good ball position, during training only; 0.1 was published."""
    episode_limit: int | None = Field(None, ge=1, le=10**9)
    """Maximum number of steps before truncation; by default, and at most, the number of frames of the scenario."""
    state: bool | None = None
    """Pass the match state to critics; by default if an algorithm uses it."""


@final
class Football(Adapter):
    """The scenario of one name: any of the package, and `3_vs_3_custom`."""

    Config = FootballConfig

    def __init__(self, scenario: str):
        self.name, self._scenario = f"football/{scenario}", scenario
        self._task = task_of(self.name, scenario)

    def layout(self, config: BaseModel) -> Layout:
        assert isinstance(config, FootballConfig)
        match = self._match_settings(config)
        observer = Observer(spaces.Box(-np.inf, np.inf, (OBS_SIZE,), np.float32))
        roles = tuple(
            RoleSpec(
                name=SIDES[side],
                group=SIDES[side],
                agents=tuple(f"{SIDES[side]}_{k}" for k in range(match.players[side])),
                observation_space=observer.space,
                action_space=spaces.Discrete(len(CHOICES)),
                choice_names=(CHOICES,),
            )
            for side in match.sides
        )
        spec = EnvSpec(
            self.name,
            roles,
            {"global": STATE_SIZE} if config.state is not False else {},
            has_group_reward="scoring" in config.rewards,
            metrics=METRICS,
            episode_limit=match.limit,
        )
        return Layout(spec, {role.name: observer for role in roles})

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, FootballConfig)
        match, found = self._match_settings(config), package(self.name)
        return Match(settings(found, self._scenario, match.players), found.Core, match)

    def _match_settings(self, config: FootballConfig) -> MatchSettings:
        """Match settings. UserError for players that the scenario does not have."""
        players = [0, 0]
        for side, given in enumerate((config.left_players, config.right_players)):
            limit, key = (self._task.left, self._task.right)[side], f"env.{SIDES[side]}_players"
            if config.sides not in (SIDES[side], "both"):
                if given is not None:
                    raise UserError(
                        f"{key}={given}: the engine plays that side (env.sides={config.sides}). Use env.sides=both."
                    )
                continue
            players[side] = self._task.controlled[side] if given is None else given
            if players[side] > limit:
                expected = f"expected at most {limit}, the players of '{self.name}' on that side that can be controlled"
                raise UserError(f"{key}={given}: {expected}.")
        return MatchSettings(
            name=self.name,
            task=self._task,
            players=(players[0], players[1]),
            limit=min(self._task.frames, config.episode_limit or self._task.frames),
            scoring="scoring" in config.rewards,
            checkpoints="checkpoints" in config.rewards,
            shaping=config.shaping,
        )


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
    sys.modules[f"gfootball.scenarios.{THREE_VS_THREE}"] = sys.modules[__name__]  # search path of scenarios
    found = (name for name in builder.all_scenarios() if name != "tests")
    return Package(config.Config, core.FootballEnvCore, (*found, THREE_VS_THREE))


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


THREE_VS_THREE = "3_vs_3_custom"


def build_scenario(builder: Any) -> None:
    """Configures the builder for `3_vs_3_custom`, written like the scenarios of the package.

    Three per side, a goalkeeper and two field players, from kick-off; 500 frames, deterministic, no offside, equal
    difficulty. The left side kicks off. Each side's own half is at negative x.
    """
    engine = importlib.import_module("gfootball_engine")
    settings, role = builder.config(), engine.e_PlayerRole
    settings.game_duration = 500
    settings.deterministic = True
    settings.offsides = False
    settings.left_team_difficulty = settings.right_team_difficulty = 0.05
    builder.SetBallPosition(0.0, 0.0)
    for team, kicks_off in ((engine.e_Team.e_Left, True), (engine.e_Team.e_Right, False)):
        builder.SetTeam(team)
        builder.AddPlayer(-1.0, 0.0, role.e_PlayerRole_GK)
        builder.AddPlayer(0.0 if kicks_off else -0.1, 0.02, role.e_PlayerRole_CM)
        builder.AddPlayer(-0.2, -0.1, role.e_PlayerRole_CB)
