"""The command `coterie export`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import coterie
from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.core.installation import install_extra
from coterie.core.specs import EnvSpec, RoleSpec
from coterie.export import export, onnx_graph
from coterie.export.export import team_folders
from coterie.export.signature import inputs, outputs
from coterie.export.subject import subject_of
from coterie.nets.config import NetworkConfig
from coterie.policies.stochastic import StochasticPolicy
from exports import load_player
from tinyruns import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a team that learns, a random team, and a frozen one."""
    folder = tmp_path_factory.mktemp("export")
    train(folder / "first", "env=particle/simple_adversary", "algo=ippo", "teams.agent.algo=random")
    return folder / "first"


def exported(run: Path, out: Path, *options: str) -> int:
    return main(["export", str(run), "--format", "numpy", "--out", str(out), *options])


def test_teams_without_networks_are_named_and_left_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exported(run, tmp_path / "out", "--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["teams"] == {"adversary": ["policy.json", "weights.safetensors"]}
    assert "acts at random" in report["skipped"]["agent"]
    assert "coterie: team 'agent' cannot be exported: it acts at random" in captured.err
    assert sorted(x.name for x in (tmp_path / "out").iterdir()) == [
        "adversary",
        "coterie_player.mjs",
        "coterie_player.py",
    ]


def test_the_description_names_the_origin(run: Path, tmp_path: Path):
    assert exported(run, tmp_path / "out") == 0
    info = json.loads((tmp_path / "out" / "adversary" / "policy.json").read_text())
    origin = info["provenance"]
    assert (origin["run"], origin["env"], origin["algo"]) == ("first", "particle/simple_adversary", "ippo")
    assert origin["checkpoint"]["steps"] > 0
    assert str(tmp_path) not in json.dumps(info)
    assert str(run.parent) not in json.dumps(info)


def test_a_frozen_team_of_another_run_is_exported(run: Path, tmp_path: Path):
    frozen = ("teams.adversary.algo=frozen", f"teams.adversary.run={run}", "teams.agent.algo=ippo")
    train(tmp_path / "second", "env=particle/simple_adversary", *frozen)
    assert exported(tmp_path / "second", tmp_path / "out") == 0
    assert exported(run, tmp_path / "own") == 0
    weights = [tmp_path / name / "adversary" / "weights.safetensors" for name in ("out", "own")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_exporting_again_replaces_exports_and_nothing_else(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert exported(run, tmp_path) == 0
    assert exported(run, tmp_path) == 0
    note = tmp_path / "adversary" / "note.txt"
    note.write_text("mine")
    assert exported(run, tmp_path) == 2
    assert "exists and is no export" in capsys.readouterr().err
    assert note.read_text() == "mine"
    assert not list(tmp_path.glob(".writing*"))


def test_teams_of_another_export_are_not_mixed_in(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train(tmp_path / "second", "env=particle/simple_spread", "algo=ippo")
    out = tmp_path / "out"
    assert exported(run, out) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert exported(tmp_path / "second", out) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{out / 'adversary'} is a team of another export, and a player would act with both" in line
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert exported(tmp_path / "second", out, "--team", "agent") == 2


def test_teams_of_a_run_can_be_exported_one_by_one(tmp_path: Path):
    train(tmp_path / "run", "env=particle/simple_tag", "algo=ippo")
    assert exported(tmp_path / "run", tmp_path / "out", "--team", "adversary") == 0
    assert exported(tmp_path / "run", tmp_path / "out", "--team", "agent", "--checkpoint", "last") == 0
    names = {x.name for x in (tmp_path / "out").iterdir()}
    assert names == {"adversary", "agent", "coterie_player.mjs", "coterie_player.py"}


def test_files_that_no_export_wrote_are_kept(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "coterie_player.py").write_text("mine")
    assert exported(run, tmp_path) == 2
    assert "coterie_player.py was not written by an export" in capsys.readouterr().err
    assert [x.name for x in tmp_path.iterdir()] == ["coterie_player.py"]
    (tmp_path / "coterie_player.py").unlink()
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "adversary").symlink_to(target)
    assert exported(run, tmp_path) == 2
    assert list(target.iterdir()) == []


def test_nothing_is_replaced_if_one_team_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    train(tmp_path / "run", "env=particle/simple_tag", "algo=ippo")
    out = tmp_path / "out"
    assert exported(tmp_path / "run", out) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    write_team = export.write_team

    def fail_at_the_second(subject: Any, *arguments: Any) -> Any:
        if subject.team.name == "agent":
            raise OSError(28, "No space left on device")
        return write_team(subject, *arguments)

    monkeypatch.setattr(export, "write_team", fail_at_the_second)
    assert exported(tmp_path / "run", out) == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_folders_of_teams_are_their_names_and_never_paths():
    names = [
        "agent",
        "left wing",
        "ä",
        "../agent",
        ".agent",
        "a/b",
        "A/B",
        "",
        "..",
        "a\\b",
        "a:b",
        "a\nb",
        "x" * 500,
        "Agent",
    ]
    folders = team_folders(names)
    assert [folders[name] for name in names[:3]] == names[:3]
    for folder in folders.values():
        assert folder == Path(folder).name
        assert not folder.startswith(".")
        assert not set(folder) & set('\\/:*?"<>|\n')
        assert len(folder) < 130
    assert len({folder.lower() for folder in folders.values()}) == len(names)


def test_tensors_of_names_that_look_alike_have_different_names():
    roles = tuple(
        RoleSpec(name, "team", (name,), spaces.Box(-1, 1, (2,)), spaces.Discrete(2)) for name in ("a b", "a_b", "a.b")
    )
    (team,) = EnvSpec("names", roles, {}).default_teams()
    subject = subject_of(
        team, StochasticPolicy(team, NetworkConfig((4,)), torch.Generator(), torch.device("cpu")), "greedy"
    )
    for entries in (inputs(subject), outputs(subject)):
        names = [entry.name for entry in entries]
        assert len(set(names)) == len(names)
    assert [entry.name for entry in inputs(subject)[:3]] == ["obs.a_b", "obs.a_b_2", "obs.a.b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--team", "agents"], "--team agents: the run .* has no such team. Did you mean 'agent'"),
        (["--team", "agent"], "team 'agent' cannot be exported: it acts at random"),
        (["--checkpoint", "7"], "has no checkpoint '7'"),
    ],
)
def test_mistakes_are_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
):
    import re

    assert exported(run, tmp_path / "out", *options) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert re.search(message, lines[0])
    assert not (tmp_path / "out").exists()


def test_missing_libraries_are_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(onnx_graph, "_LIBRARIES", ("onnx", "no_such_library"))
    assert main(["export", str(run), "--out", str(tmp_path / "out")]) == 2
    assert f"no_such_library is not installed. Install it with: {install_extra('export')}" in capsys.readouterr().err


def test_networks_of_the_user_are_refused_where_they_would_be_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "exported_body.py").write_text(
        "from torch import nn\ndef make(size): return nn.Sequential(nn.Linear(size, 4), nn.Tanh())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    train(tmp_path / "run", "env=matrix/climbing", "algo=ippo", "algo.network=exported_body:make")
    assert exported(tmp_path / "run", tmp_path / "out") == 2
    assert "algo.network, which only a graph can hold. Use --format onnx." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


OWN_BODY = """
from torch import nn

class Body(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, 4)

    def forward(self, x):
        x = self.linear(x).tanh()
        return {result}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("result", "status"), [("x", 0), ("x if x.sum() > 0 else -x", 2)])
def test_networks_of_the_user_are_exported_to_onnx_if_pytorch_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], result: str, status: int
):
    """A branch on data has no graph."""
    module = f"own_body_{status}"
    (tmp_path / f"{module}.py").write_text(OWN_BODY.replace("{result}", result))
    monkeypatch.syspath_prepend(str(tmp_path))
    train(tmp_path / "run", "env=matrix/climbing", "algo=ippo", f"algo.network={module}:Body")
    capsys.readouterr()
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "run"), "--out", str(out)]) == status
    if status:
        (line,) = (x for x in capsys.readouterr().err.strip().splitlines() if x != "exporting team agent")
        assert line.startswith("coterie: team 'agent' cannot be exported to ONNX: ")
        assert line.endswith(f"({module}.py:11)")
        assert not list(out.rglob("*"))
        return
    ours, copy = coterie.load(tmp_path / "run").player(mode="greedy"), load_player(out).Player(out, mode="greedy")
    obs = {"agent": np.ones((2, copy.policies[0].roles[0]["shape"][0]), np.float32)}
    np.testing.assert_array_equal(copy.act(obs)["agent"], ours.act(obs)["agent"])


def test_policies_of_the_user_are_refused():
    class Own(StochasticPolicy):
        pass

    role = RoleSpec("a", "team", ("a",), spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    (team,) = EnvSpec("one", (role,), {}).default_teams()
    policy = Own(team, NetworkConfig((4,)), torch.Generator(), torch.device("cpu"))
    with pytest.raises(UserError, match="its policy Own is code, not one of Coterie's networks"):
        subject_of(team, policy, "greedy")
