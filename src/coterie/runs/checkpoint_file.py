"""A checkpoint: nested tensors and plain values in a folder, written atomically and never unpickled.

The folder has three files:

    state.safetensors   all tensors, keyed by their path in the nested state
    state.json          format number, metadata and the nested state, with tags for types that JSON lacks
    SHA256SUMS          hashes of the other two files, also readable by `sha256sum -c SHA256SUMS`

Large constant parts of the state (`Segment`s) are written once, to the folder `segments` next to the checkpoints, and
referenced by their hash.

A checkpoint is written to a hidden folder, flushed to disk and renamed. A folder with a checkpoint's name is therefore
always complete, even after a crash of the process or the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import safetensors.torch
from torch import Tensor

from coterie.core import segments as segment_files
from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import LARGEST_LOG, disk_error, read_bytes, sync_folder, write_bytes
from coterie.core.free_memory import free_host_bytes
from coterie.core.segments import CorruptError
from coterie.core.serialize import Parts, decode, encode
from coterie.core.text import shorten

FORMAT = 1
"""Version of the format that is written. Newer versions are rejected, older ones can be read."""

SEGMENTS = "segments"
"""Folder of the segments, next to the checkpoints."""

_TENSORS, _TREE, _SUMS = "state.safetensors", "state.json", "SHA256SUMS"


def save(path: Path, state: dict, metadata: dict) -> None:
    """Writes the checkpoint folder `path` atomically, replacing an existing one.

    Args:
        path: Checkpoint folder. New segments are written to the folder `segments` next to it.
        state: Nested dicts, lists and tuples of tensors (any dtype, device and memory layout), NumPy arrays and
            numbers,
            str, int, float, bool, None and segments.
        metadata: Nested values of the same types.

    Raises:
        TypeError: If a value has another type. The message contains its place.
        UserError: If the checkpoint cannot be written. `path` then keeps its previous content.
    """
    path = Path(path)
    writing, replaced = path.with_name(f".writing-{path.name}"), path.with_name(f".replaced-{path.name}")
    parts = Parts()
    tree = {"format": FORMAT, "metadata": encode(metadata, "metadata", parts), "state": encode(state, "", parts)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        segment_files.write(path.parent / SEGMENTS, parts.segments.values())
        if parts.segments:
            tree["segments"] = {name: segment.written.digest for name, segment in parts.segments.items()}
        contents = {
            _TENSORS: safetensors.torch.save(_unshare(parts.tensors)),
            _TREE: json.dumps(tree, allow_nan=False).encode(),
        }
        contents[_SUMS] = "".join(f"{_hash(content)}  {name}\n" for name, content in contents.items()).encode()
        recover(path)
        _remove(writing)
        writing.mkdir()
        for name, content in contents.items():
            write_bytes(writing / name, content)
        sync_folder(writing)
        if path.exists():
            path.rename(replaced)  # a folder cannot be renamed to one that contains files
        writing.rename(path)
        sync_folder(path.parent)
        _remove(replaced)
    except BaseException as error:
        with contextlib.suppress(OSError):
            recover(path)
        shutil.rmtree(writing, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error("the checkpoint", path, error) from error
        raise


def load(path: Path, *, segments: bool = True) -> tuple[dict, dict]:
    """Returns the state and metadata of a checkpoint, with tensors on the CPU.

    Saving them again writes the same bytes.

    Args:
        path: Checkpoint folder.
        segments: False to skip reading and verifying segments, which are not needed to load a policy.

    Raises:
        CorruptError: If a file is missing, truncated or modified.
        UserError: If a newer version of Coterie wrote the checkpoint.
    """
    path = Path(path)
    files = _verified(path)
    try:
        tree = strict_json.parse(files[_TREE])
        number = tree["format"]
        if not isinstance(number, int) or number < 1:
            raise CorruptError(f"checkpoint {path}: format number {number!r}, expected 1 to {FORMAT}")
        if number > FORMAT:
            raise UserError(
                f"checkpoint {path}: format {number}, but this version of Coterie reads up to {FORMAT}. Update Coterie."
            )
        folder = path.parent / SEGMENTS
        digests = tree.get("segments", {})
        if segments:
            _verify_segments(path, folder, digests.values())
        parts = Parts(
            safetensors.torch.load(files[_TENSORS]),
            {name: segment_files.stored(folder, digest) for name, digest in digests.items()},
        )
        return decode(tree["state"], parts), decode(tree["metadata"], parts)
    except UserError:
        raise
    except Exception as error:  # the tree may ask for any conversion of any tensor
        raise CorruptError(
            f"checkpoint {path}: cannot be decoded ({shorten(repr(error))}). Choose another checkpoint."
        ) from error


def digest(path: Path) -> str:
    """Returns the SHA-256 of a checkpoint's list of hashes, which identifies its content."""
    return _hash(read_bytes(path / _SUMS))


def _verified(path: Path) -> dict[str, bytes]:
    """Returns the content of all files in SHA256SUMS. Raises CorruptError if one does not match its hash."""
    try:
        if path.is_symlink():
            raise CorruptError(f"checkpoint {path}: a symbolic link, which is not followed")
        lines = read_bytes(path / _SUMS).decode().split("\n")
        pairs = [re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line) for line in lines[:-1]]
        hashes: dict[str, str] = {pair[2]: pair[1] for pair in pairs}  # type: ignore[index]
        files = {name: read_bytes(path / name, free_host_bytes() or sys.maxsize) for name in hashes}
    except OSError as error:
        missing = Path(error.filename or "").name
        raise CorruptError(f"checkpoint {path}: no readable {missing} ({error.strerror})") from error
    except (TypeError, ValueError):
        raise CorruptError(f"checkpoint {path}: corrupt, {_SUMS} contains lines that are not hashes") from None
    if not {_TENSORS, _TREE} <= files.keys():
        raise CorruptError(f"checkpoint {path}: corrupt, {_SUMS} does not list all files")
    for name, content in files.items():
        if _hash(content) != hashes[name]:
            raise CorruptError(f"checkpoint {path}: corrupt, {name} does not match its hash")
    if lines[-1]:
        raise CorruptError(f"checkpoint {path}: corrupt, {_SUMS} is truncated")
    return files


def _verify_segments(path: Path, folder: Path, digests: Iterable[str]) -> None:
    """Raises CorruptError if a segment of the checkpoint `path` is missing from `folder` or modified."""
    try:
        for digest in digests:
            segment_files.verify(folder, digest)
    except CorruptError as error:
        raise CorruptError(f"checkpoint {path}: incomplete, {error}") from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def recover(path: Path) -> None:
    """Repairs an interrupted replacement: restores the old folder, or removes it if the new one is in place."""
    replaced = path.with_name(f".replaced-{path.name}")
    if replaced.exists():
        if path.exists():
            _remove(replaced)
        else:
            replaced.rename(path)


def _remove(path: Path) -> None:
    """Removes a folder if it exists, or a link in its place."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _unshare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with separate storage, as safetensors requires, copied only if necessary."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        shared = pointer in seen or tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        separate[name] = tensor.clone() if shared else tensor
        seen.add(pointer)
    return separate


def segment_digests(path: Path) -> list[str]:
    """Returns the hashes of the segments that a checkpoint refers to. Raises ValueError if it cannot be read."""
    try:
        return list(strict_json.parse(read_bytes(path / _TREE, LARGEST_LOG)).get("segments", {}).values())
    except (OSError, AttributeError) as error:
        raise ValueError(str(error)) from error
