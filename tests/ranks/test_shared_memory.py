"""The exchange of tensors between processes of one machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.ranks import shared_memory
from coterie.ranks.shared_memory import SharedMemory, create_shared_file
from rank_exchanges import COUNTS, DTYPES, every_exchange, on_processes, start, values, wait_for_a_signal


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return on_processes(every_exchange, 3)


def test_sums_have_equal_bits_on_all_ranks_and_are_those_in_order(results: list[dict[str, Any]]) -> None:
    expected = []
    for dtype in DTYPES:
        for count in COUNTS:
            total = values(0, count, dtype)
            for rank in range(1, 3):
                total += values(rank, count, dtype)
            expected.append(total.numpy().tobytes())
    assert [result["sums"] for result in results] == [expected] * 3


def test_gathered_tensors_keep_their_order_and_their_shape(results: list[dict[str, Any]]) -> None:
    for flags, table, empty in (result["gathered"] for result in results):
        assert flags == [[True, True, False], [False, True, False], [False, True, True]]
        assert table == [[[float(rank)] * 3] * 2 for rank in range(3)]
        assert empty == [[], [], []]


def test_exchanges_in_quick_succession_do_not_mix(results: list[dict[str, Any]]) -> None:
    assert all(result["right"] for result in results)


@pytest.mark.parametrize(
    ("number", "timeout", "expected"), [("KILL", 30.0, ("PeerEndedError", 1)), ("STOP", 0.6, ("PeersLateError", [1]))]
)
def test_a_rank_that_ended_or_hangs_is_reported(number: str, timeout: float, expected: tuple[str, Any]) -> None:
    processes, connections = start(wait_for_a_signal, 2, timeout)
    os.kill(processes[1].pid, getattr(signal, f"SIG{number}"))
    assert connections[0].recv() == expected
    processes[1].kill()
    for process in processes:
        process.join()


def test_a_file_is_private_and_refused_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    path = create_shared_file(2)
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o077 == 0
    path.unlink()

    def full(*arguments: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="cannot reserve"):
        create_shared_file(2)
    assert list(tmp_path.iterdir()) == []


def test_only_contiguous_tensors_of_known_types_are_summed() -> None:
    path = create_shared_file(1)
    shared = SharedMemory(path, 0, 1, timeout=1.0)
    path.unlink()
    assert shared.can_sum(torch.ones(2))
    assert not shared.can_sum(torch.ones(2, dtype=torch.bfloat16))
    assert not shared.can_sum(torch.ones(2, 2)[:, 0])
    shared.close()
