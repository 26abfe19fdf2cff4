"""Runs of version 0.1 are refused in one line by every command that opens a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import coterie
from coterie.__main__ import main


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    run = tmp_path / "old"
    run.mkdir()
    (run / "config.yaml").write_text("algo: {name: mappo, horizon: 26}\nenv: particle/simple_spread\ncopies: 128\n")
    (run / "manifest.json").write_text(json.dumps({"versions": {"coterie": "0.1.0"}}))
    (run / "metrics.jsonl").write_text('{"steps": 1}\n')
    return run


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "RUN"],
        ["resume", "RUN"],
        ["plot", "RUN"],
        ["league", "RUN", "random"],
        ["train", "algo=frozen", "algo.run=RUN", "steps=100"],
    ],
    ids=lambda words: words[0],
)
def test_an_old_run_is_refused_in_one_line(
    words: list[str], old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("RUN", str(old_run)) for word in words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "0.1" in line]
    assert "written by Coterie 0.1.0" in line
    assert "Train the run again" in line


def test_a_run_of_this_version_is_opened(old_run: Path):
    (old_run / "manifest.json").write_text(json.dumps({"versions": {"coterie": coterie.__version__}}))
    assert coterie.__version__.startswith("0.2.")
    assert main(["plot", str(old_run)]) == 2  # it has no curve, but it is not refused for its version
