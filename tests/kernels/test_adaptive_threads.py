"""The choice of the kernels' number of threads during a run."""

import pytest

from coterie.kernels import native
from coterie.kernels.adaptive_threads import AdaptiveThreads


class Machine:
    """Iterations whose time depends on the kernels' number of threads, as told by `times`."""

    def __init__(self, times):
        self.times, self.now, self.used = times, 0.0, []

    def run(self, threads, iterations):
        del self.used[:]
        for _ in range(iterations):
            with threads.iteration():
                self.used.append(native.num_threads())
                self.now += self.times[native.num_threads()]
        return self.used


def test_two_threads_stay_where_they_are_faster_and_trials_are_rare():
    machine = Machine({1: 0.16, 2: 0.1})
    threads = AdaptiveThreads(2, 2, lambda: machine.now)
    used = machine.run(threads, 1000)
    assert threads.count == 2
    assert used.count(1) == 3 * 4  # a trial of three pairs after each 200 iterations


def test_one_thread_is_taken_soon_after_another_process_started():
    machine = Machine({1: 0.16, 2: 0.1})
    threads = AdaptiveThreads(2, 2, lambda: machine.now)
    machine.times[2] = 0.5
    machine.run(threads, 5)  # the first iterations compile and allocate
    machine.times[2] = 0.1
    machine.run(threads, 35)
    machine.times[2] = 0.2
    used = machine.run(threads, 20)
    assert used[:3] == [2, 2, 2]
    assert used[-8:] == [1] * 8


def test_two_threads_are_taken_again_when_it_has_ended():
    machine = Machine({1: 0.16, 2: 0.2})
    threads = AdaptiveThreads(2, 1, lambda: machine.now)
    assert set(machine.run(threads, 205)[:200]) == {1}
    machine.times[2] = 0.1
    machine.run(threads, 220)
    assert threads.count == 2


def test_a_gain_below_five_percent_changes_nothing():
    machine = Machine({1: 0.097, 2: 0.1})
    threads = AdaptiveThreads(2, 2, lambda: machine.now)
    assert 1 in machine.run(threads, 300)
    assert threads.count == 2


def test_more_threads_are_reached_in_steps():
    machine = Machine({1: 0.8, 2: 0.4, 4: 0.2, 6: 0.15})
    threads = AdaptiveThreads(6, 1, lambda: machine.now)
    machine.run(threads, 2500)
    assert threads.count == 6


def test_a_single_slow_iteration_starts_no_trial():
    machine = Machine({1: 0.16, 2: 0.1})
    threads = AdaptiveThreads(2, 2, lambda: machine.now)
    machine.run(threads, 60)
    machine.times[2] = 3.0
    machine.run(threads, 1)
    machine.times[2] = 0.1
    assert set(machine.run(threads, 100)) == {2}


def test_short_iterations_wait_for_five_seconds():
    machine = Machine({1: 0.001, 2: 0.002})
    threads = AdaptiveThreads(2, 2, lambda: machine.now)
    assert set(machine.run(threads, 2499)) == {2}
    machine.run(threads, 10)
    assert threads.count == 1


def test_with_one_number_there_is_no_trial():
    machine = Machine({1: 0.1})
    threads = AdaptiveThreads(1, 1, lambda: machine.now)
    assert set(machine.run(threads, 500)) == {1}


def test_a_failed_iteration_is_not_counted():
    machine = Machine({1: 0.16, 2: 0.1})
    threads = AdaptiveThreads(2, 2, lambda: machine.now)
    with pytest.raises(ValueError, match="no world"), threads.iteration():
        raise ValueError("no world")
    before = native.num_threads()
    machine.run(threads, 1)
    assert native.num_threads() == before
