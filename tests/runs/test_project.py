"""Provenance of a run: patch of the user's project, installed packages."""

from __future__ import annotations

import hashlib
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from coterie.runs import project
from coterie.runs.project import PATCH_BYTES, installed_versions, project_record


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


def test_a_repository_without_commits_has_no_patch(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "new.py").touch()
    record = project_record([tmp_path])
    assert record == {"folder": str(tmp_path), "revision": None, "untracked": ["new.py"], "untracked_more": 0}


def test_without_a_repository_or_git_there_is_no_record(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project_record([tmp_path]) is None
    monkeypatch.setattr(project, "_GIT", ("no-such-program",))
    assert project_record([repository]) is None


def test_installed_versions_are_those_of_the_packages() -> None:
    found = installed_versions()
    assert list(found) == sorted(found)
    for name in ("torch", "numpy", "pydantic-core", "coterie"):
        assert found[name] == metadata.version(name)
