from __future__ import annotations

from pathlib import Path

import pytest

from coterie.core.rank_stores import FolderStore


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
