"""Videos can be decoded again, and failures leave no partial file."""

from __future__ import annotations

import contextlib
import errno
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import UserError
from coterie.envs.video import write_video


def moving_square(count: int, height: int = 48, width: int = 64) -> Iterator[np.ndarray]:
    for i in range(count):
        frame = np.full((height, width, 3), 240, np.uint8)
        frame[8:24, 2 * i : 2 * i + 16] = (0, 114, 178)
        yield frame


def read_mp4(path: Path) -> tuple[str, list[np.ndarray]]:
    """Returns the output of the decoder and the frames."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    output = done.stderr.decode()
    found = re.search(r"Video: .*?, (\d+)x(\d+)", output)
    assert found is not None
    width, height = int(found[1]), int(found[2])
    return output, list(np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3))


def test_an_mp4_holds_the_frames_in_order(tmp_path: Path):
    path = write_video(tmp_path / "a.mp4", moving_square(12), fps=10)
    output, frames = read_mp4(path)
    assert path == tmp_path / "a.mp4"
    assert all(word in output for word in ("h264", "yuv420p", "64x48", "10 fps"))
    assert len(frames) == 12
    for frame, original in zip(frames, moving_square(12), strict=True):
        assert np.abs(frame.astype(int) - original).mean() < 6


@pytest.mark.parametrize(("height", "width"), [(47, 63), (1, 1)])
def test_an_mp4_of_odd_size_is_padded_to_an_even_one(tmp_path: Path, height: int, width: int):
    _, frames = read_mp4(write_video(tmp_path / "a.mp4", moving_square(3, height, width)))
    assert [frame.shape for frame in frames] == [(height + height % 2, width + width % 2, 3)] * 3


def test_frames_of_an_mp4_are_not_kept_in_memory(tmp_path: Path):
    alive: list[int] = []

    class Counted(np.ndarray):
        def __del__(self):
            alive.pop()

    def frames() -> Iterator[np.ndarray]:
        for frame in moving_square(50):
            alive.append(1)
            assert len(alive) < 5
            yield frame.view(Counted)

    assert write_video(tmp_path / "a.mp4", frames()).stat().st_size > 0


def test_a_gif_holds_the_frames_with_one_palette(tmp_path: Path):
    path = write_video(tmp_path / "a.gif", moving_square(12), fps=10)
    with Image.open(path) as gif:
        assert gif.n_frames == 12
        assert gif.info["duration"] == 100
        assert gif.info["loop"] == 0
        for i, original in enumerate(moving_square(12)):
            gif.seek(i)
            assert np.abs(np.asarray(gif.convert("RGB")).astype(int) - original).max() <= 8


def test_a_png_holds_the_first_frame(tmp_path: Path):
    path = write_video(tmp_path / "videos" / "a.PNG", moving_square(3))
    assert (np.asarray(Image.open(path)) == next(moving_square(1))).all()


def test_an_unknown_suffix_names_the_valid_ones(tmp_path: Path):
    with pytest.raises(UserError, match=r"'\.avi'.*\.mp4, \.gif, \.png"):
        write_video(tmp_path / "a.avi", moving_square(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fps", [0, -1, 241])
def test_an_invalid_frame_rate_raises_an_error(tmp_path: Path, fps: int):
    with pytest.raises(UserError, match=f"fps={fps}"):
        write_video(tmp_path / "a.mp4", moving_square(1), fps)


@pytest.mark.parametrize("suffix", ["mp4", "gif", "png"])
def test_no_frames_are_a_one_line_error(tmp_path: Path, suffix: str):
    with pytest.raises(UserError, match="no frames"):
        write_video(tmp_path / f"a.{suffix}", iter(()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_a_failure_leaves_the_older_file_unchanged(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"older")

    def failing() -> Iterator[np.ndarray]:
        yield from moving_square(3)
        raise RuntimeError("the environment failed")

    with pytest.raises(RuntimeError, match="the environment failed"):
        write_video(path, failing())
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"older"


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes the pipes to encoders. imageio leaves that of one that has ended already to the garbage collector."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*args, **options))
        return started[-1]

    module = SimpleNamespace(**{name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired")}, Popen=start)
    monkeypatch.setattr(imageio_ffmpeg._io, "subprocess", module)
    yield
    for process in started:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


@pytest.mark.usefixtures("encoders")
@pytest.mark.parametrize("reads", ["", "cat > /dev/null; "])
def test_an_encoder_failure_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], reads: str
):
    """Of an encoder that fails at the start, or after it has read all frames."""
    broken = tmp_path / "encoder"
    broken.write_text(f"#!/bin/sh\n{reads}echo No space left on device >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg._io, "get_ffmpeg_exe", lambda: str(broken))
    with pytest.raises(UserError, match=r"cannot be written") as error:
        write_video(tmp_path / "videos" / "a.mp4", moving_square(200, 480, 480))
    assert "\n" not in str(error.value)
    assert "No space left on device" in capfd.readouterr().err
    assert list((tmp_path / "videos").iterdir()) == []


def test_a_path_that_cannot_be_written_is_a_one_line_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as error:
        write_video(tmp_path / "file" / "a.mp4", moving_square(1))
    assert "\n" not in str(error.value)


def test_a_folder_without_write_permission_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(UserError, match=r"cannot be written \(Permission denied\)"):
        write_video(tmp_path / "a.mp4", moving_square(1))


def test_a_folder_instead_of_a_file_raises_an_error(tmp_path: Path):
    (tmp_path / "a.mp4").mkdir()
    with pytest.raises(UserError, match="this is a folder"):
        write_video(tmp_path / "a.mp4", moving_square(1))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (np.zeros((48, 32, 3), np.uint8), r"frame 1 is \[48, 32, 3\]"),
        (np.zeros((48, 64, 3), np.float32), "frame 1 is float32"),
        (np.zeros((48, 64), np.uint8), "frame 1 is uint8"),
    ],
)
def test_an_invalid_frame_raises_an_error_with_its_index(tmp_path: Path, second: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        write_video(tmp_path / "a.mp4", [next(moving_square(1)), second])
    assert list(tmp_path.iterdir()) == []


def test_without_the_encoder_a_line_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UserError, match=r"Install it: .*\[video\].*\.gif"):
        write_video(tmp_path / "a.mp4", moving_square(3))
    assert list(tmp_path.iterdir()) == []
    assert write_video(tmp_path / "a.gif", moving_square(3)).exists()
