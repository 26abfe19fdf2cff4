"""The checkpoints of a run: nested tensors and plain values in folders, written atomically and never unpickled.

A checkpoint is a folder of three files:

    state.safetensors   all tensors, keyed by their path in the nested state
    state.json          format number, metadata and the nested state, with tags for types that JSON lacks
    SHA256SUMS          hashes of the other two files, also readable by `sha256sum -c SHA256SUMS`

Large constant parts of the state (`Segment`s) are written once, to the folder `segments` next to the checkpoints, and
referenced by their hash. Segments that the newest checkpoints reference are kept. The best and the numbered checkpoints
serve to load policies and do not keep segments.

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
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import safetensors.torch
from torch import Tensor

from coterie.core import strict_json
from coterie.core.errors import UserError
from coterie.core.files import LARGEST_LOG, disk_error, read_bytes, read_text, sync_folder, write_bytes, write_text
from coterie.core.process import free_host_bytes
from coterie.core.serialize import (
    CorruptError,
    Parts,
    decode,
    encode,
    prune_segments,
    stored_segment,
    verify_segment,
    write_segments,
)
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
        write_segments(path.parent / SEGMENTS, parts.segments.values())
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
            {name: stored_segment(folder, digest) for name, digest in digests.items()},
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
            verify_segment(folder, digest)
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


# ------------------------------------------------------------------------------------------------- checkpoints of a run


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint loaded from disk.

    `warning` is a one-line message if it is not the requested checkpoint, otherwise None.
    """

    path: Path
    steps: int
    state: dict
    metadata: dict
    warning: str | None


@contextlib.contextmanager
def decoding(found: LoadedCheckpoint) -> Iterator[None]:
    """Context that loads the state of a checkpoint into objects. CorruptError if that fails."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CorruptError(
            f"checkpoint {found.path}: does not fit its run ({shorten(repr(error))}). Choose another checkpoint."
        ) from error


def best_pointer(team: str | None = None) -> str:
    """Returns the name of the file that names the best checkpoint of a run, or of one of its teams."""
    return "best" if team is None else f"best-{quote(team, safe=' ')}"


class Checkpoints:
    """Checkpoints of one run: `folder/<steps>/`, and the small files that each name one of them.

    `last` names the last one, `best` the best one, and `best-TEAM` the best one of a team if several teams learn. Each
    checkpoint holds all teams.

    The pointers are text files instead of links, so they survive copying, zip archives and file systems without links.
    Only one process at a time may save; see `RunFolder.lock`.

    Args:
        folder: Folder of the checkpoints.
        keep: Number of recent checkpoints to keep, at least 2, so that a corrupt one has a predecessor. The best
            checkpoints and numbered ones are kept in addition.
    """

    def __init__(self, folder: Path, keep: int = 2):
        if keep < 2:
            raise ValueError(f"keep: {keep}, expected at least 2 (the last checkpoint and its predecessor)")
        self.folder, self.keep = Path(folder), keep

    def save(
        self,
        steps: int,
        state: dict,
        metadata: dict,
        *,
        best: bool = False,
        best_of: Collection[str] = (),
        numbered: bool = False,
    ) -> Path:
        """Writes the checkpoint of `steps`, marks it as the last one and removes checkpoints that are no longer kept.

        Args:
            steps: Environment steps of the run so far.
            state: As in the function `save`.
            metadata: As in the function `save`.
            best: True to mark it as the best checkpoint, which is kept until a better one is saved.
            best_of: Teams of which it is the best checkpoint, each kept until a better one is saved.
            numbered: True to keep it permanently.

        Returns:
            The folder of the checkpoint.

        Raises:
            UserError: If it cannot be written. Earlier checkpoints remain intact.
        """
        path = self.folder / f"{steps:012d}"
        self._clean()
        if numbered:
            write_text(
                self.folder / "numbered", "".join(f"{name}\n" for name in sorted({*self._numbered(), path.name}))
            )
        # Without a best checkpoint, it is marked before it is written. Otherwise a process that is killed in between
        # would leave a checkpoint to resume from whose state, but no file, contains the best result.
        pointers = [*[best_pointer()] * best, *map(best_pointer, best_of)]
        marked_first = [name for name in pointers if self._pointer(name) is None]
        for name in marked_first:
            write_text(self.folder / name, path.name + "\n")
        save(path, state, metadata)
        for name in pointers:
            if name not in marked_first:
                write_text(self.folder / name, path.name + "\n")
        write_text(self.folder / "last", path.name + "\n")
        try:
            self._prune(path.name)
        except OSError as error:
            raise disk_error("to the folder", self.folder, error) from error
        return path

    def all(self) -> list[Path]:
        """Returns the folders of all checkpoints, oldest first."""
        try:
            names = [path for path in self.folder.iterdir() if re.fullmatch(r"\d{12,}", path.name) and path.is_dir()]
        except OSError:
            return []
        return sorted(names, key=lambda path: int(path.name))

    def latest(self, *, segments: bool = True) -> LoadedCheckpoint | None:
        """Returns the last checkpoint, or the newest intact one with a warning, or None if there are no checkpoints.

        Args:
            segments: As in `load`. Resuming a run requires segments, loading its policies does not.

        Raises:
            CorruptError: If no checkpoint is intact.
            UserError: If a newer version of Coterie wrote the last checkpoint.
        """
        return self._first_intact("last", segments)

    def has_best(self, team: str | None = None) -> bool:
        """True if a checkpoint is marked as the best one, or as the best one of a team."""
        return self._pointer(best_pointer(team)) is not None

    def best_steps(self, team: str | None = None) -> int | None:
        """Returns the steps of the best checkpoint, or of that of a team; None if none is marked."""
        name = self._pointer(best_pointer(team))
        return int(name) if name is not None and name.isdecimal() else None

    def teams_with_best(self) -> list[str]:
        """Returns the teams that have a best checkpoint of their own, sorted."""
        return sorted(unquote(path.name.removeprefix("best-")) for path in self.folder.glob("best-*"))

    def load_best(self, team: str | None = None) -> LoadedCheckpoint | None:
        """Returns the best checkpoint, or that of a team, without segments.

        If it is missing or corrupt, it returns the latest with a warning.
        """
        return self._first_intact(best_pointer(team), segments=False)

    def load_steps(self, steps: int) -> LoadedCheckpoint | None:
        """Returns the checkpoint of `steps`, or the nearest before it with a warning, without segments; None without.

        Raises:
            CorruptError: If it is not intact.
        """
        self._refuse_link()
        paths = [path for path in self.all() if int(path.name) <= steps]
        if not paths:
            return None
        path, found = paths[-1], int(paths[-1].name)
        missing = f"there is no checkpoint of {steps:,} steps. Using the nearest before it, of {found:,} steps."
        warning = None if found == steps else missing
        return LoadedCheckpoint(path, found, *load(path, segments=False), warning)

    def _first_intact(self, pointer: str, segments: bool) -> LoadedCheckpoint | None:
        """Returns the first intact checkpoint: the one that the pointer names, then the last, then newest to oldest."""
        self._refuse_link()
        by_name = {path.name: path for path in reversed(self.all())}
        for path in self.folder.glob(".replaced-*"):  # an interrupted replacement leaves the old one intact
            by_name.setdefault(path.name.removeprefix(".replaced-"), path)
        preferred = [name for name in (self._pointer(pointer), self._pointer("last")) if name in by_name]
        problems = [] if self._pointer(pointer) in by_name else [f"no checkpoint is marked as {unquote(pointer)}"]
        for name in dict.fromkeys([*preferred, *by_name]):
            try:
                state, metadata = load(by_name[name], segments=segments)
            except CorruptError as error:
                problems.append(str(error))
                continue
            warning = f"{'; '.join(problems)}. Using the checkpoint of {int(name):,} steps." if problems else None
            return LoadedCheckpoint(by_name[name], int(name), state, metadata, warning=warning)
        if not by_name:
            return None
        if not any(path.exists() for path in by_name.values()):  # a process that trains has replaced them meanwhile
            return self._first_intact(pointer, segments)
        raise CorruptError(f"{self.folder}: no intact checkpoint ({'; '.join(problems[-3:])}). Train again.")

    def _refuse_link(self) -> None:
        if self.folder.is_symlink():
            raise CorruptError(
                f"{self.folder}: a symbolic link, which is not followed. Copy the checkpoints themselves."
            )

    def _pointer(self, name: str) -> str | None:
        """Returns the checkpoint name in a pointer file, or None."""
        try:
            return read_text(self.folder / name).strip() or None
        except (OSError, ValueError):
            return None

    def _numbered(self) -> list[str]:
        return (self._pointer("numbered") or "").split()

    def _clean(self) -> None:
        """Removes what a process left when it was stopped while it wrote or removed a checkpoint."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob(".replaced-*"):
                recover(path.with_name(path.name.removeprefix(".replaced-")))
            for path in (*self.folder.glob(".writing-*"), *self.folder.glob(".removing-*")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise disk_error("to the folder", self.folder, error) from error

    def _prune(self, last: str) -> None:
        """Removes all checkpoints except the newest up to `last`, the best and the numbered ones.

        Checkpoints after `last` are removed as well: they are from before the run was resumed at an earlier step.
        """
        names = [path.name for path in self.all()]
        kept = {
            *[name for name in names if int(name) <= int(last)][-self.keep :],
            *(self._pointer(path.name) for path in self.folder.glob("best*")),
            *self._numbered(),
        }
        for name in names:
            if name not in kept:
                # Renamed first, so that a folder with a checkpoint's name is never incomplete.
                removing = (self.folder / name).rename(self.folder / f".removing-{name}")
                shutil.rmtree(removing)
        newest = [name for name in names if name in kept and int(name) <= int(last)][-self.keep :]
        with contextlib.suppress(ValueError):  # an unreadable checkpoint may reference any segment
            prune_segments(
                self.folder / SEGMENTS, {digest for name in newest for digest in segment_digests(self.folder / name)}
            )
