"""What Python code and notebooks do with a run."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import coterie
from coterie.commands.saved_run import Picture, TrainingResult
from coterie.core.errors import UserError
from coterie.runs import loggers
from tinyruns import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return TrainingResult(**vars(train(tmp_path_factory.mktemp("saved") / "run", "algo=ippo")))


def test_metrics_are_a_data_frame_with_a_row_per_log_entry(run: TrainingResult, monkeypatch: pytest.MonkeyPatch):
    frames: list[Any] = []
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: frames.append(rows) or "frame"))
    assert run.metrics() == "frame"
    assert {"steps", "loss/policy", "eval/return_mean"} <= set(frames[0])


def test_without_pandas_metrics_are_a_dict_of_columns(run: TrainingResult, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows, columns = loggers.read(run.run / "metrics.jsonl"), run.metrics()
    assert {len(values) for values in columns.values()} == {len(rows)}
    for i, row in enumerate(rows):
        for name, values in columns.items():
            assert values[i] == row.get(name) or (math.isnan(values[i]) and math.isnan(row.get(name, math.nan)))


@pytest.mark.slow
def test_a_run_is_evaluated_plotted_and_recorded(run: TrainingResult, tmp_path: Path):
    assert run.evaluate(episodes=4, seed=3) == coterie.evaluate(run, episodes=4, seed=3)
    figure = run.plot()
    assert Image.open(io.BytesIO(figure.content)).format == "PNG"
    assert b"<svg" in run.plot("loss/policy", svg=True).content
    with pytest.raises(UserError, match="loss/polcy: not in the logs"):
        run.plot("loss/polcy")
    assert "curves.png" not in [path.name for path in figure.save(tmp_path / "a" / "b.png").parent.iterdir()]
    video = run.video(size=64, checkpoint="last")
    assert getattr(Image.open(io.BytesIO(video.content)), "n_frames", 1) == 26
    assert run.video(tmp_path / "episode.gif", size=64).content == (tmp_path / "episode.gif").read_bytes()
    with pytest.raises(UserError, match=r"unexpected suffix '\.png'. Expected \.gif"):
        video.save(tmp_path / "video.png")


def test_a_loaded_run_uses_its_own_checkpoint(run: TrainingResult):
    loaded = coterie.load(run, checkpoint="40")
    report = loaded.evaluate(episodes=2)
    assert report["steps"] == loaded.steps == 40 < run.summary.steps
    assert loaded.evaluate(episodes=2, checkpoint="last")["steps"] == run.summary.steps


@pytest.mark.parametrize(("suffix", "element"), [(".png", '<img src="data:image/png;'), (".mp4", "<video src=")])
def test_pictures_are_shown_with_their_content(suffix: str, element: str):
    shown = Picture(b"\0\1\2", suffix)._repr_html_()
    assert shown.startswith(element)
    assert "base64,AAEC" in shown
