"""The manifest of a new run, and the lines on teams at its start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.__main__ import main
from coterie.runs import description
from tinyruns import shorten_checks, tiny

WORLD = """
from relay import Relay

def make():
    return Relay()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the module of an environment that has changed since its commit."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "patched_world.py").write_text(WORLD)
    for command in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "first")):
        identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)
    (folder / "patched_world.py").write_text(WORLD + "# changed\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    monkeypatch.setattr(description, "_TIMEOUT", 120.0)  # git may wait long where other tests keep the cores busy
    monkeypatch.delitem(sys.modules, "patched_world", raising=False)  # that of another test
    return folder


def settings(*more: str) -> list[str]:
    return tiny("env=patched_world:make", "algo=ippo", "progress=lines", *more)


def test_a_run_records_its_project_packages_and_spaces_and_prints_its_teams(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *settings("env.teams=shared", f"out={tmp_path / 'run'}"), "--json"]) == 0
    printed = capfd.readouterr()
    text = (tmp_path / "run" / "manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["project"]["folder"] == str(project)
    assert "+# changed" in manifest["project"]["patch"]
    assert manifest["installed"]["torch"] == manifest["versions"]["torch"]
    assert manifest["teams"]["all"]["roles"]["carrier"]["agents"] == ["carrier_0", "carrier_1"]
    assert manifest["teams"]["all"]["roles"]["medic"]["action_space"] == "Discrete(4)"
    assert "hunter2" not in text
    reason = (
        "env.teams=shared; agents learn from the mean of its rewards, value decomposition and MA-POCA from their sum"
    )
    assert f"1 team: all, because {reason}" in printed.out + printed.err
    assert "team all: role scout (scout_0) observes Box(-1.0, 1.0, (2,), float32) and acts in Discrete(2)" in (
        printed.out + printed.err
    )
    report = json.loads(printed.out)
    assert (report["roles"], report["teams_because"]) == (manifest["teams"], reason)


def test_a_manifest_of_another_type_is_refused(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *settings("log.git_patch=false", f"out={tmp_path / 'run'}")]) == 0
    file = tmp_path / "run" / "manifest.json"
    manifest = json.loads(file.read_text())
    assert "project" not in manifest
    old = {key: manifest[key] for key in manifest if key not in ("teams", "teams_because", "installed")}
    file.write_text(json.dumps(old))  # as written before
    assert main(["resume", str(tmp_path / "run"), "steps=120", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["roles"] == {}
    file.write_text(json.dumps(manifest | {"installed": ["torch"]}))
    assert main(["resume", str(tmp_path / "run"), "steps=160"]) == 2
    assert "cannot be read (installed=[torch]: expected a mapping in braces)" in capfd.readouterr().err


def test_check_env_prints_the_teams(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_checks(monkeypatch)
    assert main(["check-env", "relay:Relay", "--json"]) in (0, 1)
    summary = json.loads(capfd.readouterr().out)["summary"]
    assert summary["teams"] == (
        "3: scout, carrier, medic, because roles of different names have separate rewards; env.teams=shared makes one "
        "team of them"
    )
    assert summary["role carrier"].startswith("carrier_0, carrier_1, of team carrier; observes Box(-1.0, 1.0, (4,)")
