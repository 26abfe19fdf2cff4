"""The maps as makers of worlds: the name of a map, taken from this module, is its maker."""

from __future__ import annotations

from functools import cache
from typing import Any, final

from pydantic import BaseModel, Field, create_model

from coterie.envs.skirmish import DUELS, ROSTERS
from coterie.envs.skirmish.battle import Skirmish, SkirmishConfig
from coterie.envs.skirmish.duel import Duel, DuelConfig


@final
class Battle:
    """Makes the worlds of one map. `Config`: its settings, with the map's own step limit."""

    def __init__(self, name: str):
        duel = name in DUELS
        self.name, self.roster = name, (DUELS if duel else ROSTERS)[name]
        self._world: type[Skirmish] | type[Duel] = Duel if duel else Skirmish
        base: type[BaseModel] = DuelConfig if duel else SkirmishConfig
        told = base.model_fields["episode_limit"].description
        self.Config: type[Any] = create_model(
            f"Skirmish_{name}",
            __base__=base,
            __doc__=f"Settings of skirmish/{name}.",
            episode_limit=(int | None, Field(self.roster.limit, ge=1, description=told)),
        )

    def __call__(self, config: Any, with_state: bool = False) -> Skirmish | Duel:
        return self._world(self.name, self.roster, config, with_state)


@cache
def _battle(name: str) -> Battle:
    return Battle(name)


def __getattr__(name: str) -> Battle:
    """The maker of a map; several of their names are none that Python could assign to."""
    if name not in ROSTERS and name not in DUELS:
        raise AttributeError(f"there is no map {name!r}")
    return _battle(name)
