"""Free memory of the machine and its container."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coterie.core.free_memory import format_bytes, free_bytes, free_host_bytes


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
