"""Settings of the process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from coterie.core import process
from coterie.core.process import format_bytes, free_bytes, free_host_bytes, rare_garbage_collection


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self):
        self.me = self


@pytest.fixture
def nothing_is_frozen() -> Generator[None, None, None]:
    """As at the start of a command. Afterwards, the objects of all tests are exempt again."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_is_frozen")
def test_collections_are_rarer_and_spare_existing_objects_within_the_context_only():
    before, threshold = weakref.ref(Cycle()), gc.get_threshold()

    def collect() -> None:
        assert gc.get_threshold()[0] > threshold[0]
        within = weakref.ref(Cycle())
        gc.collect()
        assert before() is not None
        assert within() is None
        raise ValueError

    with pytest.raises(ValueError), rare_garbage_collection():
        collect()
    assert gc.get_threshold() == threshold
    gc.collect()
    assert before() is None


@pytest.mark.usefixtures("nothing_is_frozen")
def test_a_few_frozen_objects_are_pythons_own(monkeypatch):
    """Python 3.12 and later count immortal objects as frozen."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    before = gc.get_threshold()
    with rare_garbage_collection():
        assert gc.get_threshold()[0] > before[0]


@pytest.mark.usefixtures("nothing_is_frozen")
def test_objects_that_the_caller_has_frozen_stay_so():
    gc.freeze()
    with rare_garbage_collection():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() > 0


@pytest.fixture
def cores(monkeypatch):
    """Sets the number of available cores, without OMP_NUM_THREADS."""

    def available(count):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(process, "available_cores", lambda: count)

    return available


@pytest.fixture
def measured(monkeypatch):
    """Replaces the gradient step and the clock: steps take seconds by number of threads. Returns the counts tried."""

    def replace(seconds):
        tried, now = [], [0.0]

        def step():
            tried.append(torch.get_num_threads())
            now[0] += seconds[torch.get_num_threads()]

        monkeypatch.setattr(process, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        monkeypatch.setattr(process, "_gradient_step", lambda: step)
        monkeypatch.setattr(process, "_ROUNDS", 2)
        monkeypatch.setattr(process, "_BLOCK_SECONDS", 1e-3)
        return tried

    return replace


def test_an_explicit_number_is_taken_as_it_is(cores):
    cores(2)
    assert process.number_of_threads(5) == process.measured_threads(5, pytest.fail) == 5


def test_the_environment_variable_comes_before_a_measurement(cores, monkeypatch):
    cores(8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert process.number_of_threads("auto") == process.measured_threads("auto", pytest.fail) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert process.number_of_threads("auto") == 8


def test_auto_is_at_most_eight_and_at_most_the_cores(cores):
    for count, most in ((1, 1), (3, 3), (64, 8)):
        cores(count)
        assert process.number_of_threads("auto") == most


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [({1: 0.008, 2: 0.002, 4: 0.008, 6: 0.008}, 2), ({1: 0.016, 2: 0.012, 4: 0.008, 6: 0.002}, 6)],
)
def test_the_fastest_number_is_measured(cores, measured, seconds, fastest):
    cores(6)
    tried, told, before = measured(seconds), [], torch.get_num_threads()
    assert process.measured_threads("auto", lambda: told.append(1)) == fastest
    assert (set(tried), told, torch.get_num_threads()) == ({1, 2, 4, 6}, [1], before)


def test_more_threads_have_to_gain_something_and_single_slow_turns_count():
    assert process.fewest_of_the_fastest([1, 2], [[1.0, 1.0], [0.95, 0.95]]) == 1
    assert process.fewest_of_the_fastest([1, 2], [[1.0, 1.0], [0.8, 0.8]]) == 2
    assert process.fewest_of_the_fastest([1, 2], [[1.0, 1.0], [0.5, 5.0]]) == 1
    assert process.fewest_of_the_fastest([1, 2, 4], [[1.0], [0.6], [0.57]]) == 2


def test_a_measurement_that_takes_long_has_fewer_turns(cores, measured, monkeypatch):
    """As beside busy processes. The first turn warms up."""
    cores(2)
    tried = measured({1: 0.004, 2: 0.002})
    monkeypatch.setattr(process, "_ROUNDS", 12)
    monkeypatch.setattr(process, "_MOST_SECONDS", 0.0)
    assert process.measured_threads("auto") == 2
    assert tried == [1, 2] * 4


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n"}


def test_available_memory_of_the_machine_is_read(tmp_path):
    assert free_host_bytes(write(tmp_path, MACHINE)) == 4000 * 1024


def test_a_container_limit_below_the_machine_is_used(tmp_path):
    """Control groups version 2: the parent has the tighter limit, and cached file pages count as free."""
    files = {
        "proc/self/cgroup": "0::/pod/task\n",
        "sys/fs/cgroup/pod/task/memory.max": "max\n",
        "sys/fs/cgroup/pod/task/memory.current": "900\n",
        "sys/fs/cgroup/pod/memory.max": "5000\n",
        "sys/fs/cgroup/pod/memory.current": "3000\n",
        "sys/fs/cgroup/pod/memory.stat": "anon 2000\ninactive_file 700\n",
    }
    assert free_host_bytes(write(tmp_path, MACHINE | files)) == 2700


def test_control_groups_version_1_are_read(tmp_path):
    files = {
        "proc/self/cgroup": "9:cpu:/task\n4:memory,pids:/task\n",
        "sys/fs/cgroup/memory/task/memory.limit_in_bytes": "6000\n",
        "sys/fs/cgroup/memory/task/memory.usage_in_bytes": "1000\n",
        "sys/fs/cgroup/memory/task/memory.stat": "inactive_file 1\ntotal_inactive_file 40\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 << 62}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
    }
    assert free_host_bytes(write(tmp_path, MACHINE | files)) == 5040
    (tmp_path / "sys/fs/cgroup/memory/task/memory.usage_in_bytes").write_text("9000\n")
    assert free_host_bytes(tmp_path) == 0


def test_free_memory_and_disk_space_of_this_machine_are_positive():
    for store in ("device", "cpu", "disk"):
        free = free_bytes(store, torch.device("cpu"))
        assert free is not None
        assert free > 0


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (9_940, "9.9 kB"), (43_210_000, "43 MB"),
     (999_600_000, "1.0 GB"), (1.23e12, "1.2 TB"), (4e17, "400000 TB")],
)  # fmt: skip
def test_sizes_are_formatted_with_units(nbytes, text):
    assert format_bytes(nbytes) == text
