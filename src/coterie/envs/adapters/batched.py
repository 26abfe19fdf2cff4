"""What stands between the registry and an outside library that steps a whole batch of copies at once."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import BaseModel

from coterie.envs.vector import VectorEnv
from coterie.types import EnvSpec


class BatchAdapter(ABC):
    """Environments of one kind, by the library's own name. Made with that name; UserError if the library lacks it.

    Config: the typed keys of this environment, `env.*`.
    """

    Config: type[BaseModel]

    @abstractmethod
    def spec(self, config: BaseModel) -> EnvSpec:
        """What the environment is made of. UserError for what the library refuses."""

    @abstractmethod
    def batch(self, config: BaseModel, copies: int, seed: int, device: torch.device) -> VectorEnv:
        """The copies. UserError as in `spec`."""
