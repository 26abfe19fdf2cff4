"""Runs whose mixer is a class of the user's."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

import coterie
from coterie.__main__ import main
from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.config import callables
from coterie.config.overrides import parse
from coterie.runs.folder import RunFolder
from tinyruns import GRU, REPLAY, assert_resumes_exactly, checkpoint_state, tiny

MODULE = """
from torch import nn

class Weighted(nn.Module):
    def __init__(self, agents, state_size, embed_dim):
        super().__init__()
        self.weights = nn.Sequential(nn.Linear(state_size, embed_dim), nn.ReLU(), nn.Linear(embed_dim, agents))

    def forward(self, values, state):
        return (self.weights(state).exp() * values).sum(-1)

class WithAxis(Weighted):
    def forward(self, values, state):
        return super().forward(values, state).unsqueeze(-1)
"""
SPREAD = ("env=particle/simple_spread", *REPLAY)


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with mixers on the search path, and no functions of earlier tests."""
    (tmp_path / "mixerlab.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(callables, "_functions", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mixerlab", raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("algo=wqmix",), ("algo=vdn", *GRU)], ids=lambda settings: settings[0])
def test_a_mixer_learns_is_resumed_bit_for_bit_and_evaluated(
    settings: tuple[str, ...], lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SPREAD, *settings, "mixer=mixerlab:Weighted")
    assert_resumes_exactly(lab, monkeypatch, 40, *words)
    modules = checkpoint_state(lab / "whole")["algorithms"]["agent"]["module"]
    with closing(build(resolve(tiny(*words)).config)) as components:
        start = components.algorithms["agent"].state_dict()["module"]
    names = [name for name in modules if "mixer.module.weights" in name and name.endswith("weight")]
    assert names
    for name in names:
        assert (modules[name] - start[name]).abs().max() > 1e-4
    assert main(["evaluate", "whole", "--episodes", "4", "--json"]) == 0
    assert coterie.load("whole").policies["agent"] is not None


@pytest.mark.slow
def test_a_class_of_a_notebook_is_recorded_and_passed_again(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import mixerlab  # pyright: ignore[reportMissingImports]

    class Mine(mixerlab.Weighted):
        pass

    settings = {parse(setting).key: parse(setting).values[0] for setting in tiny(*SPREAD)}
    run = coterie.train(algo="qmix", mixer=Mine, out=lab / "run", **settings)
    source = RunFolder.open(run.run).read_manifest()["code_sources"]["algo.mixer"]
    assert source["file"] == __file__
    callables._functions.clear()
    assert main(["evaluate", "run"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Pass it again: coterie.resume(run, mixer=MyMixer)" in error
    assert "train with algo.mixer=package.module:MyMixer" in error
    assert coterie.resume(run, steps=160, mixer=Mine).summary.steps >= 160


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mixer=mixerlab:WithAxis", "algo.mixer=mixerlab:WithAxis returned shape [2, 3, 1] for values of shape"),
        ("mixer=mixerlab:gone", "algo.mixer=mixerlab:gone: module 'mixerlab' has no 'gone'"),
        ("mixer=mixerlab:MODULE", "module 'mixerlab' has no 'MODULE'"),
        ("mixer=qmixx", "algo.mixer=qmixx: expected none, vdn, qmix, qplex, qfix_sum, qfix_mono or qfix_lin or your"),
        ("algo.hypernet_layers=1 mixer=mixerlab:Weighted", "algo.hypernet_layers=1: has no effect with algo.mixer="),
    ],
)
def test_mistakes_are_one_line(setting: str, message: str, lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *tiny(*SPREAD, "algo=qmix", *setting.split(), "out=run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (lab / "run").exists()
