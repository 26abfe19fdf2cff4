"""Who steps some of the copies of an environment, as the host sees it that gave them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from coterie.envs.workers.serve import Post


class Failure(Exception):
    """A worker is of no more use; what happened, in words."""


class Worker(ABC):
    """A worker is told orders and answers each. What it shows then is on its host's board."""

    post: Post

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Number of its process, where that runs."""

    @abstractmethod
    def tell(self, order: bytes) -> None:
        """Failure if nobody listens any more."""

    @abstractmethod
    def answer(self, until: float, allowed: float) -> bytes:
        """What it answers before the monotonic time `until`; allowed: the seconds that it had, for the words. Failure
        if it does not, or if it says that it cannot go on.
        """

    @abstractmethod
    def close(self, patience: float = 0.0) -> None:
        """Lets it end by itself for so many seconds, and kills it then."""
