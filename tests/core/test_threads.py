"""The number of threads that `threads=auto` stands for."""

from types import SimpleNamespace

import pytest
import torch

from coterie.core import threads


@pytest.fixture
def cores(monkeypatch):
    """Sets the number of available cores, without OMP_NUM_THREADS."""

    def available(count):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(threads, "available_cores", lambda: count)

    return available


@pytest.fixture
def measured(monkeypatch):
    """Replaces the gradient step and the clock: steps take seconds by number of threads. Returns the counts tried."""

    def replace(seconds):
        tried, now = [], [0.0]

        def step():
            tried.append(torch.get_num_threads())
            now[0] += seconds[torch.get_num_threads()]

        monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        monkeypatch.setattr(threads, "_gradient_step", lambda: step)
        monkeypatch.setattr(threads, "_ROUNDS", 2)
        monkeypatch.setattr(threads, "_BLOCK_SECONDS", 1e-3)
        return tried

    return replace


def test_an_explicit_number_is_taken_as_it_is(cores):
    cores(2)
    assert threads.number_of_threads(5) == threads.measured_threads(5, pytest.fail) == 5


def test_the_environment_variable_comes_before_a_measurement(cores, monkeypatch):
    cores(8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert threads.number_of_threads("auto") == threads.measured_threads("auto", pytest.fail) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert threads.number_of_threads("auto") == 8


def test_auto_is_at_most_eight_and_at_most_the_cores(cores):
    for count, most in ((1, 1), (3, 3), (64, 8)):
        cores(count)
        assert threads.number_of_threads("auto") == most


def test_one_core_needs_no_measurement(cores):
    cores(1)
    assert threads.measured_threads("auto", pytest.fail) == 1


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({1: 0.008, 2: 0.002, 4: 0.008, 6: 0.008}, 2),
        ({1: 0.002, 2: 0.008, 4: 0.008, 6: 0.008}, 1),
        ({1: 0.016, 2: 0.012, 4: 0.008, 6: 0.002}, 6),
    ],
)
def test_the_fastest_number_is_measured(cores, measured, seconds, fastest):
    cores(6)
    tried, told, before = measured(seconds), [], torch.get_num_threads()
    assert threads.measured_threads("auto", lambda: told.append(1)) == fastest
    assert (set(tried), told, torch.get_num_threads()) == ({1, 2, 4, 6}, [1], before)


def test_more_threads_have_to_gain_something_and_single_slow_turns_count():
    assert threads.fewest_of_the_fastest([1, 2], [[1.0, 1.0], [0.95, 0.95]]) == 1
    assert threads.fewest_of_the_fastest([1, 2], [[1.0, 1.0], [0.8, 0.8]]) == 2
    assert threads.fewest_of_the_fastest([1, 2], [[1.0, 1.0], [0.5, 5.0]]) == 1
    assert threads.fewest_of_the_fastest([1, 2, 4], [[1.0], [0.6], [0.57]]) == 2


def test_the_real_gradient_step_is_measured(cores):
    cores(2)
    assert threads.measured_threads("auto") in (1, 2)


def test_a_measurement_that_takes_long_has_fewer_turns(cores, measured, monkeypatch):
    """As beside busy processes. The first turn warms up."""
    cores(2)
    tried = measured({1: 0.004, 2: 0.002})
    monkeypatch.setattr(threads, "_ROUNDS", 12)
    monkeypatch.setattr(threads, "_MOST_SECONDS", 0.0)
    assert threads.measured_threads("auto") == 2
    assert tried == [1, 2] * 4
