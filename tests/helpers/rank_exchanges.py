"""Processes that exchange tensors through shared memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from coterie.ranks.process_ranks import PeerEndedError, PeersLateError, ProcessRanks
from coterie.ranks.rank_stores import FolderStore, file_store
from coterie.ranks.shared_memory import SharedMemory, create_shared_file
from tinyruns import PRELOADED_MODULES

Work = Callable[[SharedMemory, int, int], Any]
DTYPES = (torch.float32, torch.float64, torch.int64)
COUNTS = (1, 7, 600_000)
"""Sizes of tensors that are summed; the last one takes several parts."""


def start(work: Work, size: int, timeout: float = 30.0) -> tuple[list[Any], list[Connection]]:
    """Starts ranks that all have opened the memory. Returns their processes and the connections to their results."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    path = create_shared_file(size)
    pipes = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(target=_run, args=(work, str(path), rank, size, timeout, pipes[rank][1]))
        for rank in range(size)
    ]
    for process, (_, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()
    connections = [own for own, _ in pipes]
    for connection in connections:
        assert connection.recv() == "opened"
    path.unlink()
    for connection in connections:
        connection.send("go")
    return processes, connections


def _run(work: Work, path: str, rank: int, size: int, timeout: float, parent: Connection) -> None:
    torch.set_num_threads(1)
    shared = SharedMemory(Path(path), rank, size, timeout=timeout)
    parent.send("opened")
    parent.recv()
    try:
        parent.send(work(shared, rank, size))
    except (PeerEndedError, PeersLateError) as error:
        parent.send((type(error).__name__, error.args[0]))
    shared.close()


def on_processes(work: Work, size: int) -> list[Any]:
    """Returns the results of all ranks."""
    processes, connections = start(work, size)
    results = [connection.recv() for connection in connections]
    for process in processes:
        process.join()
    return results


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns the summand of a rank."""
    draw = torch.Generator().manual_seed(rank)
    return (1000 * torch.randn(count, generator=draw, dtype=torch.float64)).to(dtype)


def every_exchange(shared: SharedMemory, rank: int, size: int) -> dict[str, Any]:
    """Returns sums as bytes, gathered tensors as lists, and whether all of many quick sums were right."""
    sums = []
    for dtype in DTYPES:
        for count in COUNTS:
            shared.sum_(x := values(rank, count, dtype))
            sums.append(x.numpy().tobytes())
    flags, empty = torch.tensor([rank == 0, True, rank == 2]), torch.empty(0, 4)
    table = torch.full((3, 2), float(rank)).T  # not contiguous
    gathered = [[part.tolist() for part in shared.gather(x)] for x in (flags, table, empty)]
    x, right = torch.empty(300), True
    for number in range(1000):  # a slot that is filled again too early would change a sum
        x.fill_(number + rank)
        shared.sum_(x)
        right &= bool((x == size * number + sum(range(size))).all())
    return {"sums": sums, "gathered": gathered, "right": right}


def wait_for_a_signal(shared: SharedMemory, rank: int, size: int) -> str:
    """Rank 1 does not take part in the second exchange."""
    shared.sum_(torch.ones(3))
    if rank == 1:
        signal.pause()
    shared.sum_(torch.ones(3))
    return "exchanged"


def joined_ranks(folder: Path, rank: int, size: int) -> ProcessRanks:
    """Returns a rank that has joined the others, which use the same folder."""
    store, group = FolderStore(folder / "values"), file_store(folder / "store", size)
    return ProcessRanks(store, rank, size, group=group, timeout=30.0, device=torch.device("cpu"))


def join_and_stop(folder: str) -> None:
    """Rank 0 of 2, which hangs when the training has ended."""
    joined_ranks(Path(folder), 0, 2).total(1.0)
    os.kill(os.getpid(), signal.SIGSTOP)
