"""Makers of the battles: `getattr(module, map_name)` returns the maker of a map."""

from __future__ import annotations

from functools import cache
from typing import Any, final

from pydantic import BaseModel, Field, create_model

from coterie.envs.worlds.skirmish import DUELS, ROSTERS
from coterie.envs.worlds.skirmish.battle import Skirmish, SkirmishConfig
from coterie.envs.worlds.skirmish.duel import Duel, DuelConfig


@final
class Battle:
    """Creates the worlds of one map. `Config` holds its settings with the step limit of the map."""

    def __init__(self, name: str):
        duel = name in DUELS
        self.name, self.roster = name, (DUELS if duel else ROSTERS)[name]
        self._world: type[Skirmish] | type[Duel] = Duel if duel else Skirmish
        base: type[BaseModel] = DuelConfig if duel else SkirmishConfig
        description = base.model_fields["episode_limit"].description
        self.Config: type[Any] = create_model(
            f"Skirmish_{name}",
            __base__=base,
            __doc__=f"Settings of skirmish/{name}.",
            episode_limit=(int | None, Field(self.roster.limit, ge=1, le=10**9, description=description)),
        )

    def __call__(self, config: Any, with_state: bool = False) -> Skirmish | Duel:
        return self._world(self.name, self.roster, config, with_state)


@cache
def _battle(name: str) -> Battle:
    return Battle(name)


def __getattr__(name: str) -> Battle:
    """Maker of a map; several map names are not valid Python identifiers."""
    if name not in ROSTERS and name not in DUELS:
        raise AttributeError(f"skirmish: no map named {name!r}")
    return _battle(name)
