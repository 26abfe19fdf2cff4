"""The number of PyTorch's threads that `threads=auto` stands for."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch

Threads = int | Literal["auto"]

MAX_DEFAULT_THREADS = 8
"""Small networks gain nothing from more threads."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_VARIABLE = "OMP_NUM_THREADS"
_ROUNDS, _BLOCK_SECONDS = 12, 0.01
_MOST_SECONDS, _LEAST_ROUNDS = 0.7, 3
"""The measurement ends after this time if it has this number of turns: beside busy processes turns take longer."""
_GAIN = 1.1
"""More threads are taken if they are faster by this factor; otherwise they would only occupy cores."""


def available_cores() -> int:
    """Returns the number of cores that this process may use: its CPU affinity, limited by the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if _CGROUP_LIMIT.exists():
        quota, _, period = _CGROUP_LIMIT.read_text().strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def most_threads() -> int:
    """Returns the number in the environment variable OMP_NUM_THREADS, else the available cores, at most 8."""
    named = os.environ.get(_VARIABLE, "").partition(",")[0].strip()
    return int(named) if named.isdecimal() and int(named) > 0 else min(available_cores(), MAX_DEFAULT_THREADS)


def number_of_threads(setting: Threads) -> int:
    """Returns the setting, with `auto` for `most_threads`."""
    return most_threads() if setting == "auto" else setting


def measured_threads(setting: Threads, on_measuring: Callable[[], object] = lambda: None) -> int:
    """Returns the setting; `auto` for the number with which gradient steps of a small network take the least time.

    The candidates are the powers of two up to `most_threads`, and that number itself. They are measured in turns of
    10 ms, for an eighth of a second per candidate and less than a second in all. On cores that other processes use, one
    thread that waits for another can make two slower than one, so the mean of the turns decides. OMP_NUM_THREADS is
    taken as it is.

    Args:
        setting: Number of threads or `auto`.
        on_measuring: Called before the measurement.
    """
    most = most_threads()
    if setting != "auto" or most == 1 or os.environ.get(_VARIABLE):
        return most if setting == "auto" else setting
    on_measuring()
    counts = [2**k for k in range(most.bit_length()) if 2**k < most] + [most]
    before = torch.get_num_threads()
    try:
        return fewest_of_the_fastest(counts, _times(counts, _gradient_step()))
    finally:
        torch.set_num_threads(before)


def fewest_of_the_fastest(counts: Sequence[int], times: Sequence[Sequence[float]]) -> int:
    """Returns the number of threads to use.

    Args:
        counts: Numbers of threads, ascending.
        times: Seconds of a unit of work in each turn, by number of threads.
    """
    best, least = counts[0], statistics.fmean(times[0])
    for count, measured in zip(counts[1:], times[1:], strict=True):
        if statistics.fmean(measured) * _GAIN < least:
            best, least = count, statistics.fmean(measured)
    return best


def _times(counts: Sequence[int], work: Callable[[], object]) -> list[list[float]]:
    """Returns the seconds of one call of `work` in each turn, by number of threads, after one turn to warm up."""
    found: list[list[float]] = [[] for _ in counts]
    end = time.perf_counter() + _MOST_SECONDS
    for turn in range(1 + _ROUNDS):
        if turn > _LEAST_ROUNDS and time.perf_counter() > end:
            break
        for count, times in zip(counts, found, strict=True):
            torch.set_num_threads(count)
            calls, start = 0, time.perf_counter()
            while (seconds := time.perf_counter() - start) < _BLOCK_SECONDS:
                work()
                calls += 1
            times += [seconds / calls] if turn else []
    return found


def _gradient_step() -> Callable[[], object]:
    """Returns a function: forward and backward pass of two layers of 64 units for 4,096 rows, 1 to 4 ms of a core."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 64, generator=generator)
    weights = [torch.randn(64, 64, generator=generator).div(8).requires_grad_() for _ in range(2)]

    def step() -> object:
        out = torch.tanh(torch.tanh(x @ weights[0]) @ weights[1]).square().mean()
        return torch.autograd.grad(out, weights)

    return step
