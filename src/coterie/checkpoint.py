"""Checkpoints: a nest of tensors and plain values on disk, whole or not at all, and never unpickled.

A checkpoint is a folder of three files:

    state.safetensors   every tensor, under the path that it has in the nest
    state.json          format number, metadata, and the nest with a tag where JSON has no type of its own
    SHA256SUMS          the hashes of the two; `sha256sum -c SHA256SUMS` checks them as well

Large parts of a state that never change, `Segment`s, lie beside all checkpoints in the folder `segments`, written once;
a checkpoint names them by their hashes. Those that the newest checkpoints name are kept: the best and the numbered
ones, which are there for their policies, do not keep segments.

A checkpoint is written in a hidden folder beside its place, flushed to the disk and renamed, so that a folder that
bears a checkpoint's name is complete whenever the process or the machine stops.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from coterie import segments as pieces
from coterie.errors import UserError
from coterie.nest import Parts, compare, decode, encode
from coterie.rundir import disk_error, sync_folder, write_bytes, write_text
from coterie.segments import CorruptError

__all__ = ["FORMAT", "Checkpoints", "CorruptError", "Found", "compare", "load", "save"]

FORMAT = 1
"""Number of the format written; later numbers are refused, earlier ones are read."""

_TENSORS, _TREE, _SUMS = "state.safetensors", "state.json", "SHA256SUMS"
_SEGMENTS = "segments"

# ------------------------------------------------------------------------------------------------------ one checkpoint


def save(path: Path, state: dict, metadata: dict) -> None:
    """Writes the checkpoint folder `path`, in the place of one that is there.

    state, metadata: nests of dict, list, tuple, tensors, numpy arrays and numbers, str, int, float, bool, None and
    segments; tensors may be of any type, device and layout in memory. Segments that are not on the disk yet are written
    into the folder `segments` beside `path`. TypeError, with the place, for anything else; UserError, one line,
    if it cannot be written. Whatever happens, the content of `path` is the old one or the new one, whole.
    """
    path = Path(path)
    beside, aside = path.with_name(f".writing-{path.name}"), path.with_name(f".replaced-{path.name}")
    parts = Parts()
    tree = {"format": FORMAT, "metadata": encode(metadata, "metadata", parts), "state": encode(state, "", parts)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pieces.write(path.parent / _SEGMENTS, parts.segments.values())
        if parts.segments:
            tree["segments"] = {name: segment.written.digest for name, segment in parts.segments.items()}
        contents = {
            _TENSORS: safetensors.torch.save(_apart(parts.tensors)),
            _TREE: json.dumps(tree, allow_nan=False).encode(),
        }
        contents[_SUMS] = "".join(f"{_hash(content)}  {name}\n" for name, content in contents.items()).encode()
        _recover(path)
        _remove(beside)
        beside.mkdir()
        for name, content in contents.items():
            write_bytes(beside / name, content)
        sync_folder(beside)
        if path.exists():
            path.rename(aside)  # a folder cannot be renamed over one that holds files
        beside.rename(path)
        sync_folder(path.parent)
        _remove(aside)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _recover(path)
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error("the checkpoint", path, error) from error
        raise


def load(path: Path, *, segments: bool = True) -> tuple[dict, dict]:
    """State and metadata of a checkpoint, its tensors on the CPU; `save` of them would write the same bytes.

    segments: False leaves the segments that it names unread and unchecked, which loading a policy does not need.
    CorruptError if a file is missing, cut or changed; UserError if a newer version of coterie wrote it.
    """
    path = Path(path)
    files = _verified(path)
    try:
        tree = json.loads(files[_TREE])
        number = tree["format"]
        if not isinstance(number, int) or number < 1:
            raise CorruptError(f"the checkpoint {path} has the format number {number!r}, expected 1 to {FORMAT}")
        if number > FORMAT:
            raise UserError(
                f"the checkpoint {path} has format {number}, this version of coterie reads up to {FORMAT}; update it"
            )
        folder = path.parent / _SEGMENTS
        named = tree.get("segments", {})
        if segments:
            _verify_segments(path, folder, named.values())
        parts = Parts(
            safetensors.torch.load(files[_TENSORS]),
            {name: pieces.stored(folder, digest) for name, digest in named.items()},
        )
        return decode(tree["state"], parts), decode(tree["metadata"], parts)
    except (KeyError, ValueError, TypeError, SafetensorError) as error:
        raise CorruptError(
            f"the checkpoint {path} cannot be understood: {error!r}; choose another checkpoint"
        ) from error


def _verified(path: Path) -> dict[str, bytes]:
    """The content of every file that the hashes name, each as it was written. CorruptError else."""
    try:
        lines = (path / _SUMS).read_bytes().decode().split("\n")
        pairs = [re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line) for line in lines[:-1]]
        hashes: dict[str, str] = {pair[2]: pair[1] for pair in pairs}  # type: ignore[index]
        files = {name: (path / name).read_bytes() for name in hashes}
    except OSError as error:
        missing = Path(error.filename or "").name
        raise CorruptError(f"the checkpoint {path} has no readable {missing} ({error.strerror})") from error
    except (TypeError, ValueError):
        raise CorruptError(f"the checkpoint {path} is corrupt: {_SUMS} does not list hashes") from None
    if not {_TENSORS, _TREE} <= files.keys():
        raise CorruptError(f"the checkpoint {path} is corrupt: {_SUMS} does not list all files")
    for name, content in files.items():
        if _hash(content) != hashes[name]:
            raise CorruptError(f"the checkpoint {path} is corrupt: {name} is not what was written")
    if lines[-1]:
        raise CorruptError(f"the checkpoint {path} is corrupt: {_SUMS} is cut")
    return files


def _verify_segments(path: Path, folder: Path, digests: Iterable[str]) -> None:
    """CorruptError if a segment that the checkpoint `path` names is not in `folder` as it was written."""
    try:
        for digest in digests:
            pieces.verify(folder, digest)
    except CorruptError as error:
        raise CorruptError(f"the checkpoint {path} is not whole: {error}") from error


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _recover(path: Path) -> None:
    """Mends a replacement that was interrupted: what was set aside is put back, or removed if it was replaced."""
    aside = path.with_name(f".replaced-{path.name}")
    if aside.exists():
        if path.exists():
            _remove(aside)
        else:
            aside.rename(path)


def _remove(path: Path) -> None:
    """Removes a hidden folder, if it is there."""
    if path.exists():
        shutil.rmtree(path)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with memory of their own each, which safetensors asks for."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        shared = place in seen or tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        apart[name] = tensor.clone() if shared else tensor
        seen.add(place)
    return apart


# ----------------------------------------------------------------------------------------------- checkpoints of a run


@dataclass(frozen=True)
class Found:
    """A checkpoint read from disk; warning: one line if it is not the one that was asked for, else None."""

    path: Path
    steps: int
    state: dict
    metadata: dict
    warning: str | None


class Checkpoints:
    """The checkpoints of one run: `folder/<steps>/`, with the small files `last` and `best` that name one each.

    keep: how many of the newest stay, at least two, so that a corrupt one has one before it. The best one and those
    saved with `numbered` stay too. Pointers are files that hold a name, not links: they live through copying, zip
    archives and file systems without links. One process at a time may save; see `RunDir.lock`.
    """

    def __init__(self, folder: Path, keep: int = 2):
        if keep < 2:
            raise ValueError(f"keep is {keep}, expected at least 2: the last checkpoint and the one before")
        self.folder, self.keep = Path(folder), keep

    def save(self, steps: int, state: dict, metadata: dict, *, best: bool = False, numbered: bool = False) -> Path:
        """Writes the checkpoint of `steps`, makes it the last one, and removes those that are not kept any more.

        best: it is the best so far, and stays until a better one; numbered: it stays for good. Returns its folder.
        UserError as `save` (the function) if it cannot be written; those before are intact then.
        """
        path = self.folder / f"{steps:012d}"
        self._clean()
        if numbered:
            write_text(
                self.folder / "numbered", "".join(f"{name}\n" for name in sorted({*self._numbered(), path.name}))
            )
        save(path, state, metadata)
        if best:
            write_text(self.folder / "best", path.name + "\n")
        write_text(self.folder / "last", path.name + "\n")
        try:
            self._prune(path.name)
        except OSError as error:
            raise disk_error("to the folder", self.folder, error) from error
        return path

    def all(self) -> list[Path]:
        """The folders of all checkpoints, oldest first."""
        try:
            names = [path for path in self.folder.iterdir() if re.fullmatch(r"\d{12,}", path.name) and path.is_dir()]
        except OSError:
            return []
        return sorted(names, key=lambda path: int(path.name))

    def latest(self, *, segments: bool = True) -> Found | None:
        """The last checkpoint, or the newest before it that is whole, with a warning; None if there never was one.

        segments: see `load`; going on with a run needs them, its policies do not.

        CorruptError if none is whole; UserError if a newer version of coterie wrote the last one.
        """
        return self._first_whole("last", segments)

    def load_best(self) -> Found | None:
        """The best checkpoint, for its policies; the latest, with a warning, if there is none or it is corrupt."""
        return self._first_whole("best", segments=False)

    def load_steps(self, steps: int) -> Found | None:
        """The checkpoint of so many steps, for its policies; None if there is none. CorruptError if it is not whole."""
        path = self.folder / f"{steps:012d}"
        return Found(path, steps, *load(path, segments=False), None) if path.is_dir() else None

    def _first_whole(self, pointer: str, segments: bool) -> Found | None:
        """The checkpoint that the pointer names, else the last one, else the newest that can be loaded."""
        there = {path.name: path for path in reversed(self.all())}
        for path in self.folder.glob(".replaced-*"):  # a replacement was interrupted: the old one is still whole
            there.setdefault(path.name.removeprefix(".replaced-"), path)
        named = [name for name in (self._pointer(pointer), self._pointer("last")) if name in there]
        wrong: list[str] = [] if self._pointer(pointer) in there else [f"no checkpoint is marked as the {pointer} one"]
        for name in dict.fromkeys([*named, *there]):
            try:
                state, metadata = load(there[name], segments=segments)
            except CorruptError as error:
                wrong.append(str(error))
                continue
            warning = f"{'; '.join(wrong)}; the one of {int(name):,} steps is used" if wrong else None
            return Found(there[name], int(name), state, metadata, warning)
        if not there:
            return None
        raise CorruptError(f"no checkpoint in {self.folder} is whole: {'; '.join(wrong[-3:])}; train again")

    def _pointer(self, name: str) -> str | None:
        """The checkpoint's name in a pointer file, None if there is none."""
        try:
            return (self.folder / name).read_text().strip() or None
        except (OSError, ValueError):
            return None

    def _numbered(self) -> list[str]:
        return (self._pointer("numbered") or "").split()

    def _clean(self) -> None:
        """Removes what a process left behind that was stopped while it wrote or removed a checkpoint."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob(".replaced-*"):
                _recover(path.with_name(path.name.removeprefix(".replaced-")))
            for path in (*self.folder.glob(".writing-*"), *self.folder.glob(".removing-*")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise disk_error("to the folder", self.folder, error) from error

    def _prune(self, last: str) -> None:
        """Removes all but the newest up to `last`, the best and the numbered ones.

        Those past `last` go too: they belong to a future that resuming from an earlier checkpoint has left.
        """
        names = [path.name for path in self.all()]
        kept = {
            *[name for name in names if int(name) <= int(last)][-self.keep :],
            self._pointer("best"),
            *self._numbered(),
        }
        for name in names:
            if name not in kept:
                # Renamed first, so that a folder with a checkpoint's name is never a half of one.
                doomed = (self.folder / name).rename(self.folder / f".removing-{name}")
                shutil.rmtree(doomed)
        newest = [name for name in names if name in kept and int(name) <= int(last)][-self.keep :]
        with contextlib.suppress(ValueError):  # what cannot be read may name any of them
            pieces.prune(self.folder / _SEGMENTS, {digest for name in newest for digest in self._named(name)})

    def _named(self, name: str) -> list[str]:
        """Hashes of the segments that a checkpoint names. ValueError if it cannot be read."""
        try:
            return list(json.loads((self.folder / name / _TREE).read_bytes()).get("segments", {}).values())
        except OSError as error:
            raise ValueError(str(error)) from error
