"""Ranks in threads of one process, which exchange tensors in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.ranks.ranks import Ranks

R = TypeVar("R")

_SECONDS = 20.0


class ThreadRanks(Ranks):
    """A rank that is a thread.

    Args:
        rank: Its number.
        barrier: Waits for all ranks.
        slots: What the ranks exchange.
    """

    def __init__(self, rank: int, barrier: threading.Barrier, slots: list[Any]):
        super().__init__(rank, len(slots))
        self._barrier, self._slots = barrier, slots

    def _exchange(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(_SECONDS)
        found = list(self._slots)
        self._barrier.wait(_SECONDS)
        return found

    def sum_(self, x: Tensor) -> Tensor:
        return x.copy_(torch.stack(self.gather(x)).sum(0))

    def gather(self, x: Tensor) -> list[Tensor]:
        found = self._exchange(x.clone())
        assert len({(part.shape, part.dtype) for part in found}) == 1, [(part.shape, part.dtype) for part in found]
        self.traffic.calls += 1
        self.traffic.nbytes += x.nbytes
        return found

    def broadcast(self, content: bytes | None) -> bytes:
        return self._exchange(content)[0]

    def collect(self, content: bytes) -> list[bytes]:
        found = self._exchange(content)
        return found if self.rank == 0 else []

    def distribute(self, content: Callable[[int], bytes] | None) -> bytes:
        own = None if content is None else [b"", *(content(rank) for rank in range(1, self.size))]
        return self._exchange(own)[0][self.rank]


def on_ranks(size: int, function: Callable[[Ranks], R]) -> list[R]:
    """Calls a function on every rank, each in its own thread, and returns the results."""
    barrier, slots = threading.Barrier(size), [None] * size

    def call(rank: int) -> R:
        torch.set_num_threads(1)
        try:
            return function(ThreadRanks(rank, barrier, slots))
        except BaseException:
            barrier.abort()  # the others fail instead of waiting
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(call, rank) for rank in range(size)]
        errors = [error for error in (future.exception() for future in futures) if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]
