"""Recorded episode files: round trips, atomic writes, and rejection of damaged or malicious files."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import UserError
from coterie.playing.episode_recording import Recorder, Recording, encode, frame_name, round_all

HEADER: dict[str, Any] = {"title": "nobody on nothing", "env": "nothing", "seed": 3, "width": 4, "height": 3}
HEADER["agents"] = [{"name": "a", "team": "t", "role": "r", "choices": [2, 3]}]


def timestep(number: int, **more: Any) -> dict[str, Any]:
    return {"timestep": number, "final": False, "agents": [{"alive": True}], **more}


def frame(shade: int) -> np.ndarray:
    image = np.full((3, 4, 3), shade, np.uint8)
    image[0, 0] = (255, shade, 1)
    return image


def write_recording(path: Path, timesteps: list[int]) -> Path:
    with Recorder(path, HEADER) as recorder:
        for i, number in enumerate(timesteps):
            recorder.add(timestep(number), encode(frame(i)))
    return path


def test_a_recording_can_be_read_back(tmp_path: Path):
    agent = {
        "alive": True, "mask": [True, False], "probability": [0.25, 0.75], "value": 1.5, "reward": -1.0, "total": 2.0,
        "action": {"discrete": [1], "continuous": [0.5]},
    }  # fmt: skip
    with Recorder(tmp_path / "deep" / "one.zip", HEADER) as recorder:
        recorder.add(timestep(0), encode(frame(7)))
        recorder.add(
            timestep(1, agents=[agent], final=True, ended="truncated", metrics={"won": None}), encode(frame(8))
        )
        recorder.add(timestep(0), encode(frame(9)))
    found = Recording(tmp_path / "deep" / "one.zip")
    assert (found.header.timesteps, found.header.episodes) == (3, (0, 2))
    assert found.header.agents[0].choices == (2, 3)
    assert [r.episode for r in found.timesteps] == [0, 0, 1]
    recorded = found.timesteps[1].agents[0]
    assert recorded.mask == (True, False)
    assert recorded.probability == (0.25, 0.75)
    assert recorded.action is not None
    assert (recorded.action.discrete, recorded.action.continuous, recorded.value, recorded.q) == (
        (1,),
        (0.5,),
        1.5,
        None,
    )
    assert (found.timesteps[1].ended, found.timesteps[1].metrics) == ("truncated", {"won": None})
    for i, shade in enumerate((7, 8, 9)):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(found.frame(i)))), frame(shade))  # lossless
    with pytest.raises(IndexError):
        found.frame(3)
    found.close()


def test_an_error_keeps_the_previous_file_and_leaves_no_temporary_file(tmp_path: Path):
    path = write_recording(tmp_path / "one.zip", [0, 1])
    before = path.read_bytes()

    def fail() -> None:
        with Recorder(path, HEADER) as recorder:
            recorder.add(timestep(0), encode(frame(0)))
            raise KeyError("the environment")

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path):
    recorder = Recorder(tmp_path / "one.zip", HEADER)
    recorder.add(timestep(0), encode(frame(0)))
    assert not (tmp_path / "one.zip").exists()
    recorder.close()
    Recording(tmp_path / "one.zip").close()
    assert (tmp_path / "one.zip").stat().st_mode & 0o600 == 0o600


def replace_members(path: Path, **members: bytes | None) -> Path:
    """Copies the file with some members replaced; None omits a member."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path.with_name("changed.zip"), "w") as new:
        for name in old.namelist():
            if members.get(name, b"") is not None:
                new.writestr(name, members.get(name) or old.read(name))
    return path.with_name("changed.zip")


def lines(*numbers: int, **more: Any) -> bytes:
    return "\n".join(json.dumps(timestep(n, episode=0, **more)) for n in numbers).encode()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"header.json": None}, "no item named 'header.json'"),
        ({"header.json": b"{"}, "Invalid JSON"),
        (
            {"header.json": json.dumps({**HEADER, "timesteps": 3, "episodes": [0]}).encode()},
            "but timesteps.jsonl has 2",
        ),
        ({"header.json": json.dumps({**HEADER, "timesteps": 2, "episodes": [1]}).encode()}, "begin at timesteps"),
        (
            {"header.json": json.dumps({**HEADER, "format": "other"}).encode()},
            "format=other: expected coterie/episodes",
        ),
        ({"header.json": json.dumps({**HEADER, "version": 2}).encode()}, "version=2: expected 1"),
        ({"timesteps.jsonl": lines(0, 1, agents=[])}, "timestep 0 has 0 agents, but the header has 1"),
        ({"timesteps.jsonl": b"\xff\xfe"}, "utf-8"),
        ({"timesteps.jsonl": lines(0, 1, agents=[{"alive": "perhaps"}])}, "agents.0.alive"),
        ({frame_name(1): None}, "missing image frames/000001.webp"),
    ],
)
def test_inconsistent_files_raise_one_line_errors(tmp_path: Path, members: dict[str, Any], message: str):
    path = replace_members(write_recording(tmp_path / "one.zip", [0, 1]), **members)
    with pytest.raises(UserError, match=message) as caught:
        Recording(path)
    assert "\n" not in str(caught.value)
    assert "coterie play --record FILE" in str(caught.value)


def test_files_in_other_formats_are_rejected(tmp_path: Path):
    with pytest.raises(UserError, match=r"nothing\.zip: cannot be read"):
        Recording(tmp_path / "nothing.zip")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(UserError, match=r"File is not a zip file\. Expected a file written by"):
        Recording(tmp_path / "text.zip")


def test_decompression_bombs_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_recording(tmp_path / "one.zip", [0, 1])
    monkeypatch.setattr("coterie.playing.episode_recording._MAX_TEXT", 100)
    with pytest.raises(UserError, match=r"header\.json declares \d+ bytes, more than the limit"):
        Recording(path)


def test_an_unwritable_destination_raises_a_one_line_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*\. Choose a writable folder"):
        Recorder(tmp_path / "file" / "one.zip", HEADER)


def test_numbers_are_rounded_to_six_digits_and_non_finite_ones_become_null():
    assert round_all([1 / 3, -12345678.0, float("nan"), float("inf"), 0.0]) == [0.333333, -12345700.0, None, None, 0.0]
