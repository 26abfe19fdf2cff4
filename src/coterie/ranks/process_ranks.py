"""Ranks that are processes: tensors are exchanged by `torch.distributed`, with gloo on the CPU and NCCL on GPUs.

Ranks of one machine can exchange tensors on the CPU in another way, see `LocalExchange`.

Every rank counts its exchanges in a store that all of them can read. If one does not take part for `timeout` seconds,
the others find out from these counts which one it is.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from coterie.core.errors import ReportedError
from coterie.ranks.rank_stores import KeyStore
from coterie.ranks.ranks import Ranks

FINISHED = "finished"
"""Key that rank 0 sets when the run has ended and nothing but its process is left to end."""
_JOIN_SECONDS = 120.0
"""Ranks may take this long to import libraries and to meet."""
_POLL_SECONDS = 0.02
_BEAT_SECONDS = 1.0
_LOST_SECONDS = 3.0
"""A rank whose connection broke waits this long for the process that started the ranks, which knows the reason."""
_RANK_0_SECONDS = 30.0
"""Seconds without a sign of life after which rank 0 is given up while the others wait for its evaluation."""


class RankFailedError(ReportedError):
    """A rank hangs. The message names it. Exit code 3."""


class RankLostError(ReportedError):
    """The connection to another rank broke: it has ended, and reports the reason itself. Exit code 4."""


class PeerEndedError(Exception):
    """A rank has ended that others wait for in a `LocalExchange`."""


class PeersLateError(Exception):
    """Ranks do not take part in a `LocalExchange` in time.

    Attributes:
        ranks: Their numbers.
    """

    def __init__(self, ranks: list[int]):
        super().__init__(ranks)
        self.ranks = ranks


class LocalExchange(ABC):
    """Exchange of tensors on the CPU between ranks of one machine, which is faster than connections."""

    @abstractmethod
    def can_sum(self, x: Tensor) -> bool:
        """True if tensors of this type, device and layout can be summed."""

    @abstractmethod
    def sum_(self, x: Tensor) -> None:
        """Replaces x by its sum over ranks, in their order.

        Raises:
            PeerEndedError: If another rank has ended.
            PeersLateError: If other ranks do not take part in time.
        """

    @abstractmethod
    def gather(self, x: Tensor) -> list[Tensor]:
        """Returns the tensors x of all ranks, which have equal shapes. Raises as `sum_`."""

    @abstractmethod
    def close(self) -> None:
        """Releases the memory."""


@final
class ProcessRanks(Ranks):
    """A rank that is a process.

    Args:
        store: Counts of exchanges and lengths of messages, shared by all ranks. One rank that hangs must not keep the
            others from using it.
        rank: Number of this rank.
        size: Number of ranks.
        group: Store with which `torch.distributed` connects the ranks.
        timeout: Seconds to wait for other ranks in an exchange.
        device: Device of the tensors: the CPU, or this rank's GPU.
    """

    def __init__(self, store: KeyStore, rank: int, size: int, *, group: Store, timeout: float, device: torch.device):
        super().__init__(rank, size)
        self._store, self._timeout, self._calls, self._broadcasts = store, timeout, 0, 0
        self._local: LocalExchange | None = None
        self._device_type = device.type
        self._meet()
        self._connect(group, device)
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def _meet(self) -> None:
        """Waits until all ranks have started. Raises RankFailedError if one of them does not."""
        self._store.set(f"here/{self.rank}", "")
        seconds = max(self._timeout, _JOIN_SECONDS)
        until, missing = time.monotonic() + seconds, list(range(self.size))
        while missing := [rank for rank in missing if not self._store.check([f"here/{rank}"])]:
            if time.monotonic() > until:
                raise RankFailedError(f"rank {missing[0]} did not start within {seconds:.0f} s, so all ranks end.")
            time.sleep(_POLL_SECONDS)

    def _connect(self, group: Store, device: torch.device) -> None:
        """Connects the ranks. Raises RankFailedError if one of them cannot be reached."""
        try:
            dist.init_process_group(
                "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
                store=PrefixStore("group", group),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self._timeout),
                device_id=device if device.type == "cuda" else None,
            )
        except (RuntimeError, dist.DistError) as error:
            raise RankFailedError(
                f"rank {self.rank} could not connect to all other ranks, so all ranks end: {_first_line(error)} If a "
                "machine has several networks, name the one to use with GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
            ) from error

    def _beat(self) -> None:
        """Publishes the number of exchanges, and that this process is alive, until the rank is closed."""
        number = 0
        while not self._ended.wait(_BEAT_SECONDS):
            number += 1
            try:
                self._store.set(f"beat/{self.rank}", f"{self._calls} {number}")
            except Exception:  # the store has ended, and so will this process
                return

    def _exchange(self, function: Callable[[], Any], nbytes: int = 0) -> Any:
        """Calls a function of `torch.distributed`.

        Args:
            function: The function.
            nbytes: Bytes that this rank contributes.

        Raises:
            RankFailedError: If another rank does not take part in time.
            RankLostError: If another rank has ended.
        """
        self._calls += 1
        started = time.perf_counter()
        try:
            return function()
        except (RuntimeError, dist.DistError, PeerEndedError, PeersLateError) as error:
            waited = time.perf_counter() - started
            if isinstance(error, PeerEndedError) or waited < 0.9 * self._timeout:
                time.sleep(_LOST_SECONDS)
                raise RankLostError(
                    f"rank {self.rank} lost the connection to another rank, which has ended. Its own message has the "
                    "reason."
                ) from error
            late = error.ranks if isinstance(error, PeersLateError) else self._late_ranks()
            named = f"rank {', '.join(map(str, late))}" if late else "another rank"
            raise RankFailedError(
                f"{named} did not respond for {waited:.0f} s, so all ranks end. Set rank_timeout to a larger number "
                "of seconds if a rollout can take that long."
            ) from error
        finally:
            self.traffic.calls += 1
            self.traffic.nbytes += nbytes
            self.traffic.seconds += time.perf_counter() - started

    def _late_ranks(self) -> list[int]:
        """Returns the ranks that began fewer exchanges than this one."""
        late = []
        for rank in (rank for rank in range(self.size) if rank != self.rank):
            try:  # `get` would wait for a rank that has never published its number
                known = self._store.check([f"beat/{rank}"])
                calls = int(self._store.get(f"beat/{rank}").split()[0]) if known else -1
            except Exception:
                calls = -1
            if calls < self._calls:
                late.append(rank)
        return late

    @property
    def exchange(self) -> str:
        """Transport of the tensors that are summed: `nccl` on GPUs, on the CPU `shared memory` or `gloo`."""
        if self._device_type == "cuda":
            return "nccl"
        return "gloo" if self._local is None else "shared memory"

    def use(self, local: LocalExchange) -> None:
        """Exchanges tensors on the CPU in this way from now on. All ranks must call it at the same point."""
        self._local = local

    def sum_(self, x: Tensor) -> Tensor:
        local = self._local if self._local is not None and self._local.can_sum(x) else None
        self._exchange(lambda: dist.all_reduce(x) if local is None else local.sum_(x), x.nbytes)
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        if self._local is not None and x.is_cpu:
            return self._exchange(lambda local=self._local: local.gather(x), x.nbytes)
        raw = x.contiguous().view(torch.uint8) if x.dtype == torch.bool else x.contiguous()
        found = [torch.empty_like(raw) for _ in range(self.size)]
        self._exchange(lambda: dist.all_gather(found, raw), raw.nbytes)
        return [part.view(x.dtype) for part in found]

    def broadcast(self, content: bytes | None) -> bytes:
        self._broadcasts += 1
        buffer = self._announced(f"broadcast/{self._broadcasts}", content)
        if len(buffer):
            self._exchange(lambda: dist.broadcast(buffer, src=0))
        return buffer.numpy().tobytes()

    def distribute(self, content: Callable[[int], bytes] | None) -> bytes:
        self._broadcasts += 1
        for rank in range(1, self.size) if content is not None else [self.rank]:
            buffer = self._announced(f"broadcast/{self._broadcasts}/{rank}", None if content is None else content(rank))
            if len(buffer):
                other = dist.recv if content is None else dist.send
                self._exchange(
                    lambda buffer=buffer, rank=rank, other=other: other(buffer, rank if self.is_first else 0)
                )
        return b"" if content is not None else buffer.numpy().tobytes()

    def _announced(self, key: str, content: bytes | None) -> Tensor:
        """Returns the content as bytes [length] uint8 on rank 0, and room for it on the others."""
        if content is not None:
            self._store.set(key, str(len(content)))
            return (
                torch.frombuffer(bytearray(content), dtype=torch.uint8)
                if content
                else torch.empty(0, dtype=torch.uint8)
            )
        self._await(key)
        return torch.empty(int(self._store.get(key)), dtype=torch.uint8)

    def _await(self, key: str) -> None:
        """Waits until rank 0 has set a key, as long as it shows signs of life."""
        last, since, pause = b"", time.monotonic(), 0.001
        while not self._store.check([key]):
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            beat = self._store.get("beat/0") if self._store.check(["beat/0"]) else b""
            if beat != last:
                last, since = beat, time.monotonic()
            if time.monotonic() - since > max(_RANK_0_SECONDS, self._timeout):
                raise RankFailedError("rank 0 does not respond, so all ranks end.")

    def collect(self, content: bytes) -> list[bytes]:
        sizes = [int(x) for x in self.gather(torch.tensor([len(content)]))]
        if not self.is_first:
            if content:
                self._exchange(lambda: dist.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), dst=0))
            return []
        found = [content]
        for rank, size in enumerate(sizes[1:], 1):
            buffer = torch.empty(size, dtype=torch.uint8)
            if size:
                self._exchange(lambda buffer=buffer, rank=rank: dist.recv(buffer, src=rank))
            found.append(buffer.numpy().tobytes())
        return found

    def close(self) -> None:
        """Ends the connections. The others wait until rank 0 has finished.

        Raises:
            RankFailedError: If rank 0 hangs.
        """
        if self.is_first:
            self._store.set(FINISHED, "")
        else:
            self._await(FINISHED)
        self._ended.set()
        self._beats.join(2 * _BEAT_SECONDS)
        if self._local is not None:
            self._local.close()
        dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    """Returns the first line of a message, as a sentence."""
    line = str(error).strip().partition("\n")[0]
    return line if line.endswith(".") else f"{line}."


def rank_device(name: str, local_rank: int) -> torch.device:
    """Returns the device of a rank: its own GPU for `cuda`, else the CPU."""
    cuda = name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda", local_rank) if cuda else torch.device("cpu")


def local_rank() -> int:
    """Returns the number of this rank among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_size() -> int:
    """Returns the number of ranks on this machine; 1 if no launcher names it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
