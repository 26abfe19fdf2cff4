"""Imitation in whole runs: it goes on to the bit, it is logged, and what does not fit is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from coterie import run
from coterie.__main__ import main
from coterie.config import resolve
from coterie.errors import UserError
from coterie.imitation.demos import DemoRole, Demos
from coterie.metrics import undeclared
from tinyruns import assert_same, rows_of, state_of, stop_at, train

BOTH = ("env=probe/roles", "imitation.steps=5", "imitation.strength=0.5", "imitation.until=1")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of probe/roles by who acts at random."""
    path = tmp_path_factory.mktemp("demos") / "roles.safetensors"
    assert main(["record", "--algo", "random", "--env", "probe/roles", "--out", str(path), "--episodes", "9"]) == 0
    return path


@pytest.fixture(autouse=True)
def _without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.plot.plot", lambda runs, out: [])


OFF_POLICY = (
    *("copies=4", "algo.horizon=10", "algo.hidden=[8]", "algo.learning_starts=0", "algo.batch=4", "steps=80"),
    *("threads=1", "device=cpu", "eval.every=120", "eval.episodes=4", "eval.copies=4"),
    *("log.tensorboard=false", "progress=off"),
)


def _train(out: Path, algo: tuple[str, ...], *settings: str) -> None:
    """A tiny run of an algorithm that learns from windows or from replay."""
    if algo[0] == "algo=mappo":
        train(out, *algo, *settings)
    else:
        run.train(resolve([*algo, *OFF_POLICY, *settings, f"out={out}"]))


@pytest.mark.parametrize("algo", [("algo=mappo",), ("algo=mappo", "algo.memory=gru"), ("algo=qmix",)])
def test_a_run_that_imitates_goes_on_to_the_bit(algo, demos, tmp_path, monkeypatch):
    settings = (*BOTH, "imitation.batch=8", f"imitation.demos={demos}")
    whole, parts, other = (tmp_path / name for name in ("whole", "parts", "other"))
    _train(whole, algo, *settings)
    with monkeypatch.context() as patched:
        stop_at(patched, 40)
        _train(parts, algo, *settings)
    run.resume(parts, [])
    assert_same(state_of(whole), state_of(parts))
    assert rows_of(whole) == rows_of(parts)
    _train(other, algo, *settings, "imitation.updates=2")
    with pytest.raises(AssertionError):
        assert_same(state_of(whole), state_of(other))


def test_what_imitation_logs_is_declared_and_its_strength_falls(demos, tmp_path):
    train(tmp_path / "run", *BOTH, f"imitation.demos={demos}")
    rows = [row for row in rows_of(tmp_path / "run") if "imitation/loss" in row]
    assert rows
    assert undeclared(key for row in rows for key in row if key.startswith("imitation/")) == []
    strengths = [row["imitation/strength"] for row in rows]
    assert strengths == sorted(strengths, reverse=True)
    assert 0 <= rows[-1]["imitation/agreement"] <= 1


def test_a_warm_start_is_evaluated_before_the_first_window(tmp_path):
    """Two episodes written by hand that choose what pays are enough for the best return at step 0."""
    role = DemoRole("agent", "agent", ("agent_0",), {"shape": [1], "type": "float32"}, choices=(3,))
    one = torch.ones(2, 1)
    tensors = {
        "episode/offset": torch.tensor([0, 1]), "episode/length": torch.tensor([1, 1]),
        "episode/terminated": torch.tensor([True, True]), "episode/return": one.double(),
        "agent/obs": one.unsqueeze(-1), "agent/discrete": torch.full((2, 1, 1), 2), "agent/reward": one,
        "agent/alive": one.bool(), "agent/terminated": one.bool(), "agent/truncated": ~one.bool(),
    }  # fmt: skip
    Demos("probe/action", {}, (role,), tensors).write(tmp_path / "best")
    first = {}
    for name, steps in (("taught", 100), ("untaught", 0)):
        train(
            tmp_path / name, "env=probe/action", "env.choices=3", "env.good=2", "algo=ppo", "eval.mode=greedy",
            "eval.every=80", f"imitation.demos={tmp_path / 'best'}", f"imitation.steps={steps}", "imitation.lr=0.02",
        )  # fmt: skip
        first[name] = next(row["eval/return_mean"] for row in rows_of(tmp_path / name) if "eval/return_mean" in row)
    assert first == {"taught": 1.0, "untaught": -1.0}


def test_a_team_has_demonstrations_of_its_own_and_others_none(demos, tmp_path):
    tag = tmp_path / "tag.safetensors"
    assert main(["record", "--algo", "random", "--env", "particle/simple_tag", "--out", str(tag)]) == 0
    settings = (
        "env=particle/simple_tag",
        "algo=ippo",
        "imitation.steps=3",
        "imitation.strength=1",
        "imitation.until=1",
    )
    train(tmp_path / "one", *settings, f"teams.adversary.imitation.demos={tag}")
    rows = rows_of(tmp_path / "one")
    assert any("imitation/adversary/loss" in row for row in rows)
    assert not any("imitation/agent/loss" in row for row in rows)
    train(tmp_path / "both", *settings, f"imitation.demos={tag}", "teams.agent.imitation.demos=null", "steps=40")
    assert not any("imitation/agent/loss" in row for row in rows_of(tmp_path / "both"))
    train(tmp_path / "rand", *settings, f"imitation.demos={tag}", "teams.agent.algo=random")
    assert any("imitation/adversary/loss" in row for row in rows_of(tmp_path / "rand"))


MISTAKES = {
    "imitation.demos=.* does not fit team 'agent': they are of probe/roles, and this is probe/both": (
        "env=probe/both",
    ),
    "there are no demonstrations .*nowhere: record some": ("imitation.demos=nowhere",),
    "imitation.demos=.* is given, and no team learns from it": ("teams.agent.algo=random",),
    "team 'agent' is given imitation.demos, and algo=random learns nothing: leave out": (
        *("teams.agent.algo=random", "teams.agent.imitation.demos=nowhere", "imitation.demos=null"),
    ),
    "imitation.strength=-1: expected a number at least 0": ("imitation.strength=-1",),
    "there is no key 'imitation.stepz': did you mean 'imitation.steps'": ("imitation.stepz=3",),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_one_line_before_anything_is_written(line, demos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"env": "env=probe/roles", "demos": f"imitation.demos={demos}"}
    given |= {word.partition("=")[0].removeprefix("imitation."): word for word in MISTAKES[line]}
    with pytest.raises(UserError, match=line) as caught:
        train(tmp_path / "run", *given.values())
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_demonstrations_that_have_changed_are_told_when_a_run_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "demos"
    words = ["record", "--algo", "random", "--env", "probe/roles", "--out", str(path)]
    assert main(words) == 0
    stop_at(monkeypatch, 40)
    train(tmp_path / "run", *BOTH, f"imitation.demos={path}")
    monkeypatch.undo()
    assert main([*words, "--seed", "1"]) == 0
    with pytest.raises(UserError, match="have changed since the run was started"):
        run.resume(tmp_path / "run", [])


# -------------------------------------------------------------------------------------------------------- the commands


def test_a_run_is_recorded_beside_its_checkpoints_and_told(tmp_path, capsys):
    train(tmp_path / "run", "env=probe/roles")
    capsys.readouterr()
    assert main(["record", str(tmp_path / "run"), "--episodes", "5", "--checkpoint", "last", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    demos = Demos.read(tmp_path / "run" / "demos.safetensors")
    assert said["episodes"] == demos.episodes == 5
    assert said["made"]["checkpoint"] == "last"
    assert said["made"]["steps"] == 80
    assert said["returns"]["agent"]["mean"] == pytest.approx(float(demos.tensors["episode/return"].mean()))
    assert demos.env == "probe/roles"


def test_demos_tells_whether_a_file_is_sound_and_fits(demos, tmp_path, capsys):
    assert main(["demos", str(demos), "--env", "probe/roles"]) == 0
    said = capsys.readouterr().out
    assert "9 episodes of probe/roles" in said
    assert "played by random as agent" in said
    assert "fits the environment" in said
    assert main(["demos", str(demos), "--env", "probe/both"]) == 1
    assert "does not fit: they are of probe/roles, and this is probe/both" in capsys.readouterr().out
    bad = Demos.open(demos)
    bad.tensors["episode/return"][3] += 5
    bad.write(tmp_path / "bad")
    assert main(["demos", str(tmp_path / "bad"), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["sound"]
    assert said["faults"][0].startswith("episode/return of episode 3 is")


def test_other_parameters_fit_and_are_told(tmp_path, capsys):
    path = tmp_path / "demos"
    assert main(["record", "--algo", "random", "--env", "particle/simple_spread", "--out", str(path)]) == 0
    words = ["demos", str(path), "--env", "particle/simple_spread", "env.local_ratio=0.1"]
    assert main(words) == 0
    assert "fits, but env.local_ratio:" in capsys.readouterr().out
    assert main([*words, "env.agents=4"]) == 1
    assert "3 agents in the demonstrations, 4 in the environment" in capsys.readouterr().out


def test_a_users_own_batch_is_recorded_and_fits(tmp_path, capsys):
    path = tmp_path / "demos"
    assert main(["record", "--algo", "random", "--env", "worlds:counter", "--out", str(path), "--episodes", "3"]) == 0
    assert main(["demos", str(path), "--env", "worlds:counter"]) == 0
    assert "fits the environment" in capsys.readouterr().out


def test_twenty_demonstrations_open_doors_that_nobody_finds(tmp_path):
    """sparse/plates pays nothing before three doors are open; the control without a warm start earns nothing."""
    path = tmp_path / "demos"
    assert main(["record", "--algo", "scripted", "--env", "sparse/plates", "--out", str(path)]) == 0
    earned = {}
    for name, steps in (("taught", 600), ("untaught", 0)):
        settings = ["algo=mappo", "env=sparse/plates", "copies=4", "steps=1", "threads=1", "device=cpu", "progress=off"]
        settings += ["eval.episodes=64", "eval.copies=64", "log.tensorboard=false", f"imitation.demos={path}"]
        run.train(resolve([*settings, f"imitation.steps={steps}", f"out={tmp_path / name}"]))
        rows = rows_of(tmp_path / name)
        earned[name] = next(row["eval/return_mean"] for row in rows if "eval/return_mean" in row)
    assert earned["taught"] > 0.3
    assert earned["untaught"] == 0
