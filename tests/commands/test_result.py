"""The result of a training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.core.errors import UserError
from coterie.runs import loggers
from tinyruns import train


def test_metrics_are_a_data_frame_with_a_row_per_log_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(tmp_path / "run", "algo=ippo")
    frames: list[Any] = []
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: frames.append(rows) or "frame"))
    assert result.metrics() == "frame"
    assert frames == [loggers.read(result.run / "metrics.jsonl")]
    assert {"steps", "loss/policy", "eval/return_mean"} <= {name for row in frames[0] for name in row}


def test_without_pandas_the_error_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = train(tmp_path / "run", "algo=ippo")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError) as error:
        result.metrics()
    assert "pandas is not installed" in str(error.value)
    assert "Install it: pip install pandas." in str(error.value)
    assert str(result.run / "metrics.jsonl") in str(error.value)
