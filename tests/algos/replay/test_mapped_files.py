"""Tensors in files: their sizes, their independence, and the files that remain."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path

import pytest
import torch

from coterie.algos.replay.memory import MappedFiles
from coterie.core.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("dtype", "preallocate"), [(torch.bool, True), (torch.int16, False), (torch.float32, True), (torch.int64, False)]
)
def test_a_file_has_the_bytes_of_its_tensor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, preallocate: bool
):
    """Systems without `posix_fallocate` write holes. The file is looked at before its name is removed."""
    if not preallocate:
        monkeypatch.delattr(os, "posix_fallocate")
    sizes, unlink = [], Path.unlink

    def spy(path: Path) -> None:
        sizes.append(path.stat().st_size)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", spy)
    found = MappedFiles().zeros((3, 5), dtype)
    assert sizes == [15 * dtype.itemsize]
    assert (found.shape, found.dtype) == ((3, 5), dtype)
    assert not found.any()


def test_tensors_are_independent_and_keep_what_is_written(folder: Path):
    files = MappedFiles()
    one, other, single = files.zeros((2, 3), torch.float32), files.zeros((4,), torch.int64), files.zeros((), torch.bool)
    one += 1.5
    other[1:] = torch.tensor([7, 8, 9])
    single.fill_(True)
    assert one.tolist() == [[1.5] * 3] * 2
    assert other.tolist() == [0, 7, 8, 9]
    assert single.item() is True
    assert not files.zeros((4,), torch.int64).any()


def test_files_have_names_of_their_own_while_they_have_names(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """As on systems on which an open file cannot be removed. The folder is removed with the files."""
    names = []
    monkeypatch.setattr(Path, "unlink", lambda path: names.append(path.name))
    files = MappedFiles()
    tensors = [files.zeros((2,), torch.float32) for _ in range(3)]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    assert [tensor[0].item() for tensor in tensors] == [0, 1, 2]
    assert len(set(names)) == 3
    (place,) = folder.iterdir()
    assert place.name.startswith("coterie-replay-")
    assert sorted(path.name for path in place.iterdir()) == sorted(names)
    assert [(place / name).read_bytes() for name in names] == [tensor.numpy().tobytes() for tensor in tensors]
    del files
    gc.collect()
    assert list(folder.iterdir()) == []


def test_an_empty_tensor_has_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "unlink", None)
    files = MappedFiles()
    found = files.zeros((4, 0, 2), torch.int16)
    assert (found.shape, found.dtype) == ((4, 0, 2), torch.int16)
    (place,) = folder.iterdir()
    assert list(place.iterdir()) == []


def test_a_folder_that_is_gone_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch):
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    files = MappedFiles()
    (place,) = folder.iterdir()
    place.rmdir()
    del files
    gc.collect()
    assert errors == []


def test_a_full_disk_is_an_error_of_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(UserError, match=r"^cannot write the replay buffer in the temporary folder .*No space left"):
        MappedFiles().zeros((2,), torch.float32)
