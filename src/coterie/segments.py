"""Segments: large pieces of a state that never change once they are made, so that a checkpoint need only name them.

On disk a segment is the file `<hash of its content>.safetensors` in the folder `segments` beside the checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from coterie import rundir
from coterie.errors import UserError

Pieces = dict[str, Tensor]


class CorruptError(UserError):
    """A checkpoint that is incomplete or was changed since it was written."""


@dataclass
class Written:
    """Under which hash a segment lies on disk; None until it was written. Its owner and those who save it share it."""

    digest: str | None = None


class Segment:
    """A piece of a state that stays as it is for good: tensors by name, read when they are wanted.

    `read` may fail once the owner of the state has gone on and thrown the piece away; a deep copy holds its own.
    """

    def __init__(self, read: Callable[[], Pieces], written: Written):
        self.read, self.written = read, written

    def __deepcopy__(self, memo: dict[int, Any]) -> Segment:
        held = {name: tensor.clone() for name, tensor in self.read().items()}
        return Segment(lambda: held, Written(self.written.digest))


def write(folder: Path, segments: Iterable[Segment]) -> None:
    """Writes those that are not in `folder` yet, each whole or not at all, and notes their hashes. OSError else."""
    fresh = False
    for segment in segments:
        if segment.written.digest is not None and _file(folder, segment.written.digest).exists():
            continue
        content = safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in segment.read().items()})
        digest = hashlib.sha256(content).hexdigest()
        if not folder.is_dir():
            folder.mkdir()
        beside = folder / f".writing-{digest}"
        try:
            rundir.write_bytes(beside, content)
            os.replace(beside, _file(folder, digest))
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        segment.written.digest = digest
        fresh = True
    if fresh:
        rundir.sync_folder(folder)


def stored(folder: Path, digest: str) -> Segment:
    """The segment that was written to `folder` under the hash; its file is opened when it is read."""
    return Segment(partial(_read, folder, digest), Written(digest))


def verify(folder: Path, digest: str) -> bytes:
    """The content of a segment's file. CorruptError, which names it, if it is missing or not what was written."""
    file = _file(folder, digest)
    try:
        content = file.read_bytes()
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
    return {name: tensors[name].clone() for name in sorted(tensors)}  # memory of its own each, as saving asks for


def _file(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.safetensors"


def prune(folder: Path, named: set[str]) -> None:
    """Removes segments whose hashes are not in `named`, and what an interrupted `write` left behind."""
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        whole = re.fullmatch(r"([0-9a-f]{64})\.safetensors", file.name)
        if (whole and whole[1] not in named) or file.name.startswith(".writing-"):
            file.unlink()
