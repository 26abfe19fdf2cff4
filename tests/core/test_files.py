"""Files that are replaced atomically."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from coterie.__main__ import main
from coterie.core.errors import UserError
from coterie.core.files import write_text
from coterie.imitation.demonstrations import Demos
from tinyruns import tiny_run

FOLDERS = ["", ".", "..", "/", "folder/..", "folder"]
"""Paths that are not those of a file."""


def write_demonstrations(path: Path) -> None:
    Demos("x/y", {}, (), {"a": torch.zeros(1)}).write(path)


@pytest.fixture(autouse=True)
def _in_a_folder_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("step", ["write_bytes", "os.replace"])
def test_an_interrupted_replacement_leaves_the_old_file_alone(
    step: str, interruption: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "folder" / "file"
    file.write_text("old")

    def interrupt(*_: object) -> None:
        (file.parent / ".writing-file").touch()
        raise interruption

    monkeypatch.setattr(f"coterie.core.files.{step}", interrupt)
    with pytest.raises(UserError if interruption is OSError else interruption):
        write_text(file, "new")
    assert [path.name for path in file.parent.iterdir()] == ["file"]
    assert file.read_text() == "old"


@pytest.mark.parametrize("path", FOLDERS)
@pytest.mark.parametrize("write", [lambda path: write_text(path, "x"), write_demonstrations])
def test_a_folder_is_not_replaced_by_a_file(path: str, write: Callable[[Path], None], tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot write the .*it is a folder\. Name a file"):
        write(Path(path))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path):
    for text in ("one", "other"):
        write_text(tmp_path / "folder" / "file", text)
        assert (tmp_path / "folder" / "file").read_text() == text
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["folder", ".."])
def test_options_that_name_a_file_refuse_a_folder(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tiny_run(tmp_path / "folder" / "run", "algo=ippo", "env=matrix/climbing")
    baseline = ("--algo", "random", "--env", "matrix/climbing")
    run = str(tmp_path / "folder" / "run")
    for words in (
        *(("compare", run, option) for option in ("--markdown", "--latex", "--csv", "--json", "--marl-eval", "--plot")),
        ("record", *baseline, "--episodes", "1", "--out"),
        ("reproduce", "papoudakis2021", "--markdown"),
        ("play", *baseline, "--video"),
        ("play", *baseline, "--record"),
    ):
        assert main([*words, path]) == 2, words
        assert capsys.readouterr().err.splitlines()[-1].startswith("coterie: ")
