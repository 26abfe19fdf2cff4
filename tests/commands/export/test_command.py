"""The command `coterie export`."""

import json
from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.commands.export import onnx_graph
from coterie.core.installation import install_extra
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
    assert sorted(x.name for x in (tmp_path / "out").iterdir()) == ["adversary", "coterie_player.py"]


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
    assert "algo.network, which is code. Use --format onnx." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
