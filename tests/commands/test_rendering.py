"""`coterie play`: videos and windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import imageio.v3 as iio
import imageio_ffmpeg
import numpy as np
import pytest

import coterie
from coterie.cli.app import run
from coterie.commands.rendering import show
from coterie.core.errors import UserError
from tinyruns import train


@pytest.fixture(scope="module")
def tag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("algo=mappo", "env=particle/simple_tag", "env.episode_limit=7", "teams.agent.algo=random", "steps=40")
    return train(tmp_path_factory.mktemp("run") / "tag", *words).run


def read(video: Path, size: int) -> np.ndarray:
    """Returns the frames of a square video, [T, size, size, 3]."""
    if video.suffix == ".gif":
        return iio.imread(video)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(video), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, size, size, 3)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_a_video_contains_the_final_timesteps(tag: Path, tmp_path: Path, suffix: str):
    video = tmp_path / f"played.{suffix}"
    assert run(["play", str(tag), "--video", str(video), "--episodes", "2", "--size", "128"]) == 0
    frames = read(video, 128)
    assert frames.shape == (2 * (7 + 1), 128, 128, 3)
    assert len(np.unique(frames.reshape(16, -1), axis=0)) > 8  # something moves


def test_the_random_policy_needs_no_run(tmp_path: Path):
    video = tmp_path / "random.mp4"
    command = ["play", "--algo", "random", "--env", "particle/simple_spread", "--video", str(video), "--size", "96"]
    assert run(command) == 0
    assert read(video, 96).shape == (25 + 1, 96, 96, 3)


@pytest.mark.slow
def test_a_video_depends_on_the_seed_only(tag: Path):
    first, same, other = (
        iio.imread(coterie.play(tag, video=tag / f"{i}.gif", size=64, seed=seed))  # pyright: ignore[reportArgumentType]
        for i, seed in enumerate((1, 1, 2))
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_other_file_types_are_refused_before_anything_runs(tag: Path):
    with pytest.raises(UserError, match=r"unsupported file type\. Expected \.mp4 or \.gif"):
        run(["play", str(tag), "--video", "played.avi"])


class TclError(Exception):
    """The error of Tk without a display."""


class Headless:
    def Tk(self) -> None:
        raise TclError("no display name and no $DISPLAY environment variable")


@pytest.mark.parametrize("toolkit", [None, Headless()])
def test_without_a_display_the_error_suggests_a_video(tag: Path, monkeypatch: pytest.MonkeyPatch, toolkit: Any):
    monkeypatch.setitem(sys.modules, "tkinter", toolkit)
    with pytest.raises(UserError, match=r"cannot open a window .*\. Record the episode instead: --video FILE"):
        run(["play", str(tag)])


def test_the_window_shows_every_frame_at_the_frame_rate(monkeypatch: pytest.MonkeyPatch):
    toolkit, calls, pauses, shown = MagicMock(), [], [], []
    window = toolkit.Tk.return_value
    window.after.side_effect = lambda pause, call: (pauses.append(pause), calls.append(call))
    window.mainloop.side_effect = lambda: [call() for call in calls]  # calls add others
    toolkit.Label.return_value.configure.side_effect = lambda image: shown.append(image.size)
    monkeypatch.setitem(sys.modules, "tkinter", toolkit)
    monkeypatch.setattr("PIL.ImageTk.PhotoImage", lambda image, master: image)
    show((np.full((4, 6, 3), i, np.uint8) for i in range(5)), "an episode", fps=20)
    assert shown == [(6, 4)] * 5
    window.title.assert_called_once_with("an episode")
    assert max(pauses) <= 50
