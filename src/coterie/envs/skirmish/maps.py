"""The maps as makers of worlds: the name of a map, taken from this module, is its maker."""

from __future__ import annotations

from functools import cache
from typing import final

from pydantic import Field, create_model

from coterie.envs.skirmish import ROSTERS
from coterie.envs.skirmish.battle import Skirmish, SkirmishConfig


@final
class Battle:
    """Makes the worlds of one map. `Config`: its settings, with the map's own step limit."""

    def __init__(self, name: str):
        self.name, self.roster = name, ROSTERS[name]
        told = SkirmishConfig.model_fields["episode_limit"].description
        self.Config: type[SkirmishConfig] = create_model(
            f"Skirmish_{name}",
            __base__=SkirmishConfig,
            __doc__=f"Settings of skirmish/{name}.",
            episode_limit=(int | None, Field(self.roster.limit, ge=1, description=told)),
        )

    def __call__(self, config: SkirmishConfig, with_state: bool = False) -> Skirmish:
        return Skirmish(self.name, self.roster, config, with_state)


@cache
def _battle(name: str) -> Battle:
    return Battle(name)


def __getattr__(name: str) -> Battle:
    """The maker of a map; several of their names are none that Python could assign to."""
    if name not in ROSTERS:
        raise AttributeError(f"there is no map {name!r}")
    return _battle(name)
