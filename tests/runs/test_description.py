"""Description of a run for its manifest."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from coterie.runs.description import describe
from coterie.runs.folder import RunFolder

NOW = datetime(2025, 3, 9, 14, 5, 7, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def inside_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_manifest_contains_the_provenance_of_a_run():
    run = RunFolder.create(None, "particle/simple_spread", "mappo", 3, NOW)
    local = NOW.astimezone(timezone(timedelta(hours=2)))
    command = ["coterie", "train", "seed=3"]
    manifest = describe(3, command, threads=2, now=local, env="e", levels={"random": {"agent": -79.0}})
    run.write_manifest(manifest)
    read = run.read_manifest()
    assert read == json.loads(json.dumps(manifest))
    assert read["started"] == "2025-03-09T14:05:07+00:00"
    assert read["command"] == command
    assert (read["seed"], read["threads"], read["env"]) == (3, 2, "e")
    assert read["levels"] == {"random": {"agent": -79.0}}
    assert set(read["versions"]) == {"python", "coterie", "torch", "numpy", "gymnasium", "safetensors"}
    assert read["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert read["hardware"]["cores"] >= 1
    assert read["hardware"]["cpu"]
    assert read["hardware"]["memory_bytes"] is None or read["hardware"]["memory_bytes"] > 1e8
    assert isinstance(read["hardware"]["gpus"], list)
    assert read["git"] == {"revision": None, "modified": False}
    run.close()


def test_the_manifest_contains_the_git_revision():
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)

    git("init")
    Path("file").write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    clean = describe(0, [], None, NOW)["git"]
    assert len(clean["revision"]) == 40
    assert not clean["modified"]
    Path("file").write_text("b")
    assert describe(0, [], None, NOW)["git"] == {"revision": clean["revision"], "modified": True}


def test_the_manifest_has_no_git_revision_if_git_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert describe(0, [], None, NOW)["git"] == {"revision": None, "modified": False}
