"""What every wrapper is."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from coterie.envs.hosting.instance import Instance, Place


class Wrapper(Instance):
    """A copy around another, which it alone steps."""

    def __init__(self, inner: Instance):
        self.inner = inner

    @abstractmethod
    def attach(self, place: Place) -> None:
        """As `Instance.attach`: attaches the inner copy, to this place or to one that differs from it."""

    def render(self) -> np.ndarray | None:
        return self.inner.render()

    def close(self) -> None:
        self.inner.close()
