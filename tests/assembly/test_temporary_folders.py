from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coterie.assembly.temporary_folders import remove_abandoned, temporary_folder
from coterie.runs.folder import RunFolder

fcntl = pytest.importorskip("fcntl")

_WAITS = """
import sys, time, tempfile
tempfile.tempdir = sys.argv[1]
from coterie.assembly.temporary_folders import temporary_folder
with temporary_folder("some-"):
    print("made", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_removed_at_the_end(place: Path) -> None:
    with temporary_folder("some-") as folder:
        (folder / "file").touch()
        assert folder.parent == place
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_later_and_that_of_a_running_one_is_kept(place: Path) -> None:
    command = [sys.executable, "-c", _WAITS, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        (folder,) = place.iterdir()
        remove_abandoned("some-")
        assert folder.exists()
        process.kill()
    assert folder.exists()
    remove_abandoned("other-")
    assert folder.exists()
    with temporary_folder("some-") as mine:
        assert list(place.iterdir()) == [mine]


def test_a_folder_that_is_not_locked_yet_is_kept(place: Path) -> None:
    (place / "some-1").mkdir()
    (place / "some-1" / "temporary-folder.lock.new").touch()
    remove_abandoned("some-")
    assert (place / "some-1").exists()


def test_a_run_in_a_folder_with_the_same_prefix_is_kept(place: Path) -> None:
    run = RunFolder(place / "some-run")
    run.make(exist_ok=False)
    run.lock()
    run.close()
    remove_abandoned("some-")
    assert run.path.exists()
    (run.path / "lock").rename(run.path / "temporary-folder.lock")
    remove_abandoned("some-")
    assert not run.path.exists()
