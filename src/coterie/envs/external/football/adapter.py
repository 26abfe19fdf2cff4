"""Google Research Football, `football/<scenario>`: one or both sides controlled, on the real engine.

The package is needed only to play; specs are known without it. Source: Kurach et al. 2020.
"""

from __future__ import annotations

from typing import ClassVar, Literal, final

import numpy as np
from gymnasium import spaces
from pydantic import BaseModel, Field

from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.errors import UserError
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.envs.external.base_adapter import Adapter
from coterie.envs.external.football import observations
from coterie.envs.external.football.engine import package, settings, task_of
from coterie.envs.external.football.match import METRICS, SIDES, Match, MatchSettings
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
        observer = Observer(spaces.Box(-np.inf, np.inf, (observations.SIZE,), np.float32))
        roles = tuple(
            RoleSpec(
                name=SIDES[side],
                group=SIDES[side],
                agents=tuple(f"{SIDES[side]}_{k}" for k in range(match.players[side])),
                observation_space=observer.space,
                action_space=spaces.Discrete(len(observations.CHOICES)),
                choice_names=(observations.CHOICES,),
            )
            for side in match.sides
        )
        spec = EnvSpec(
            self.name,
            roles,
            {"global": observations.STATE} if config.state is not False else {},
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
