"""Runs whose networks have a body of the user's."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
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
from tinyruns import GRU, REPLAY, TINY, assert_resumes_exactly, checkpoint_state, tiny, train

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
@pytest.mark.parametrize(
    "settings",
    [("algo=poca", "algo.share_params=none"), ("algo=qmix", *REPLAY, *GRU), ("algo=masac", *REPLAY)],
    ids=lambda settings: settings[0],
)
def test_runs_with_a_body_resume_bit_for_bit(
    settings: tuple[str, ...], lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A critic with attention and no shared parameters, values of actions, and an actor with a replay buffer."""
    world = ("env=particle/simple_spread", "env.agents=2", "network=netlab.nets:make")
    assert_resumes_exactly(lab, monkeypatch, 40, *world, *settings)
    assert body_of(checkpoint_state(lab / "whole")["algorithms"]["agent"]["policy"])


def body_of(policy: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the weights of the user's body in the state of a policy."""
    parts = [part for part in policy.values() if isinstance(part, dict)]
    return {name: x for part in parts for name, x in part.items() if ".body.parts." in name}


@pytest.mark.parametrize("settings", [("algo=mappo",), ("algo=qmix", *REPLAY)], ids=lambda settings: settings[0])
def test_a_body_learns_the_same_with_kernels_and_without(settings: tuple[str, ...], lab: Path) -> None:
    """The first gradient steps change every weight in the same way."""
    words, found = ("env=particle/simple_spread", "env.agents=2", "network=netlab.nets:make", *settings), {}
    try:
        for kernels in ("on", "off"):
            train(lab / kernels, *words, f"kernels={kernels}", "steps=160")
            assert switch.on == (kernels == "on")
            found[kernels] = body_of(checkpoint_state(lab / kernels)["algorithms"]["agent"]["policy"])
    finally:
        switch.on = False
    with closing(build(resolve(tiny(*words)).config)) as components:
        start = body_of(components.algorithms["agent"].policy.state_dict())
    for name, weight in start.items():
        torch.testing.assert_close(found["on"][name], found["off"][name], rtol=0, atol=1e-4)
        assert (found["on"][name] - weight).abs().max() > 1e-3
    assert len(start) == 4


@pytest.mark.slow
def test_actor_and_critic_have_separate_settings(lab: Path) -> None:
    import netlab.nets as nets  # pyright: ignore[reportMissingImports]

    assert main(["train", *tiny("env=probe/action", "algo=ippo", "critic_network=netlab.nets:make", "out=a")]) == 0
    assert set(nets.CALLS) == {"critic"}
    nets.CALLS.clear()
    settings = ("env=probe/action", "algo=ippo", "network=netlab.nets:make", "algo.critic_network=mlp", "out=b")
    assert main(["train", *tiny(*settings)]) == 0
    assert set(nets.CALLS) == {"actor"}
    assert main(["evaluate", "b", "--episodes", "4", "--json"]) == 0
    assert main(["play", "b", "--record", "b.zip"]) == 0
    assert coterie.load("b").policies["agent"] is not None


@pytest.mark.slow
def test_one_team_has_a_body_of_its_own_and_plays_against_its_snapshots(lab: Path) -> None:
    settings = ("env=board/tictactoe", "algo=ippo", "network=netlab.nets:make", "selfplay.opponents=uniform")
    train(lab / "self", *settings, "selfplay.snapshot_interval=40", "selfplay.rating_episodes=2")
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


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("network=netlab.nets:Broken", "algo.network=netlab.nets:Broken returned shape [3] for an input of shape [3, "),
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
