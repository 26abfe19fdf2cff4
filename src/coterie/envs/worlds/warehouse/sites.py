"""Makers of the warehouses: `getattr(module, name)` returns the maker of a name such as `tiny-2ag-easy`."""

from __future__ import annotations

from functools import cache
from typing import Any, final

from pydantic import BaseModel, Field, create_model

from coterie.envs.worlds.warehouse import Site, site
from coterie.envs.worlds.warehouse.config import WarehouseConfig
from coterie.envs.worlds.warehouse.task import Warehouse


@final
class WarehouseMaker:
    """Creates the worlds of one name. `Config` holds its settings with the size and the agents of the name."""

    def __init__(self, name: str, place: Site):
        self.name, self._requests_per_agent = name, place.requests_per_agent
        defaults: dict[str, Any] = {}
        for key in ("agents", "shelf_rows", "shelf_columns"):
            own = WarehouseConfig.model_fields[key]
            limits = {"ge": 1, "le": next(limit.le for limit in own.metadata if hasattr(limit, "le"))}
            defaults[key] = (int, Field(getattr(place, key), description=own.description, **limits))
        self.Config: type[BaseModel] = create_model(
            f"Warehouse_{name}", __base__=WarehouseConfig, __doc__=f"Settings of warehouse/{name}.", **defaults
        )

    def __call__(self, config: WarehouseConfig, with_state: bool = False) -> Warehouse:
        requests = config.request_queue_size
        if requests is None:
            requests = int(config.agents * self._requests_per_agent)
        return Warehouse(self.name, config, requests, with_state)


@cache
def _maker(name: str, place: Site) -> WarehouseMaker:
    return WarehouseMaker(name, place)


def __getattr__(name: str) -> WarehouseMaker:
    """Maker of a warehouse; the names are not valid Python identifiers."""
    place = site(name)
    if place is None:
        raise AttributeError(f"warehouse: there is no warehouse named {name!r}")
    return _maker(name, place)
