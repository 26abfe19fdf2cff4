"""Interface between the registry and an external library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import BaseModel

from coterie.config.wrappers import ExternalEnvConfig
from coterie.envs.external.hosting.instance import Instance, Layout


class Adapter(ABC):
    """Environments of one kind, by the name they have in their library. UserError if the library has no such
    environment.

    `Config` holds the typed settings `env.*`. Wrappers in `env.wrappers` are applied by the caller.
    """

    Config: type[ExternalEnvConfig]
    any_parameters: ClassVar[bool] = False
    """Parameters of any name can be set before an episode (`set_parameters`)."""

    @abstractmethod
    def layout(self, config: BaseModel) -> Layout:
        """Spaces and roles of the environment. UserError for settings that the library rejects."""

    @abstractmethod
    def instance(self, config: BaseModel) -> Instance:
        """Creates one environment. UserError as in `layout`."""
