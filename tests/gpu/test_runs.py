"""Whole runs on a fake CUDA device, and what is said without a GPU."""

import importlib
import json

import pytest
import torch

import coterie
from coterie.core.errors import UserError
from fakecuda import fake_cuda
from places import ROOT

TINY = {"steps": 16, "num_envs": 2, "rollout_length": 8, "progress": "off", "threads": 1}
TINY |= {"eval.num_envs": 2, "eval.episodes": 2, "env.episode_limit": 4, "algo.hidden_sizes": [8]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"algo": "ippo", "algo.epochs": 1, "rewards.icm.weight": 0.1, "rewards.rnd.weight": 0.1},
        {"algo": "qmix", "algo.learning_starts": 0, "algo.buffer_size": 1000, "algo.batch_size": 4},
    ],
    ids=lambda given: given["algo"],
)
def test_a_run_with_graphs_trains_and_resumes_without_them(tmp_path, given):
    """The manifest records how it started."""
    out = str(tmp_path / "run")
    settings = {"env": "particle/simple_spread", "cuda_graphs": "on"} | given
    with fake_cuda():
        coterie.train(**TINY, **settings, device="cuda", out=out)
        assert coterie.resume(out, steps=32).summary.steps >= 32
    assert coterie.resume(out, steps=48, device="cpu", cuda_graphs="off").summary.steps >= 48
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["precision"], manifest["cuda_graphs"]) == ("float32", "on")


@pytest.mark.slow
def test_a_run_that_starts_on_a_gpu_resumes_on_the_cpu_and_back(tmp_path, capfd):
    """Networks and moments of the optimizer are those of the checkpoint; a note names the devices."""
    out = str(tmp_path / "run")
    settings = TINY | {
        "algo": "mappo",
        "algo.rnn": "gru",
        "algo.epochs": 1,
        "algo.normalize_obs": True,
        "progress": "lines",
    }
    settings |= {"env": "particle/simple_spread", "kernels": "off"}
    with fake_cuda():
        coterie.train(**settings, device="cuda", out=out)
    assert coterie.resume(out, steps=32, device="cpu").summary.steps >= 32
    assert "device: cuda before, cpu now." in "".join(capfd.readouterr())
    with fake_cuda():
        assert coterie.resume(out, steps=48, device="cuda").summary.steps >= 48
    assert "device: cpu before, cuda now." in "".join(capfd.readouterr())


def test_a_gpu_that_is_not_there_is_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=r"^device=cuda: no such GPU, PyTorch finds no GPU. Use device=auto or .*cpu.$"):
        coterie.train(**TINY, device="cuda", out=str(tmp_path / "run"))


@pytest.fixture
def speed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("speed")


def test_speed_without_a_gpu_ends_with_status_2_and_one_line(speed, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert speed.main(["--cuda"]) == 2
    assert capsys.readouterr().err == "--cuda: PyTorch finds no GPU here, so nothing was measured.\n"
