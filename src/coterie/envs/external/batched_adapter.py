"""Interface between the registry and an external library that steps a whole batch of environments at once."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import BaseModel

from coterie.core.specs import EnvSpec
from coterie.envs.contract.vector import VectorEnv


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
