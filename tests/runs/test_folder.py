"""The folder of a run, and its manifest."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given

from coterie.core import files
from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.runs import folder
from coterie.runs.folder import RunFolder, read_manifest, runs_below
from mutations import FUZZ, assert_one_line, mutated

NOW = datetime(2025, 3, 9, 14, 5, 7, tzinfo=UTC)


@pytest.fixture(autouse=True)
def inside_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def create(path: str | None = None, seed: int = 3) -> RunFolder:
    return RunFolder.create(path, "particle/simple_spread", "mappo", seed, NOW)


def started(path: str | None = None) -> RunFolder:
    """Creates the folder of a started run, with a configuration and a manifest."""
    run = create(path)
    write_text(run.config_path, "algo: mappo\n")
    run.write_manifest({"seed": 3})
    run.close()
    return run


# -------------------------------------------------------------------------------------------------------- creating runs


def test_the_default_folder_contains_environment_algorithm_date_and_seed():
    run = create()
    assert run.path == Path("runs/particle/simple_spread/mappo/20250309-140507-seed3")
    assert run.path.is_dir()
    run.close()


def test_runs_started_in_the_same_second_get_a_suffix():
    runs = [create() for _ in range(3)]
    assert [run.path.name for run in runs] == [
        "20250309-140507-seed3",
        "20250309-140507-seed3-2",
        "20250309-140507-seed3-3",
    ]
    for run in runs:
        run.close()


def test_a_folder_that_contains_a_run_is_refused_with_both_fixes():
    started("mine")
    with pytest.raises(UserError) as caught:
        create("mine")
    assert "Choose another folder, or continue the run with `coterie resume mine`." in str(caught.value)


def test_a_folder_that_contains_other_files_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("dear")
    with pytest.raises(UserError, match=r"^out=mine: already contains files. Choose another folder.$"):
        create("mine")
    assert os.listdir("mine") == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_a_one_line_error(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match=r"^out=mine: is a file. Choose another folder.$"):
        create("mine")
    with pytest.raises(UserError, match=r"^cannot write the run folder mine/run: .*\. Choose another folder\.$"):
        create("mine/run")
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match=r"^cannot write the run folder runs/particle"):
        create()


# -------------------------------------------------------------------------------------------------------- failed starts


def test_a_failed_start_leaves_no_files(tmp_path):
    for path in (None, "a/b/c"):
        run = create(path)
        write_text(run.config_path, "x")
        run.write_manifest({})
        run.metrics_path.touch()
        run.checkpoints_path.mkdir()
        (run.path / "events.out.tfevents.1").write_text("header")
        assert run.remove_if_empty()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json"])
def test_a_start_that_is_interrupted_while_it_writes_a_file_leaves_none(name, tmp_path):
    """A kill leaves the new content beside the file."""
    run = create("a")
    write_text(run.config_path, "x")
    run.write_manifest({})
    (run.path / f".writing-{name}").write_text("half")
    assert run.remove_if_empty()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_removed(tmp_path):
    (tmp_path / "a").mkdir()
    run = create("a")
    write_text(run.config_path, "x")
    assert not run.remove_if_empty()
    assert os.listdir("a") == []
    run = create("a/b/c")
    assert run.remove_if_empty()
    assert os.listdir("a") == []


def test_a_failed_start_is_removed_while_it_is_locked_and_whatever_is_left_of_it_is_one(monkeypatch):
    """Its settings and its lock come last. A process that waits for it does not take it for files of somebody else."""
    run, files = create("a"), []
    write_text(run.config_path, "x")
    run.write_manifest({})
    run.metrics_path.touch()
    unlink = Path.unlink

    def look(path: Path, missing_ok: bool = False) -> None:
        files.append(sorted(os.listdir("a")))
        assert RunFolder(Path("a")).is_in_use() == ("lock" in files[-1])
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    assert run.remove_if_empty()
    states = list(dict.fromkeys(map(tuple, files)))
    assert states == [
        ("config.yaml", "lock", "manifest.json", "metrics.jsonl"),
        ("config.yaml", "lock", "manifest.json"),
        ("config.yaml", "lock"),
        ("lock",),
    ]


def test_only_a_run_that_is_locked_is_in_use():
    run = create("a")
    assert RunFolder(Path("a")).is_in_use()
    run.close()
    assert not RunFolder(Path("a")).is_in_use()
    assert not RunFolder(Path("b")).is_in_use()
    assert not Path("b").exists()


def test_a_run_with_metrics_or_a_checkpoint_or_other_files_is_not_removed():
    run = create("a")
    run.metrics_path.write_text("{}\n")
    assert not run.remove_if_empty()
    assert run.metrics_path.exists()
    run = create("b")
    (run.checkpoints_path / "000000000001").mkdir(parents=True)
    assert not run.remove_if_empty()
    assert run.checkpoints_path.exists()
    run = create("c")
    (run.path / "notes").write_text("mine")
    assert not run.remove_if_empty()
    assert os.listdir("c") == ["notes"]
    assert not run.remove_if_empty()


# --------------------------------------------------------------------------------------------------------- opening runs


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/000000000020"])
def test_a_run_is_opened_by_its_folder_its_checkpoints_folder_or_a_checkpoint(tmp_path, monkeypatch, below):
    run = started("mine")
    (run.checkpoints_path / "000000000020").mkdir(parents=True)
    for path in (Path("mine", below), str(tmp_path / "mine" / below)):
        found = RunFolder.open(path)
        assert found.path.resolve() == tmp_path / "mine"
        assert found.checkpoint == (Path(path) if below.endswith("20") else None)
    monkeypatch.chdir(tmp_path / "mine" / below)
    assert RunFolder.open(".").path.resolve() == tmp_path / "mine"


def test_the_error_for_a_missing_path_suggests_the_closest_run():
    started("runs/first")
    with pytest.raises(UserError) as caught:
        RunFolder.open("runs/frist")
    assert str(caught.value) == "runs/frist: no such run. Did you mean 'runs/first'?"
    with pytest.raises(UserError, match=r"^x/y/z: no such run\. Expected the folder of a run\.$"):
        RunFolder.open("x/y/z")


def test_the_error_for_a_folder_that_is_not_a_run_names_the_missing_files(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match=r"^mine: not a run, it has no config.yaml and manifest.json. Expected"):
        RunFolder.open("mine")
    (tmp_path / "mine" / "config.yaml").write_text("")
    with pytest.raises(UserError, match=r"^mine: not a run, it has no manifest\.json\. Expected the folder"):
        RunFolder.open("mine")
    with pytest.raises(UserError, match=r"^mine/config.yaml: not a run"):
        RunFolder.open("mine/config.yaml")


def test_the_error_for_a_folder_of_runs_lists_some_of_them():
    for i in range(4):
        started(f"runs/a/{i}")
    with pytest.raises(UserError) as caught:
        RunFolder.open("runs")
    expected = "runs: contains several runs. Name one of them: runs/a/0, runs/a/1, runs/a/2, ..."
    assert str(caught.value) == expected
    assert runs_below(Path("runs"), limit=2) == [Path("runs/a/0"), Path("runs/a/1")]
    assert runs_below(Path("runs"), depth=1) == []


# ---------------------------------------------------------------------------------------------------------------- locks


HOLD = """
    import sys, time
    from coterie.runs.folder import RunFolder
    run = RunFolder.open(sys.argv[1])
    run.lock()
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_run_is_locked_until_its_process_is_killed():
    started("mine")
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(HOLD), "mine"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    run = RunFolder.open("mine")
    with pytest.raises(UserError, match=rf"^run mine: in use by process {process.pid} on .*. Wait for it to finish"):
        run.lock()
    process.kill()
    process.wait()
    process.stdout.close()
    run.lock()
    run.lock()
    with pytest.raises(UserError, match=f"in use by process {os.getpid()} on"):
        RunFolder.open("mine").lock()
    run.close()
    run.close()
    RunFolder.open("mine").lock()


def test_a_lock_file_without_a_process_id_still_locks_the_run():
    run = create("mine")
    (run.path / "lock").write_text("[]")
    with pytest.raises(UserError, match=r"in use by another process\. Wait"):
        RunFolder(Path("mine")).lock()
    run.close()


def test_a_forked_worker_does_not_keep_the_lock_of_its_parent():
    run = create("mine")
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()

    def work() -> None:
        ready.set()
        done.wait(30)

    process = context.Process(target=work)
    process.start()
    assert ready.wait(30)
    run.close()
    other = RunFolder(Path("mine"))
    other.lock()
    done.set()
    process.join()
    other.close()
    assert process.exitcode == 0


def test_a_run_can_be_created_on_a_file_system_without_locks(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder.fcntl, "flock", refuse)
    run = create("mine")
    assert run.path.is_dir()
    run.close()


# --------------------------------------------------------------------------------------------------- files and manifest


def test_written_files_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_size))
    files.write_bytes(tmp_path / "file", b"12345")
    assert flushed == [5]
    write_text(tmp_path / "text", "123")
    assert flushed[:2] == [5, 3]
    assert len(flushed) == 3


def test_an_unreadable_manifest_is_a_one_line_error():
    run = started("mine")
    run.manifest_path.write_text("{")
    with pytest.raises(UserError, match=r"^mine/manifest.json: cannot be read"):
        RunFolder.open("mine").read_manifest()


# ------------------------------------------------------------------------------------------------------------- manifest


MANIFEST = {
    "started": "2026-01-01",
    "command": ["coterie", "train"],
    "seed": 3,
    "versions": {"coterie": "0.2.0"},
    "env": "e",
    "random": {"a": -1.5},
    "levels": {"random": {"a": -1.5}},
    "environment": {"version": "1"},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"random": [1]}, "random=[1]: expected a mapping in braces"),
        ({"levels": {"random": {"a": "x"}}}, "levels.random.a=x: expected a number"),
        ({"versions": None}, "versions=null: expected a mapping in braces"),
        ({"seed": "x"}, "seed=x: expected an integer"),
        ({"env": 1}, "env=1: expected text"),
    ],
)
def test_entries_of_another_type_are_refused(change, reason, tmp_path: Path):
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(MANIFEST))
    assert read_manifest(file) == MANIFEST
    file.write_text(json.dumps(MANIFEST | change))
    with pytest.raises(
        UserError, match=rf"manifest\.json: cannot be read \({re.escape(reason)}\)\. Restore it from a backup"
    ):
        read_manifest(file)


@pytest.mark.slow
@FUZZ
@given(content=mutated(json.dumps(MANIFEST).encode()))
def test_mutated_manifests_are_read_or_refused_in_one_line(content, tmp_path: Path):
    (tmp_path / "config.yaml").touch()
    (tmp_path / "manifest.json").write_bytes(content)
    try:
        RunFolder.open(tmp_path).read_manifest()
    except UserError as error:
        assert_one_line(str(error))
