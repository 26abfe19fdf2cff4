"""Runs whose networks have a body of the user's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

import coterie
from coterie.__main__ import main
from coterie.assembly.build import build
from coterie.assembly.resolve import resolve
from coterie.config import callables
from coterie.config.overrides import parse
from coterie.core.errors import UserError
from coterie.kernels import switch
from coterie.runs.folder import RunFolder
from tinyruns import TINY, assert_resumes_exactly, assert_same, checkpoint_state, tiny

MODULE = """
from torch import nn

CALLS = []

def make(input_size, role=None, part="actor"):
    CALLS.append(part)
    return nn.Sequential(nn.Linear(input_size, 12), nn.SiLU(), nn.Linear(12, 9), nn.Tanh())

class Broken(nn.Module):
    def __init__(self, input_size):
        super().__init__()
        self.layer = nn.Linear(input_size, 4)

    def forward(self, x):
        return self.layer(x)[:, 0]
"""

OFF_POLICY = tuple(
    setting for setting in TINY if setting.split("=")[0] not in {"algo.epochs", "algo.num_minibatches"}
) + ("algo.learning_starts=0", "algo.batch_size=4", "algo.buffer_size=400")

ALGORITHMS = [
    ("mappo", (*TINY, "algo.rnn=gru", "algo.rnn_size=8")),
    ("poca", (*TINY, "algo.share_params=none")),
    ("qmix", (*OFF_POLICY, "algo.rnn=gru", "algo.rnn_size=8")),
    ("masac", OFF_POLICY),
]
"""Actors with a critic of states, without shared parameters, and with a replay buffer; values of actions."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with networks on the search path, and no functions of earlier tests."""
    package = tmp_path / "netlab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(callables, "_functions", {})
    monkeypatch.chdir(tmp_path)
    for name in ("netlab", "netlab.nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "settings"), ALGORITHMS, ids=lambda x: x if isinstance(x, str) else x[-1])
def test_runs_with_a_body_resume_bit_for_bit(
    algo: str, settings: tuple[str, ...], lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyruns.TINY", settings)
    assert_resumes_exactly(
        lab, monkeypatch, 40, f"algo={algo}", "env=particle/simple_spread", "network=netlab.nets:make", "env.agents=2"
    )
    state = checkpoint_state(lab / "whole")["algorithms"]["agent"]["policy"]
    assert any(".body.parts.0.2.weight" in name for part in state.values() if isinstance(part, dict) for name in part)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["mappo", "qmix"])
def test_a_body_learns_with_kernels_and_without(algo: str, lab: Path) -> None:
    """Both solve the probe; with a learning rate of almost zero they do not."""
    scores = {}
    for kernels, lr, steps in (("on", 5e-3, 3000), ("off", 5e-3, 3000), ("on", 1e-9, 1000)):
        try:
            run = coterie.train(
                algo=algo, env="probe/action", network="netlab.nets:make", steps=steps, num_envs=16, threads=1,
                out=lab / f"{kernels}{lr}", kernels=kernels, progress="off",
                **{"algo.lr": lr, "eval.every": 0, "algo.rollout_length": 8, "log.tensorboard": False},
            )  # fmt: skip
            assert switch.on == (kernels == "on")
            scores[kernels, lr] = coterie.evaluate(run, episodes=64, mode="greedy")["teams"]["agent"]["return_mean"]
        finally:
            switch.on = False
    assert scores["on", 5e-3] > 0.9
    assert scores["off", 5e-3] > 0.9
    assert scores["on", 1e-9] < 0.9


@pytest.mark.slow
def test_actor_and_critic_have_separate_settings(lab: Path) -> None:
    import netlab.nets as nets  # pyright: ignore[reportMissingImports]

    assert main(["train", *tiny("env=probe/action", "algo=ippo", "critic_network=netlab.nets:make", "out=a")]) == 0
    assert set(nets.CALLS) == {"critic"}
    nets.CALLS.clear()
    settings = ("env=probe/action", "algo=ippo", "network=netlab.nets:make", "algo.critic_network=mlp", "out=b")
    assert main(["train", *tiny(*settings)]) == 0
    assert set(nets.CALLS) == {"actor"}
    for run in ("a", "b"):
        assert main(["evaluate", run, "--episodes", "4", "--json"]) == 0
        assert main(["play", run, "--record", f"{run}.zip"]) == 0
        assert coterie.load(run).policies["agent"] is not None


@pytest.mark.slow
def test_one_team_has_a_body_of_its_own_and_plays_against_its_snapshots(lab: Path) -> None:
    settings = ("env=board/tictactoe", "algo=ippo", "network=netlab.nets:make", "selfplay.opponents=uniform")
    assert (
        main(["train", *tiny(*settings, "selfplay.snapshot_interval=40", "selfplay.rating_episodes=2", "out=self")])
        == 0
    )
    teams = ("env=particle/simple_tag", "algo=ippo", "teams.adversary.network=netlab.nets:make", "out=teams")
    assert main(["train", *tiny(*teams)]) == 0
    states = checkpoint_state(lab / "teams")["algorithms"]
    named = {team: [*state["policy"]["module"]] for team, state in states.items()}
    assert any(".parts." in name for name in named["adversary"])
    assert not any(".parts." in name for name in named["agent"])


@pytest.mark.slow
def test_a_function_of_a_notebook_is_recorded_and_passed_again(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def make_body(input_size: int) -> nn.Module:
        return nn.Sequential(nn.Linear(input_size, 6), nn.ReLU())

    settings = {parse(setting).key: parse(setting).values[0] for setting in TINY}
    whole = coterie.train(algo="ippo", env="probe/action", network=make_body, out=lab / "whole", **settings)
    sources = RunFolder.open(whole.run).read_manifest()["code_sources"]
    name = "test_a_function_of_a_notebook_is_recorded_and_passed_again.<locals>.make_body"
    assert sources["algo.network"]["name"] == name
    assert sources["algo.network"]["file"] == __file__
    callables._functions.clear()
    capsys.readouterr()
    assert main(["resume", str(whole.run), "steps=160"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "coterie.resume(run, network=make_network)" in error
    assert coterie.evaluate(whole, episodes=4, checkpoint="last", network=make_body)["steps"] == 80
    assert coterie.resume(whole, steps=160, network=make_body).summary.steps >= 160
    with pytest.raises(UserError, match=r"algo: the run's algorithm is ippo, which is imported by its name"):
        coterie.load(whole, algo=make_body)


@pytest.mark.slow
def test_runs_of_others_are_not_imported_without_trust(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *tiny("env=probe/action", "algo=ippo", "network=netlab.nets:make", "out=run")]) == 0
    folder = RunFolder.open(Path("run"))
    folder.write_manifest({**folder.read_manifest(), "signature": "of another machine"})
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "4"]) == 2
    assert "names code outside Coterie (algo.network=netlab.nets:make)" in capsys.readouterr().err
    assert main(["evaluate", "run", "--episodes", "4", "--trust"]) == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "network=netlab.nets:Broken",
            r"algo.network=netlab.nets:Broken returned shape [3] for an input of shape [3, ",
        ),
        ("network=netlab.nets:gone", "algo.network=netlab.nets:gone: module 'netlab.nets' has no 'gone'"),
        ("network=netlab.nets:CALLS", "expected a function or class of torch modules, not list"),
        ("network=resnet", "algo.network=resnet: expected mlp, attention, graph"),
        ("critic_network=nolab:make", "algo.critic_network=nolab:make: there is no module 'nolab'"),
    ],
)
def test_mistakes_are_one_line(setting: str, message: str, lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *tiny("env=probe/action", "algo=ippo", setting, "out=run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not (lab / "run").exists()


def test_equal_states_differ_from_those_of_another_seed(lab: Path) -> None:
    def state(seed: int) -> dict:
        words = tiny("env=probe/action", "algo=ippo", "network=netlab.nets:make", f"seed={seed}")
        components = build(resolve(words).config)
        components.close()
        return components.algorithms["agent"].policy.state_dict()

    assert_same(state(0), state(0))
    with pytest.raises(AssertionError):
        assert_same(state(0), state(1))
