"""Snapshots of policies: their interval, their content, and files that cannot be read or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.runs.snapshots import SNAPSHOT, PolicySnapshots, read_snapshot

SHARED = torch.arange(4.0)
STATES: dict[str, Any] = {
    "adversary": {"weight": SHARED, "view": SHARED[1:3], "count": 7, "moments": {"mean": torch.tensor([0.5])}},
    "agent": {"mask": torch.tensor([True, False])},
}


class Clock:
    """A clock that advances by `cost` seconds while a snapshot is written."""

    def __init__(self):
        self.now = self.cost = 0.0

    def __call__(self) -> float:
        return self.now

    def states(self) -> dict[str, Any]:
        self.now += self.cost
        return STATES


def test_a_snapshot_contains_the_policies_and_the_steps(tmp_path: Path):
    clock = Clock()
    snapshots = PolicySnapshots(tmp_path / SNAPSHOT, 10.0, clock)
    clock.now = 10.0
    assert snapshots.write_if_due(1234, clock.states)
    found = read_snapshot(tmp_path / SNAPSHOT)
    assert found is not None
    assert found.steps == 1234
    assert found.policies.keys() == STATES.keys()
    own = found.policies["adversary"]
    assert own["weight"].tolist() == [0, 1, 2, 3]
    assert own["view"].tolist() == [1, 2]
    assert (own["count"], own["moments"]["mean"].item()) == (7, 0.5)
    assert found.policies["agent"]["mask"].tolist() == [True, False]
    assert [file.name for file in tmp_path.iterdir()] == [SNAPSHOT]


def test_snapshots_are_written_at_intervals(tmp_path: Path):
    clock = Clock()
    snapshots = PolicySnapshots(tmp_path / SNAPSHOT, 10.0, clock)
    written = []
    for second in range(0, 41, 4):
        clock.now = second
        written.append(snapshots.write_if_due(second, clock.states))
    assert [4 * i for i, one in enumerate(written) if one] == [12, 24, 36]


def test_snapshots_take_at_most_one_percent_of_the_time(tmp_path: Path):
    clock = Clock()
    clock.now, clock.cost = 0.0, 2.0
    snapshots = PolicySnapshots(tmp_path / SNAPSHOT, 10.0, clock)
    clock.now = 10.0
    assert snapshots.write_if_due(1, clock.states)
    clock.now = 12.0 + 199.0
    assert not snapshots.write_if_due(2, clock.states)
    clock.now = 12.0 + 200.0
    assert snapshots.write_if_due(3, clock.states)


def test_zero_seconds_write_no_snapshots(tmp_path: Path):
    clock = Clock()
    snapshots = PolicySnapshots(tmp_path / SNAPSHOT, 0.0, clock)
    clock.now = 1e9
    assert not snapshots.write_if_due(1, clock.states)
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path):
    clock = Clock()
    snapshots = PolicySnapshots(tmp_path / "missing" / SNAPSHOT, 10.0, clock)
    clock.now = 10.0
    assert not snapshots.write_if_due(1, clock.states)
    snapshots.remove()


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_damaged_snapshot_is_ignored(tmp_path: Path, keep: int):
    clock = Clock()
    snapshots = PolicySnapshots(tmp_path / SNAPSHOT, 10.0, clock)
    clock.now = 10.0
    snapshots.write_if_due(1, clock.states)
    (tmp_path / SNAPSHOT).write_bytes((tmp_path / SNAPSHOT).read_bytes()[:keep])
    assert read_snapshot(tmp_path / SNAPSHOT) is None
    snapshots.remove()
    assert read_snapshot(tmp_path / SNAPSHOT) is None
