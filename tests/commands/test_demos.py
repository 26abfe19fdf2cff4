"""Imitation in whole runs: resuming, metrics, errors, and the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from coterie.__main__ import main
from coterie.commands import train as training
from coterie.core.errors import UserError
from coterie.core.metrics import undeclared
from coterie.imitation.demonstrations import DemoRole, Demos
from tinyruns import GRU, REPLAY, assert_resumes_exactly, log_entries, stop_at, train

BOTH = ("env=probe/roles", "imitation.steps=5", "imitation.weight=0.5", "imitation.end_fraction=1")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of probe/roles by the random policy."""
    path = tmp_path_factory.mktemp("demos") / "roles.safetensors"
    assert main(["record", "--algo", "random", "--env", "probe/roles", "--out", str(path), "--episodes", "9"]) == 0
    return path


@pytest.mark.slow
@pytest.mark.parametrize("algo", [("algo=mappo", *GRU), ("algo=qmix", *REPLAY)])
def test_a_resumed_run_with_imitation_is_bit_identical(algo, demos, tmp_path, monkeypatch):
    settings = (*algo, *BOTH, "imitation.batch_size=8", f"imitation.demos={demos}")
    assert_resumes_exactly(tmp_path, monkeypatch, 40, *settings)


def test_imitation_metrics_are_declared_and_the_weight_decreases(demos, tmp_path):
    train(tmp_path / "run", *BOTH, f"imitation.demos={demos}")
    entries = [entry for entry in log_entries(tmp_path / "run") if "imitation/loss" in entry]
    assert entries
    assert undeclared(key for entry in entries for key in entry if key.startswith("imitation/")) == []
    weights = [entry["imitation/weight"] for entry in entries]
    assert weights == sorted(weights, reverse=True)
    assert 0 <= entries[-1]["imitation/accuracy"] <= 1


@pytest.mark.slow
def test_pretraining_is_part_of_the_first_evaluation(tmp_path):
    """Two episodes written by hand with the rewarded choice suffice for the best return at step 0."""
    role = DemoRole("agent", "agent", ("agent_0",), {"shape": [1], "type": "float32"}, choices=(3,))
    one = torch.ones(2, 1)
    tensors = {
        "episode/offset": torch.tensor([0, 1]),
        "episode/length": torch.tensor([1, 1]),
        "episode/terminated": torch.tensor([True, True]),
        "episode/return": one.double(),
        "agent/obs": one.unsqueeze(-1),
        "agent/discrete": torch.full((2, 1, 1), 2),
        "agent/reward": one,
        "agent/alive": one.bool(),
        "agent/terminated": one.bool(),
        "agent/truncated": ~one.bool(),
    }
    Demos("probe/action", {}, (role,), tensors).write(tmp_path / "best")
    first = {}
    for name, steps in (("pretrained", 100), ("untrained", 0)):
        words = ("env=probe/action", "env.choices=3", "env.good=2", "algo=ppo", "eval.mode=greedy", "eval.every=80")
        imitation = (f"imitation.demos={tmp_path / 'best'}", f"imitation.steps={steps}", "imitation.lr=0.02")
        train(tmp_path / name, *words, *imitation, "steps=40")
        entries = log_entries(tmp_path / name)
        first[name] = next(entry["eval/return_mean"] for entry in entries if "eval/return_mean" in entry)
    assert first == {"pretrained": 1.0, "untrained": -1.0}


@pytest.mark.slow
def test_a_team_can_have_its_own_demonstrations(demos, tmp_path):
    tag = tmp_path / "tag.safetensors"
    assert main(["record", "--algo", "random", "--env", "particle/simple_tag", "--out", str(tag)]) == 0
    settings = ("env=particle/simple_tag", "algo=ippo", "imitation.steps=3", "imitation.weight=1")
    settings += ("imitation.end_fraction=1",)
    train(tmp_path / "one", *settings, f"teams.adversary.imitation.demos={tag}")
    entries = log_entries(tmp_path / "one")
    assert any("imitation/adversary/loss" in entry for entry in entries)
    assert not any("imitation/agent/loss" in entry for entry in entries)
    train(tmp_path / "both", *settings, f"imitation.demos={tag}", "teams.agent.imitation.demos=null")
    assert not any("imitation/agent/loss" in entry for entry in log_entries(tmp_path / "both"))
    train(tmp_path / "rand", *settings, f"imitation.demos={tag}", "teams.agent.algo=random")
    assert any("imitation/adversary/loss" in entry for entry in log_entries(tmp_path / "rand"))


MISTAKES = {
    "imitation.demos=.* does not fit team 'agent': they were recorded in probe/roles, but .* is probe/both": (
        "env=probe/both",
    ),
    "there are no demonstrations .*nowhere. Record some": ("imitation.demos=nowhere",),
    "imitation.demos=.*: no team learns from it": ("teams.agent.algo=random",),
    "team 'agent' has imitation.demos, but algo=random does not learn. Remove": (
        *("teams.agent.algo=random", "teams.agent.imitation.demos=nowhere", "imitation.demos=null"),
    ),
    "imitation.weight=-1: expected a number at least 0": ("imitation.weight=-1",),
    "imitation.stepz: no such setting. Did you mean 'imitation.steps'": ("imitation.stepz=3",),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_invalid_settings_are_refused_in_one_line_before_anything_is_written(line, demos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"env": "env=probe/roles", "demos": f"imitation.demos={demos}"}
    given |= {word.partition("=")[0].removeprefix("imitation."): word for word in MISTAKES[line]}
    with pytest.raises(UserError, match=line) as caught:
        train(tmp_path / "run", *given.values())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_changed_demonstrations_are_refused_on_resume(tmp_path, monkeypatch):
    path = tmp_path / "demos"
    words = ["record", "--algo", "random", "--env", "probe/roles", "--out", str(path)]
    assert main(words) == 0
    stop_at(monkeypatch, 40)
    train(tmp_path / "run", *BOTH, f"imitation.demos={path}")
    monkeypatch.undo()
    assert main([*words, "--seed", "1"]) == 0
    with pytest.raises(UserError, match="have changed since the run was started"):
        training.resume(tmp_path / "run", [])


# -------------------------------------------------------------------------------------------------------- the commands


def test_demonstrations_of_a_run_are_recorded_in_its_folder(tmp_path, capsys):
    train(tmp_path / "run", "env=probe/roles")
    capsys.readouterr()
    assert main(["record", str(tmp_path / "run"), "--episodes", "5", "--checkpoint", "last", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    demos = Demos.read(tmp_path / "run" / "demos.safetensors")
    assert output["episodes"] == demos.episodes == 5
    assert output["origin"]["checkpoint"] == "last"
    assert output["origin"]["steps"] == 80
    assert output["returns"]["agent"]["mean"] == pytest.approx(float(demos.tensors["episode/return"].mean()))
    assert demos.env == "probe/roles"


def test_demos_reports_errors_and_mismatches(demos, tmp_path, capsys):
    assert main(["demos", str(demos), "--env", "probe/roles"]) == 0
    output = capsys.readouterr().out
    assert "9 episodes of probe/roles" in output
    assert "team agent played by random" in output
    assert "matches the environment" in output
    assert main(["demos", str(demos), "--env", "probe/both"]) == 1
    output = capsys.readouterr().out
    assert "does not match: they were recorded in probe/roles, but the environment is probe/both" in output
    bad = Demos.open(demos)
    bad.tensors["episode/return"][3] += 5
    bad.write(tmp_path / "bad")
    assert main(["demos", str(tmp_path / "bad"), "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert not output["valid"]
    assert output["errors"][0].startswith("episode/return of episode 3 is")


def test_demonstrations_with_other_parameters_fit_with_a_note(tmp_path, capsys):
    path = tmp_path / "demos"
    assert main(["record", "--algo", "random", "--env", "particle/simple_spread", "--out", str(path)]) == 0
    words = ["demos", str(path), "--env", "particle/simple_spread", "env.local_ratio=0.1"]
    assert main(words) == 0
    assert "matches, but env.local_ratio:" in capsys.readouterr().out
    assert main([*words, "env.agents=4"]) == 1
    assert "3 agents in the demonstrations, 4 in the environment" in capsys.readouterr().out


def test_demonstrations_of_a_user_batch_fit(tmp_path, capsys):
    path = tmp_path / "demos"
    assert main(["record", "--algo", "random", "--env", "worlds:counter", "--out", str(path), "--episodes", "3"]) == 0
    assert main(["demos", str(path), "--env", "worlds:counter"]) == 0
    assert "matches the environment" in capsys.readouterr().out
