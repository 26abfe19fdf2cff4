"""Environments whose steps can be captured as part of a CUDA graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from coterie.core.tree import Tree
from coterie.envs.contract.vector import VectorEnv


class CapturableEnv(VectorEnv):
    """An environment whose `step`, on an accelerator, may be a function of tensors.

    Where `cuda_graphs` is True, `step` depends on the actions, on `tensors`, on draws from `generators` and on
    `constants` only. It neither reads tensors on the host nor copies any to the device, and takes the same branches in
    all calls.
    """

    @property
    @abstractmethod
    def cuda_graphs(self) -> bool:
        """True if `step` can be captured as part of a CUDA graph."""

    @property
    @abstractmethod
    def generators(self) -> Sequence[torch.Generator]:
        """Generators that `step` draws from; others after `reset` with a seed."""

    @property
    @abstractmethod
    def constants(self) -> object:
        """Python values that `step` depends on and that may change between steps, compared by `==`."""

    @abstractmethod
    def tensors(self) -> Tree:
        """Returns all tensors that `step` replaces. They are not changed in place."""

    @abstractmethod
    def set_tensors(self, tensors: Tree) -> None:
        """Sets the tensors that `tensors` returned, or others of the same shapes and types."""
