"""Pipes, devices, links and huge files in place of the files of a run: no command waits or fills memory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from coterie.__main__ import main
from tinyruns import stop_at, train

SECONDS = 20  # the slowest command needs about one

HUGE = 40 * 2**30


def pipe(path: Path, content: bytes) -> None:
    os.mkfifo(path)


def endless(path: Path, content: bytes) -> None:
    path.symlink_to("/dev/zero")


def link(path: Path, content: bytes) -> None:
    target = path.parent / "elsewhere"
    target.write_bytes(content)
    path.symlink_to(target)


def loop(path: Path, content: bytes) -> None:
    path.symlink_to(path.name)


def sparse(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.truncate(HUGE)


def folder(path: Path, content: bytes) -> None:
    path.mkdir()


def listening(path: Path, content: bytes) -> None:
    home = os.getcwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(path.parent)  # names of sockets are short
        try:
            server.bind(path.name)
        finally:
            os.chdir(home)


KINDS: list[Callable[[Path, bytes], None]] = [pipe, endless, link, loop, sparse, folder, listening]
FILES = [
    *("config.yaml", "manifest.json", "metrics.jsonl", "lock", "checkpoints/last", "checkpoints/best"),
    *("checkpoints/numbered", "newest/SHA256SUMS", "newest/state.json", "newest/tensors.safetensors"),
]
COMMANDS = [
    ["ps", "{parent}"],
    ["evaluate", "{run}", "--episodes", "2"],
    ["report", "{parent}", "--out", "{out}"],
    ["resume", "{run}"],
]


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"the command did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unfinished run with at least two checkpoints, and a neighbor."""
    parent = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 150)
        train(parent / "run", "steps=400", "checkpoint.every=40", "threads=1")
    shutil.copytree(parent / "run", parent / "neighbor")
    return parent


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_special_files_end_in_one_line(
    kind: Callable[[Path, bytes], None], original: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kinds and files take turns, and so do the commands: each meets several of the others."""
    for number, name in list(enumerate(FILES))[KINDS.index(kind) % 2 :: 2]:
        command = COMMANDS[(number // 2 + KINDS.index(kind)) % len(COMMANDS)]
        parent = tmp_path / str(number)
        shutil.copytree(original, parent)
        run = parent / "run"
        newest = (run / "checkpoints" / "last").read_text().strip()
        file = run / name.replace("newest", f"checkpoints/{newest}")
        content = file.read_bytes() if file.exists() else b""
        file.unlink(missing_ok=True)
        kind(file, content)
        capfd.readouterr()
        words = [word.format(run=run, parent=parent, out=tmp_path / f"report{number}.html") for word in command]
        with alarm(SECONDS):
            code = main(words)
        output = capfd.readouterr()
        assert "Traceback" not in output.err, (name, output.err)
        if command[0] == "ps" or code == 0:
            assert code == 0, (name, output)
            assert command[0] != "ps" or "neighbor" in output.out, (name, output)
        else:  # a report without one of the runs that it was to compare would mislead
            assert output.err.strip().splitlines()[-1].startswith("coterie: "), (name, output.err)
            assert str(parent) in output.err, (name, output.err)
        shutil.rmtree(parent)


@pytest.mark.parametrize("command", ["evaluate", "resume"])
@pytest.mark.parametrize("name", ["checkpoints", "newest"])
def test_linked_folders_of_checkpoints_are_not_followed(
    name: str, command: str, original: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(original / "run", run)
    newest = (run / "checkpoints" / "last").read_text().strip()
    folder = run / name.replace("newest", f"checkpoints/{newest}")
    target = tmp_path / "elsewhere"
    folder.rename(target)
    folder.symlink_to(target)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    code = main([command, str(run), *(["--episodes", "2"] if command == "evaluate" else [])])
    output = capfd.readouterr().err
    assert "symbolic link" in output
    assert "Traceback" not in output
    assert code == (2 if name == "checkpoints" else 0)  # else an earlier checkpoint is used
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before
