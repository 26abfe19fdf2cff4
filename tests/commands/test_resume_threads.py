"""A run keeps its number of threads when it is resumed."""

import json

import pytest
import torch

import coterie
import tinyruns
from coterie.core import process


@pytest.fixture
def as_many(monkeypatch):
    """Sets what `threads=auto` stands for; the number of PyTorch's threads is restored."""
    before = torch.get_num_threads()

    def auto(count):
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))

    yield auto
    torch.set_num_threads(before)


def test_auto_is_recorded_and_kept_and_another_number_is_stated(tmp_path, as_many, capsys):
    as_many(2)
    tinyruns.train(tmp_path / "run", "threads=auto", "progress=lines", "steps=40")
    assert json.loads((tmp_path / "run/manifest.json").read_text())["threads"] == 2
    assert "threads: 2" in capsys.readouterr().err
    as_many(1)
    coterie.resume(tmp_path / "run", steps=80)
    assert torch.get_num_threads() == 2
    assert "before" not in capsys.readouterr().err
    coterie.resume(tmp_path / "run", steps=120, threads=1)
    assert torch.get_num_threads() == 1
    assert "threads: 2 before, 1 now. Results may differ in the last bits" in capsys.readouterr().err


def test_a_new_run_measures(tmp_path, as_many, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(process, "available_cores", lambda: 2)
    monkeypatch.setattr(process, "fewest_of_the_fastest", lambda counts, times: counts[-1] if all(times) else 0)
    tinyruns.train(tmp_path / "run", "threads=auto")
    assert json.loads((tmp_path / "run/manifest.json").read_text())["threads"] == 2
