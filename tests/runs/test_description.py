"""Description of a run for its manifest."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from coterie.runs import description
from coterie.runs.description import PATCH_BYTES, describe, project_record
from coterie.runs.folder import RunFolder

NOW = datetime(2025, 3, 9, 14, 5, 7, tzinfo=UTC)


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


# --------------------------------------------------------------------------------------------------- the project's code


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of `world.py` and `.env`."""
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "code" / "world.py").write_text("size = 3\n")
    (folder / ".env").write_text("KEY=old\n")
    (folder / ".gitignore").write_text("ignored\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_the_patch_restores_the_changes(repository: Path, tmp_path: Path) -> None:
    world = repository / "code" / "world.py"
    world.write_text("size = 4\n")
    (repository / "new.py").write_text("x = 1\n")
    (repository / "ignored").write_text("")
    record = project_record([tmp_path, repository / "code"])
    assert record is not None
    assert record["folder"] == str(repository)
    assert record["revision"] == git(repository, "rev-parse", "HEAD").strip()
    assert (record["untracked"], record["untracked_more"]) == (["new.py"], 0)
    assert record["patch_bytes"] == len(record["patch"])
    assert record["patch_sha256"] == hashlib.sha256(record["patch"].encode()).hexdigest()
    assert record["patch_truncated"] is False
    git(repository, "checkout", "--quiet", ".")
    (tmp_path / "patch").write_text(record["patch"])
    git(repository, "apply", str(tmp_path / "patch"))
    assert world.read_text() == "size = 4\n"


def test_a_long_patch_is_truncated_and_marked_with_its_hash(repository: Path) -> None:
    (repository / "code" / "world.py").write_text("a line\n" * PATCH_BYTES)
    whole = subprocess.run(
        ["git", "diff", "--no-renames", "HEAD"], cwd=repository, capture_output=True, check=True
    ).stdout
    record = project_record([repository])
    assert record is not None
    assert record["patch_truncated"] is True
    assert record["patch"].encode() == whole[:PATCH_BYTES]
    assert record["patch_bytes"] == len(whole)
    assert record["patch_sha256"] == hashlib.sha256(whole).hexdigest()


def test_files_that_may_hold_secrets_are_named_and_not_recorded(repository: Path) -> None:
    (repository / ".env").write_text("KEY=hunter2\n")
    record = project_record([repository])
    assert record is not None
    assert record["omitted"] == [".env"]
    assert record["patch"] == ""


def test_programs_that_a_repository_configures_are_not_started(repository: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    for key in ("diff.external", "core.fsmonitor", "diff.x.textconv"):
        git(repository, "config", key, f"touch {started} #")
    (repository / ".gitattributes").write_text("*.py diff=x\n")
    (repository / "code" / "world.py").write_text("size = 4\n")
    record = project_record([repository])
    assert record is not None
    assert "+size = 4" in record["patch"]
    assert not started.exists()


def test_without_a_repository_or_git_there_is_no_record(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project_record([tmp_path]) is None
    monkeypatch.setattr(description, "_GIT", ("no-such-program",))
    assert project_record([repository]) is None
