"""Google Research Football, `football/<scenario>`: teams of players on the real engine, one or both sides controlled.

The package is needed to play only: what an environment is made of is known before. Source: Kurach et al. 2020.
"""

from __future__ import annotations

from typing import ClassVar, Literal, final

import numpy as np
from gymnasium import spaces
from pydantic import BaseModel, Field

from coterie.envs.adapters.adapter import Adapter
from coterie.envs.adapters.spaces import Observer
from coterie.envs.football import sight
from coterie.envs.football.engine import package, settings, task_of
from coterie.envs.football.match import METRICS, SIDES, Match, Terms
from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.wrappers.config import HostedConfig
from coterie.errors import UserError
from coterie.types import EnvSpec, RoleSpec


class FootballConfig(HostedConfig):
    """Keys of every scenario."""

    training_only: ClassVar[tuple[str, ...]] = ("shaping",)

    sides: Literal["left", "right", "both"] = "left"
    """Which side is controlled; the engine's own players are the other. Both: a team a side."""
    left_players: int | None = Field(None, ge=1, le=11)
    """Controlled players of the left side; by default the task's number. The engine plays the others, and chooses
    whom to control from moment to moment unless they are all that can be."""
    right_players: int | None = Field(None, ge=1, le=11)
    """Controlled players of the right side."""
    rewards: tuple[Literal["scoring", "checkpoints"], ...] = Field(("scoring",), min_length=1)
    """What pays: `scoring` +1 a side that scores and -1 the other, `checkpoints` up to 1 for a player who brings the
    ball near the goal."""
    shaping: float = Field(0.0, ge=0)
    """What every player is paid a step while training for where the ball lies, at most; 0.1 was published. Evaluations
    never count it."""
    episode_limit: int | None = Field(None, ge=1)
    """Steps after which an episode is cut; by default the scenario's number of frames, which is the most."""
    state: bool | None = None
    """Whether critics are shown the state of the match; by default where an algorithm reads it."""


@final
class Football(Adapter):
    """The scenario of one name: any that the package has, and `3_vs_3_custom`."""

    Config = FootballConfig

    def __init__(self, scenario: str):
        self.name, self._scenario = f"football/{scenario}", scenario
        self._task = task_of(self.name, scenario)

    def layout(self, config: BaseModel) -> Layout:
        assert isinstance(config, FootballConfig)
        terms = self._terms(config)
        observer = Observer(spaces.Box(-np.inf, np.inf, (sight.SIZE,), np.float32))
        roles = tuple(
            RoleSpec(
                SIDES[side],
                SIDES[side],
                tuple(f"{SIDES[side]}_{k}" for k in range(terms.players[side])),
                observer.space,
                spaces.Discrete(len(sight.CHOICES)),
                (sight.CHOICES,),
            )
            for side in terms.sides
        )
        spec = EnvSpec(
            self.name,
            roles,
            {"global": sight.STATE} if config.state is not False else {},
            paid_by_group="scoring" in config.rewards,
            metrics=METRICS,
            episode_limit=terms.limit,
        )
        return Layout(spec, {role.name: observer for role in roles})

    def instance(self, config: BaseModel) -> Instance:
        assert isinstance(config, FootballConfig)
        terms, found = self._terms(config), package(self.name)
        return Match(settings(found, self._scenario, terms.players), found.Core, terms)

    def _terms(self, config: FootballConfig) -> Terms:
        """What is played for. UserError for players that the scenario has not."""
        players = [0, 0]
        for side, asked in enumerate((config.left_players, config.right_players)):
            most, key = (self._task.left, self._task.right)[side], f"env.{SIDES[side]}_players"
            if config.sides not in (SIDES[side], "both"):
                if asked is not None:
                    raise UserError(f"{key}={asked}: env.sides={config.sides} leaves that side to the engine")
                continue
            players[side] = self._task.controlled[side] if asked is None else asked
            if players[side] > most:
                said = f"expected at most {most}, the players of '{self.name}' on that side that can be controlled"
                raise UserError(f"{key}={asked}: {said}")
        return Terms(
            self.name,
            self._task,
            (players[0], players[1]),
            min(self._task.frames, config.episode_limit or self._task.frames),
            "scoring" in config.rewards,
            "checkpoints" in config.rewards,
            config.shaping,
        )
