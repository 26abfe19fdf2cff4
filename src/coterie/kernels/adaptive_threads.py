"""The number of threads of the kernels during a run, while other processes start and end."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coterie.kernels import native

_PAIRS = 3
"""Iterations of each of the two numbers of threads in a trial."""
_GAIN = 1.05
"""Another number of threads is taken if its iterations are shorter by this factor."""
_SLOWER = 1.25
"""There is a trial if iterations take longer than before by this factor."""
_WINDOW = 5
_SECONDS, _ITERATIONS = 5.0, 200
"""Time until the next trial if nothing changes: at least 5 s and 200 iterations, so that trials cost less than 2%."""
_SOONER = 5
"""If iterations have become slower, a fifth of this time is enough."""


class AdaptiveThreads:
    """Chooses the number of threads of kernels by the time that iterations of a run take.

    A thread that shares its core with another process can make the others wait for the task that it has begun, so that
    two threads can be slower than one. In a trial, iterations with another number of threads alternate with as many of
    the present number, and the shorter median wins. Results do not depend on it, because kernels have the same results
    with every number of threads; PyTorch's own number stays.

    Args:
        most: Largest number of threads.
        first: Number of threads at the start.
        clock: Returns seconds.
    """

    def __init__(self, most: int, first: int, clock: Callable[[], float] = time.perf_counter):
        self.count = first
        """Number of threads outside of trials."""
        self._counts = sorted({2**power for power in range(most.bit_length())} | {most, first})
        self._clock = clock
        self._direction = -1
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._usual: float | None = None
        self._since_trial, self._iterations = 0.0, 0
        self._trial: tuple[list[float], list[float]] | None = None  # times of the present number and of the other one

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Context manager of one iteration: kernels use the chosen number of threads, and the time is noted.

        All iterations must do about the same work.
        """
        tries_other = self._trial is not None and len(self._trial[0]) > len(self._trial[1])
        started = self._clock()
        with native.threads(self._other() if tries_other else self.count):
            yield
        seconds = self._clock() - started
        if self._trial is None:
            self._note(seconds)
            return
        self._trial[tries_other].append(seconds)
        if len(self._trial[1]) == _PAIRS:
            self._decide(*self._trial)

    def _note(self, seconds: float) -> None:
        """Notes the time of an iteration, and starts a trial if one is due."""
        self._recent.append(seconds)
        self._since_trial += seconds
        self._iterations += 1
        if len(self._recent) < _WINDOW or self._other() == self.count:
            return
        now = statistics.median(self._recent)
        self._usual = now if self._usual is None else min(self._usual, now)  # the first iterations are slow
        sooner = _SOONER if now > _SLOWER * self._usual else 1
        if self._iterations * sooner >= _ITERATIONS and self._since_trial * sooner >= _SECONDS:
            self._trial = ([], [])

    def _other(self) -> int:
        """Returns the next smaller or larger number of threads, in turns; the present one if there is no other."""
        place = self._counts.index(self.count) + self._direction
        if not 0 <= place < len(self._counts):
            place -= 2 * self._direction
        return self._counts[place] if 0 <= place < len(self._counts) else self.count

    def _decide(self, present_times: list[float], other_times: list[float]) -> None:
        if statistics.median(other_times) * _GAIN < statistics.median(present_times):
            self.count = self._other()
        self._direction = -self._direction
        self._recent.clear()
        self._usual, self._trial = None, None
        self._since_trial, self._iterations = 0.0, 0
