"""Runs whose mixer is a class of the user's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import coterie
from coterie.__main__ import main
from coterie.config import callables
from coterie.config.overrides import parse
from coterie.runs.folder import RunFolder
from tinyruns import TINY, assert_resumes_exactly, checkpoint_state, tiny

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
SETTINGS = tuple(
    setting for setting in TINY if setting.split("=")[0] not in {"algo.epochs", "algo.num_minibatches"}
) + ("algo.learning_starts=0", "algo.batch_size=4", "algo.buffer_size=400", "env=particle/simple_spread")


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with mixers on the search path, and no functions of earlier tests."""
    (tmp_path / "mixerlab.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(callables, "_functions", {})
    monkeypatch.setattr("tinyruns.TINY", SETTINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mixerlab", raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("algo=qmix",), ("algo=wqmix",), ("algo=vdn", "algo.rnn=gru", "algo.rnn_size=8")])
def test_a_run_resumes_bit_for_bit_and_is_evaluated(
    settings: tuple[str, ...], lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_resumes_exactly(lab, monkeypatch, 40, *settings, "mixer=mixerlab:Weighted")
    modules = checkpoint_state(lab / "whole")["algorithms"]["agent"]["module"]
    assert any("mixer.module.weights.0.weight" in name for name in modules)
    assert main(["evaluate", "whole", "--episodes", "4", "--json"]) == 0
    assert coterie.load("whole").policies["agent"] is not None


@pytest.mark.slow
def test_a_team_learns_with_a_mixer(lab: Path) -> None:
    """It does not with a learning rate of almost zero."""
    returns = {}
    for lr, steps in ((5e-3, 4000), (1e-9, 1000)):
        run = coterie.train(
            algo={"name": "qmix", "mixer": "mixerlab:Weighted", "lr": lr, "learning_starts": 200}, env="probe/both",
            steps=steps, num_envs=16, threads=1, out=lab / str(lr), progress="off",
            **{"eval.every": 0, "log.tensorboard": False},
        )  # fmt: skip
        returns[lr] = coterie.evaluate(run, episodes=64, mode="greedy")["teams"]["agent"]["return_mean"]
    assert returns[5e-3] > 0.9 > returns[1e-9]


@pytest.mark.slow
def test_a_class_of_a_notebook_is_recorded_and_passed_again(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import mixerlab  # pyright: ignore[reportMissingImports]

    class Mine(mixerlab.Weighted):
        pass

    settings = {parse(setting).key: parse(setting).values[0] for setting in SETTINGS}
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


@pytest.mark.slow
def test_runs_of_others_are_not_imported_without_trust(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *tiny("algo=qmix", "algo.mixer=mixerlab:Weighted", "out=run")]) == 0
    folder = RunFolder.open(Path("run"))
    folder.write_manifest({**folder.read_manifest(), "signature": "of another machine"})
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "4"]) == 2
    assert "names code outside Coterie (algo.mixer=mixerlab:Weighted)" in capsys.readouterr().err
    assert main(["evaluate", "run", "--episodes", "4", "--trust"]) == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mixer=mixerlab:WithAxis", "algo.mixer=mixerlab:WithAxis returned shape [2, 3, 1] for values of shape"),
        ("mixer=mixerlab:gone", "algo.mixer=mixerlab:gone: module 'mixerlab' has no 'gone'"),
        ("mixer=mixerlab:MODULE", "module 'mixerlab' has no 'MODULE'"),
        (
            "mixer=qmixx",
            "algo.mixer=qmixx: expected none, vdn, qmix, qplex, qfix_sum, qfix_mono or qfix_lin or your own",
        ),
        ("algo.hypernet_layers=1 mixer=mixerlab:Weighted", "algo.hypernet_layers=1: has no effect with algo.mixer="),
    ],
)
def test_mistakes_are_one_line(setting: str, message: str, lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *tiny("algo=qmix", *setting.split(), "out=run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (lab / "run").exists()
