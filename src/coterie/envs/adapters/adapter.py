"""What stands between the registry and an outside library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import BaseModel

from coterie.envs.hosting.instance import Instance, Layout
from coterie.envs.wrappers.config import HostedConfig


class Adapter(ABC):
    """Environments of one kind, by the library's own name. Made with that name; UserError if the library lacks it.

    Config: the typed keys of this environment, `env.*`. Its `wrappers` are put around by whoever opens it.
    """

    Config: type[HostedConfig]
    any_parameters: ClassVar[bool] = False
    """Copies can be told parameters of any name before an episode (`set_parameters`)."""

    @abstractmethod
    def layout(self, config: BaseModel) -> Layout:
        """What the environment is made of. UserError for what the library refuses."""

    @abstractmethod
    def instance(self, config: BaseModel) -> Instance:
        """One copy of the environment. UserError as in `layout`."""
