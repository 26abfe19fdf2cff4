"""Segments: large immutable parts of a state, which checkpoints reference instead of copying.

On disk, a segment is the file `<hash of its content>.safetensors` in the folder `segments` next to the checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from coterie.core import files
from coterie.core.errors import UserError
from coterie.core.files import read_bytes
from coterie.core.free_memory import free_host_bytes

Pieces = dict[str, Tensor]


class CorruptError(UserError):
    """A checkpoint that is incomplete or was modified after it was written."""


@dataclass
class Written:
    """Hash of a segment on disk; None until it is written. Shared by its owner and by checkpoints."""

    digest: str | None = None


class Segment:
    """An immutable part of a state: tensors by name, read on demand.

    `read` may fail after the owner of the state has discarded the part; a deep copy holds its own tensors.
    """

    def __init__(self, read: Callable[[], Pieces], written: Written):
        self.read, self.written = read, written

    def __deepcopy__(self, memo: dict[int, Any]) -> Segment:
        held = {name: tensor.clone() for name, tensor in self.read().items()}
        return Segment(lambda: held, Written(self.written.digest))


def write(folder: Path, segments: Iterable[Segment]) -> None:
    """Writes the segments that are not in `folder` yet, each atomically, and stores their hashes.

    Raises:
        OSError: If a segment cannot be written.
    """
    fresh = False
    for segment in segments:
        if segment.written.digest is not None and _file(folder, segment.written.digest).exists():
            continue
        content = safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in segment.read().items()})
        digest = hashlib.sha256(content).hexdigest()
        if not folder.is_dir():
            folder.mkdir()
        temporary = folder / f".writing-{digest}"
        try:
            files.write_bytes(temporary, content)
            os.replace(temporary, _file(folder, digest))
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        segment.written.digest = digest
        fresh = True
    if fresh:
        files.sync_folder(folder)


def stored(folder: Path, digest: str) -> Segment:
    """Returns the segment with this hash in `folder`; its file is opened when it is read."""
    return Segment(partial(_read, folder, digest), Written(digest))


def verify(folder: Path, digest: str) -> bytes:
    """Returns the content of a segment's file.

    Raises:
        CorruptError: If the file is missing or was modified.
    """
    file = _file(folder, digest)
    try:
        content = read_bytes(file, free_host_bytes() or sys.maxsize)
    except OSError as error:
        raise CorruptError(
            f"the segment {file} is missing or cannot be read ({error.strerror}); copy the folder `segments` together "
            "with the checkpoints"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise CorruptError(f"the segment {file} is not what was written")
    return content


def _read(folder: Path, digest: str) -> Pieces:
    tensors = safetensors.torch.load(verify(folder, digest))
    return {name: tensors[name].clone() for name in sorted(tensors)}  # saving needs separate memory


def _file(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.safetensors"


def prune(folder: Path, named: set[str]) -> None:
    """Removes segments whose hashes are not in `named`, and files of an interrupted `write`."""
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        whole = re.fullmatch(r"([0-9a-f]{64})\.safetensors", file.name)
        if (whole and whole[1] not in named) or file.name.startswith(".writing-"):
            file.unlink()
