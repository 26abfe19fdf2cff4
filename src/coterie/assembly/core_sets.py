"""Sets of cores for processes that run side by side: the jobs of a sweep, the trials of a search, local ranks."""

from __future__ import annotations

import contextlib
import os


def core_sets(threads: int | None, num_parallel: int) -> list[frozenset[int]]:
    """Returns cores for each of the processes that run at the same time; empty sets where they cannot be divided."""
    cores = sorted(os.sched_getaffinity(0)) if threads and hasattr(os, "sched_getaffinity") else []
    if threads is None or len(cores) < threads * num_parallel:
        return [frozenset()] * num_parallel
    return [frozenset(cores[i * threads : (i + 1) * threads]) for i in range(num_parallel)]


def pin(pid: int, cores: frozenset[int]) -> None:
    """Restricts a process, 0 for this one, to a set of cores. Does nothing for an empty set."""
    if cores:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(pid, cores)
