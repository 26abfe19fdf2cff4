"""Videos that a run records while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import coterie
from coterie.assembly.resolve import resolve
from coterie.commands.training_videos import wants_videos
from coterie.runs import loggers
from gymnasium_worlds import SampledEnv
from tinyruns import train


def blind() -> SampledEnv:
    """Returns an environment without pictures."""
    return SampledEnv(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2), ends=5)


@pytest.mark.slow
def test_videos_follow_evaluations_and_do_not_change_the_run(tmp_path: Path):
    words = ("algo=ippo", "steps=160", "eval.every=40")
    recorded = train(tmp_path / "with", *words, "log.video_every=80")
    plain = train(tmp_path / "without", *words)
    names = [path.name for path in sorted((tmp_path / "with" / "videos").iterdir())]
    assert names == ["000000000080.gif", f"{recorded.summary.steps:012d}.gif"]
    with Image.open(tmp_path / "with" / "videos" / names[0]) as video:
        assert getattr(video, "n_frames", 1) == 26
    assert not (tmp_path / "without" / "videos").exists()
    logs = [loggers.read(run.run / "metrics.jsonl") for run in (recorded, plain)]
    kept = [[{k: v for k, v in row.items() if not k.startswith("time/")} for row in log] for log in logs]
    assert repr(kept[0]) == repr(kept[1])


def test_an_environment_without_pictures_trains_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    settings: dict[str, Any] = {"num_envs": 2, "rollout_length": 8, "steps": 64, "threads": 1, "progress": "off"}
    settings |= {"device": "cpu", "eval": {"episodes": 2, "num_envs": 2, "every": 16}, "out": tmp_path / "run"}
    log: Any = {"tensorboard": False, "video_every": 1}
    assert coterie.train("ppo", blind, log=log, **settings).summary.steps >= 64
    assert not (tmp_path / "run" / "videos").exists()
    assert capsys.readouterr().err.count("no videos of this run: ") == 1


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), False),
        (("log.wandb=true",), True),
        (("log.wandb=true", "log.video_every=0"), False),
        (("log.video_every=1k",), True),
    ],
)
def test_videos_are_recorded_for_wandb_or_if_they_are_asked_for(words: tuple[str, ...], wanted: bool):
    assert wants_videos(resolve(words).config) == wanted
