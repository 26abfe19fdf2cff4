from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from coterie.ranks.process_ranks import ProcessRanks
from coterie.ranks.rank_stores import FolderStore, launcher_store


def test_what_one_rank_sets_another_reads(tmp_path: Path) -> None:
    first, second = (FolderStore(tmp_path / "values") for _ in range(2))
    assert not second.check(["here/0"])
    with pytest.raises(FileNotFoundError):
        second.get("here/0")
    first.set("here/0", "")
    first.set("beat/0", "1 longer")
    first.set("beat/0", "2")
    assert second.get("here/0") == b""
    assert second.get("beat/0") == b"2"
    assert second.check(["here/0", "beat/0"])
    assert not second.check(["here/0", "here/1"])
    assert sorted(path.name for path in (tmp_path / "values").iterdir()) == ["beat-0", "here-0"]


def test_ranks_that_are_started_again_do_not_read_the_keys_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True)
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in (found | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)
    stores = []
    for attempt in ("0", "0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        stores.append(launcher_store(60.0))
    stores[0].set("here/0", "")
    assert [store.check(["here/0"]) for store in stores] == [True, True, False]


def test_a_rank_that_has_never_published_its_number_is_late_at_once() -> None:
    class Store:
        def check(self, keys: list[str]) -> bool:
            return keys != ["beat/2"]

        def get(self, key: str) -> bytes:
            assert key != "beat/2", "would wait for rank 2"
            return b"7 0.0"

    ranks: Any = object.__new__(ProcessRanks)
    ranks.rank, ranks.size, ranks._calls, ranks._store = 0, 3, 7, Store()
    assert ranks._late_ranks() == [2]
