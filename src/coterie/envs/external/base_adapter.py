"""Interfaces between the registry and an external library, and one that steps a whole batch of environments at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from pydantic import BaseModel

from coterie.config.wrappers import ExternalEnvConfig
from coterie.core.specs import EnvSpec
from coterie.envs.contract.vector import VectorEnv
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


class BatchAdapter(ABC):
    """Environments of one kind, by the name they have in their library. UserError if the library has no such
    environment.

    `Config` holds the typed settings `env.*`.
    """

    Config: type[BaseModel]

    @abstractmethod
    def spec(self, config: BaseModel) -> EnvSpec:
        """Spaces and roles of the environment. UserError for settings that the library rejects."""

    @abstractmethod
    def batch(self, config: BaseModel, num_envs: int, seed: int, device: torch.device) -> VectorEnv:
        """Creates the batch of environments. UserError as in `spec`."""
