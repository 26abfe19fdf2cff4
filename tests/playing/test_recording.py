"""Files of recorded episodes: what is written is read, whole or not at all, and harm is turned away."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.errors import UserError
from coterie.playing.recording import Recorder, Recording, encode, frame_name, rounded

HEADER: dict[str, Any] = {
    "title": "nobody on nothing",
    "env": "nothing",
    "seed": 3,
    "agents": [{"name": "a", "team": "t", "role": "r", "choices": [2, 3]}],
    "width": 4,
    "height": 3,
}


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"row": number, "closing": False, "agents": [{"alive": True}], **more}


def frame(shade: int) -> np.ndarray:
    picture = np.full((3, 4, 3), shade, np.uint8)
    picture[0, 0] = (255, shade, 1)
    return picture


def written(path: Path, rows: list[int]) -> Path:
    with Recorder(path, HEADER) as recorder:
        for i, number in enumerate(rows):
            recorder.add(row(number), encode(frame(i)))
    return path


def test_what_is_written_is_read_again(tmp_path: Path):
    agent = {
        "alive": True, "mask": [True, False], "probability": [0.25, 0.75], "value": 1.5, "reward": -1.0, "total": 2.0,
        "did": {"discrete": [1], "continuous": [0.5]},
    }  # fmt: skip
    with Recorder(tmp_path / "deep" / "one.zip", HEADER) as recorder:
        recorder.add(row(0), encode(frame(7)))
        recorder.add(row(1, agents=[agent], closing=True, ended="truncated", metrics={"won": None}), encode(frame(8)))
        recorder.add(row(0), encode(frame(9)))
    found = Recording(tmp_path / "deep" / "one.zip")
    assert (found.header.rows, found.header.episodes) == (3, (0, 2))
    assert found.header.agents[0].choices == (2, 3)
    assert [r.episode for r in found.rows] == [0, 0, 1]
    told = found.rows[1].agents[0]
    assert told.mask == (True, False)
    assert told.probability == (0.25, 0.75)
    assert told.did is not None
    assert (told.did.discrete, told.did.continuous, told.value, told.q) == ((1,), (0.5,), 1.5, None)
    assert (found.rows[1].ended, found.rows[1].metrics) == ("truncated", {"won": None})
    for i, shade in enumerate((7, 8, 9)):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(found.frame(i)))), frame(shade))  # lossless
    with pytest.raises(IndexError):
        found.frame(3)
    found.close()


def test_a_failure_leaves_the_older_file_and_nothing_beside_it(tmp_path: Path):
    path = written(tmp_path / "one.zip", [0, 1])
    before = path.read_bytes()

    def fail() -> None:
        with Recorder(path, HEADER) as recorder:
            recorder.add(row(0), encode(frame(0)))
            raise KeyError("the environment")

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_there_only_when_it_is_whole(tmp_path: Path):
    recorder = Recorder(tmp_path / "one.zip", HEADER)
    recorder.add(row(0), encode(frame(0)))
    assert not (tmp_path / "one.zip").exists()
    recorder.close()
    Recording(tmp_path / "one.zip").close()
    assert (tmp_path / "one.zip").stat().st_mode & 0o600 == 0o600


def changed(path: Path, **members: bytes | None) -> Path:
    """A copy of the file with other members; None leaves one out."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path.with_name("changed.zip"), "w") as new:
        for name in old.namelist():
            if members.get(name, b"") is not None:
                new.writestr(name, members.get(name) or old.read(name))
    return path.with_name("changed.zip")


def lines(*numbers: int, **more: Any) -> bytes:
    return "\n".join(json.dumps(row(n, episode=0, **more)) for n in numbers).encode()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"header.json": None}, "no item named 'header.json'"),
        ({"header.json": b"{"}, "Invalid JSON"),
        ({"header.json": json.dumps({**HEADER, "rows": 3, "episodes": [0]}).encode()}, "says 3 rows.* has 2"),
        ({"header.json": json.dumps({**HEADER, "rows": 2, "episodes": [1]}).encode()}, "episodes begin at rows"),
        ({"header.json": json.dumps({**HEADER, "format": "other"}).encode()}, "format: Input should be"),
        ({"header.json": json.dumps({**HEADER, "version": 2}).encode()}, "version: Input should be 1"),
        ({"rows.jsonl": lines(0, 1, agents=[])}, "row 0 has 0 agents, the header 1"),
        ({"rows.jsonl": b"\xff\xfe"}, "utf-8"),
        ({"rows.jsonl": lines(0, 1, agents=[{"alive": "perhaps"}])}, "agents.0.alive"),
        ({frame_name(1): None}, "there is no picture frames/000001.webp"),
    ],
)
def test_files_that_do_not_hold_what_they_say_are_one_line(tmp_path: Path, members: dict[str, Any], said: str):
    path = changed(written(tmp_path / "one.zip", [0, 1]), **members)
    with pytest.raises(UserError, match=said) as caught:
        Recording(path)
    assert "\n" not in str(caught.value)
    assert "coterie play --record FILE" in str(caught.value)


def test_the_same_file_unchanged_is_read(tmp_path: Path):
    one, same = (
        Recording(changed(written(tmp_path / "one.zip", [0, 1]))),
        Recording(written(tmp_path / "same.zip", [0, 1])),
    )
    assert one.rows == same.rows
    assert one.frame(1) == same.frame(1)
    one.close()
    same.close()


def test_other_files_are_told_apart(tmp_path: Path):
    with pytest.raises(UserError, match=r"nothing\.zip: cannot be read"):
        Recording(tmp_path / "nothing.zip")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(UserError, match="File is not a zip file; expected a file that"):
        Recording(tmp_path / "text.zip")


def test_a_file_that_unpacks_to_more_than_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path / "one.zip", [0, 1])
    monkeypatch.setattr("coterie.playing.recording._MOST_TEXT", 100)
    with pytest.raises(UserError, match=r"header\.json says that it has \d+ bytes"):
        Recording(path)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*; choose a folder"):
        Recorder(tmp_path / "file" / "one.zip", HEADER)


def test_numbers_keep_six_digits_and_what_is_not_finite_is_nothing():
    assert rounded([1 / 3, -12345678.0, float("nan"), float("inf"), 0.0]) == [0.333333, -12345700.0, None, None, 0.0]
