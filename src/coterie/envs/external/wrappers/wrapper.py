"""Base class of wrappers."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from coterie.envs.external.hosting.instance import EnvBuffers, Instance


class Wrapper(Instance):
    """An instance that changes what another one, `inner`, reads or writes."""

    def __init__(self, inner: Instance):
        self.inner = inner

    @abstractmethod
    def attach(self, buffers: EnvBuffers) -> None:
        """Attaches the inner instance to these buffers, or to others of which some arrays differ."""

    def render(self) -> np.ndarray | None:
        return self.inner.render()

    def close(self) -> None:
        self.inner.close()
