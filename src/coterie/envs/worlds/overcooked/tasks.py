"""Makers of the kitchens: `getattr(module, layout_name)` returns the maker of a layout."""

from __future__ import annotations

from typing import final

from coterie.envs.worlds.overcooked import LAYOUTS
from coterie.envs.worlds.overcooked.config import OvercookedConfig
from coterie.envs.worlds.overcooked.kitchen import Kitchen, drawn_kitchen
from coterie.envs.worlds.overcooked.task import Overcooked


@final
class Layout:
    """Creates the worlds of one layout."""

    Config = OvercookedConfig

    def __init__(self, name: str):
        self.name = name

    def __call__(self, config: OvercookedConfig, with_state: bool = False) -> Overcooked:
        return Overcooked(self.name, kitchen_of(self.name, config), config, with_state)


def kitchen_of(name: str, config: OvercookedConfig) -> Kitchen:
    """Returns the kitchen of a layout's name, or the one that is drawn in the settings.

    Raises:
        ValueError: For an invalid drawing.
    """
    if config.layout is None:
        return drawn_kitchen(LAYOUTS[name])
    return drawn_kitchen(tuple(row.strip() for row in config.layout.strip().replace("/", "\n").upper().split("\n")))


def __getattr__(name: str) -> Layout:
    """Maker of a layout."""
    if name not in LAYOUTS:
        raise AttributeError(f"overcooked: there is no layout named {name!r}")
    return _MAKERS[name]


_MAKERS = {name: Layout(name) for name in LAYOUTS}
