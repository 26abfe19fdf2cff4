"""What stands between the registry and an outside library."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from pydantic import BaseModel

from coterie.envs.vector import VectorEnv
from coterie.types import EnvSpec


class Adapter(ABC):
    """Environments of one kind, by the library's own name. Made with that name; UserError if the library lacks it.

    Config: the typed keys of this environment, `env.*`.
    """

    Config: type[BaseModel]

    @abstractmethod
    def spec(self, config: BaseModel) -> EnvSpec:
        """What the environment is made of. UserError for what the library refuses."""

    @abstractmethod
    def make(self, config: BaseModel, copies: int, seed: int, device: torch.device | str) -> VectorEnv:
        """`copies` copies of the environment. UserError as in `spec`."""
