"""Ranks: the processes that train one run together, each with its share of the environments and all networks.

The ranks execute the same operations in the same order. Losses and metrics of a batch are each rank's part of the mean
over the samples of all ranks, see `Reduction`, so that the average of the parts, and of their gradients, is exact. With
one rank, which is the default, nothing is communicated and nothing is computed that is not needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from coterie.core.tree import Tree, tree_map


@dataclass
class Traffic:
    """Exchanges of a rank with the others.

    Attributes:
        calls: Number of exchanges.
        nbytes: Bytes of this rank's tensors in them.
        seconds: Time spent in them on the CPU, waiting for other ranks included.
    """

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    def pop(self) -> Traffic:
        """Returns the exchanges so far, and starts again from none."""
        taken = Traffic(self.calls, self.nbytes, self.seconds)
        self.calls, self.nbytes, self.seconds = 0, 0, 0.0
        return taken

    def metrics(self, elapsed: float) -> dict[str, float]:
        """Returns the metrics of the exchanges within `elapsed` seconds."""
        calls = max(self.calls, 1)
        return {
            "time/exchange_share": self.seconds / elapsed,
            "time/exchange_ms": 1000 * self.seconds / calls,
            "time/exchange_bytes": self.nbytes / calls,
        }


class Ranks(ABC):
    """One of the ranks of a run, and its communication with the others.

    Attributes:
        rank: Number of this rank, from 0.
        size: Number of ranks.
        traffic: Communication so far.
        stands_in: True if this rank has no sample of the present batch, and a masked one stands in.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.traffic = rank, size, Traffic()
        self._own: tuple[int, int] | None = None  # samples of this rank and of all in the present batch
        self._places: Tensor | None = None
        self.stands_in = False
        self._counts: dict[tuple[int, ...], tuple[tuple[Tensor, ...], Tensor]] = {}

    @abstractmethod
    def sum_(self, x: Tensor) -> Tensor:
        """Replaces x by its sum over ranks, with equal bits on all ranks. Returns x."""

    @abstractmethod
    def gather(self, x: Tensor) -> list[Tensor]:
        """Returns the tensors x of all ranks, which have equal shapes."""

    @abstractmethod
    def broadcast(self, content: bytes | None) -> bytes:
        """Returns the content that rank 0 passed; the others pass None. The others wait as long as rank 0 runs."""

    @abstractmethod
    def collect(self, content: bytes) -> list[bytes]:
        """Returns the contents of all ranks on rank 0, [] on the others."""

    @abstractmethod
    def distribute(self, content: Callable[[int], bytes] | None) -> bytes:
        """Returns the content for this rank. Rank 0 passes a function of the rank, which is called for the others; its
        own result is b"". The others pass None and wait as long as rank 0 runs.
        """

    @property
    def is_first(self) -> bool:
        """True for rank 0, which writes the run folder and shows progress."""
        return self.rank == 0

    # ------------------------------------------------------------------------------------------------ numbers

    def total(self, *values: float) -> list[float]:
        """Returns the sums of numbers over ranks."""
        if self.size == 1:
            return list(values)
        return self.sum_(torch.tensor(values, dtype=torch.float64)).tolist()

    def any(self, flag: bool) -> bool:
        """Returns True if the flag is True on any rank."""
        return flag if self.size == 1 else self.total(float(flag))[0] > 0

    def mean(self, x: Tensor) -> Tensor:
        """Returns the mean of x over ranks; x itself with one rank."""
        return x if self.size == 1 else self.sum_(x.clone()).div_(self.size)

    # ------------------------------------------------------------------------------------------------ batches

    @property
    def reduction(self) -> Ranks | None:
        """Reduction of statistics over the batches of all ranks, see `Reduction`; None with one rank."""
        return None if self.size == 1 else self

    def start_batch(self, places: Tensor | None = None, total: int = 0, *, never_empty: bool = False) -> None:
        """Starts a batch, such as a minibatch. Every update starts with a batch of all environments.

        Args:
            places: Places of this rank's samples in the batch of all ranks [M_r]; None: all ranks have equally many.
            total: Samples of all ranks, with `places`.
            never_empty: True if a sample that does not count stands in for none.
        """
        self.stands_in = never_empty and places is not None and len(places) == 0
        self._places, self._own = places, None if places is None else (len(places), total)
        self._counts.clear()

    @property
    def scale(self) -> float:
        """Samples of this rank in the present batch, relative to the mean over ranks."""
        return 1.0 if self._own is None else self._own[0] * self.size / max(self._own[1], 1)

    def draw(self, function: Callable[[int], Tree], own: int, axis: int) -> Tree:
        """Returns random tensors for the samples of this rank, a part of those for the batch of all ranks.

        Args:
            function: Draws tensors with a number of samples along `axis`.
            own: Samples of this rank.
            axis: Axis of samples.
        """
        if self.size == 1:
            return function(own)
        places = self._places if not self.stands_in or self._places is None else self._places.new_zeros(own)
        if places is None or self._own is None or len(places) != own:
            raise RuntimeError(f"noise for {own} samples, which are not those of the present batch")
        return tree_map(lambda x: x.index_select(axis, places), function(self._own[1]))

    def mean_count(self, *valid: Tensor) -> Tensor:
        """Returns the True entries of masks on all ranks, divided by the number of ranks: [] float64, at least 1 / R.

        The result is kept until the next batch starts, since several terms of a loss have the same mask.
        """
        key = tuple(id(x) for x in valid)
        if key not in self._counts:
            count = self.sum_(torch.stack([x.sum() for x in valid]).sum())
            self._counts[key] = (valid, count.clamp(min=1).double() / self.size)
        return self._counts[key][1]

    # --------------------------------------------------------------------------------------------- environments

    def env_share(self, num_envs: int) -> slice:
        """Returns this rank's part of all environments."""
        own = num_envs // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def own_envs(self, tree: Tree, num_envs: int) -> Tree:
        """Returns this rank's part of tensors [B, ..] of all ranks' `num_envs` environments."""
        if self.size == 1:
            return tree
        share = self.env_share(num_envs)
        return tree_map(lambda x: x[share], tree)

    def all_envs(self, x: Tensor, axis: int) -> Tensor:
        """Returns x of all ranks, joined along the axis of environments."""
        return x if self.size == 1 else torch.cat(self.gather(x), axis)

    def own_samples(self, index: Tensor, num_envs: int) -> tuple[Tensor, Tensor]:
        """Selects samples of this rank's environments.

        Args:
            index: t * B + b [M], with B environments of all ranks.
            num_envs: Environments of this rank.

        Returns:
            Their indices t * B_r + b_r [M_r], with B_r environments of this rank, and their places in `index` [M_r].
        """
        total, first = num_envs * self.size, num_envs * self.rank
        env = index % total
        places = ((env >= first) & (env < first + num_envs)).nonzero().squeeze(-1)
        own = index[places]
        return own // total * num_envs + own % total - first, places


@final
class OneRank(Ranks):
    """A run of one process, which communicates with nobody."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def sum_(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        return [x]

    def broadcast(self, content: bytes | None) -> bytes:
        assert content is not None
        return content

    def collect(self, content: bytes) -> list[bytes]:
        return [content]

    def distribute(self, content: Callable[[int], bytes] | None) -> bytes:
        return b""


ONE: Final = OneRank()
"""The only rank of a run of one process."""
