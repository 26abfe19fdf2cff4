"""Training with kernels: the manifest, resuming, and independence of the number of threads."""

import json

import pytest
import torch

import coterie
import tinyruns
from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.commands.benchmark import TrainingLoop
from coterie.core.tree import tree_leaves
from coterie.kernels import native
from coterie.kernels.build import KernelsUnavailableError

TINY = ["env=particle/simple_spread", "device=cpu", "num_envs=128", "algo.rollout_length=8", "eval.every=0"]
MAPPO = ["algo=mappo", "algo.epochs=2", "algo.num_minibatches=2", *TINY]
RNN = ["algo.sequence_length=8", "algo.rnn_size=24"]
LONGER, STOP = ("kernels=on", "num_envs=128", "steps=5120", "eval.every=0"), 2560
CASES = {
    "gru": ["algo.rnn=gru", "algo.critic=joint", *RNN],
    "lstm": ["algo.rnn=lstm", "algo.share_params=none", *RNN],
}


@pytest.mark.parametrize("case", CASES)
def test_training_does_not_depend_on_the_number_of_threads(case, threads, kernels_on):
    found = []
    for count in (1, 2, 3):
        loop = TrainingLoop(build(resolve([*MAPPO, *CASES[case]]).config))  # initial weights depend on the threads
        with kernels_on(True), threads(count):
            for _ in range(2):
                loop.run_round()
        (algorithm,) = loop.algorithms.values()
        found.append([x for x in tree_leaves(algorithm.state_dict()) if isinstance(x, torch.Tensor)])
    assert len(found[0]) > 10
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def train(out, **settings):
    plain = {"algo": "mappo", "env": "particle/simple_spread", "device": "cpu", "num_envs": 8, "progress": "off"}
    plain |= {"algo.rollout_length": 8, "eval.every": 0, "steps": 128, "threads": 1, "out": str(out)}
    return coterie.train(**plain | settings)


@pytest.fixture
def without_kernels_later(kernels_on):
    with kernels_on(False):
        yield


def test_a_run_is_resumed_exactly_with_another_number_of_threads(tmp_path, without_kernels_later, monkeypatch, threads):
    with threads(1):
        tinyruns.train(tmp_path / "whole", *LONGER)
        with monkeypatch.context() as patch:
            tinyruns.stop_at(patch, STOP)
            tinyruns.train(tmp_path / "halves", *LONGER)
        coterie.resume(tmp_path / "halves", threads=2)
    tinyruns.assert_same(*(tinyruns.checkpoint_state(tmp_path / name) for name in ("halves", "whole")))


def test_resuming_without_a_compiler_is_an_error_or_a_note(tmp_path, without_kernels_later, monkeypatch, capsys):
    train(tmp_path / "run", kernels="on")
    assert json.loads((tmp_path / "run/manifest.json").read_text())["kernels"] == "on"

    def fail():
        raise KernelsUnavailableError("no C++ compiler found")

    monkeypatch.setattr(native, "load", fail)
    with pytest.raises(coterie.UserError, match=r"kernels=on: no C\+\+ compiler found"):
        coterie.resume(tmp_path / "run", steps=256)
    coterie.resume(tmp_path / "run", steps=256, kernels="auto")
    assert json.loads((tmp_path / "run/manifest.json").read_text())["kernels"] == "on"
    note = "kernels were on and are off: no C++ compiler found. Results differ in the last bits"
    assert note in capsys.readouterr().err
