"""Serialization of nested states to tagged JSON, separate tensors and segments, and comparison of two states.

Segments are large immutable parts of a state, which checkpoints reference instead of copying. On disk, a segment is the
file `<hash of its content>.safetensors` in the folder `segments` next to the checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from coterie.core import files
from coterie.core.errors import UserError
from coterie.core.files import read_bytes
from coterie.core.process import free_host_bytes

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


def write_segments(folder: Path, segments: Iterable[Segment]) -> None:
    """Writes the segments that are not in `folder` yet, each atomically, and stores their hashes.

    Raises:
        OSError: If a segment cannot be written.
    """
    fresh = False
    for segment in segments:
        if segment.written.digest is not None and _segment_file(folder, segment.written.digest).exists():
            continue
        content = safetensors.torch.save({name: x.detach().cpu().contiguous() for name, x in segment.read().items()})
        digest = hashlib.sha256(content).hexdigest()
        if not folder.is_dir():
            folder.mkdir()
        temporary = folder / f".writing-{digest}"
        try:
            files.write_bytes(temporary, content)
            os.replace(temporary, _segment_file(folder, digest))
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        segment.written.digest = digest
        fresh = True
    if fresh:
        files.sync_folder(folder)


def stored_segment(folder: Path, digest: str) -> Segment:
    """Returns the segment with this hash in `folder`; its file is opened when it is read."""
    return Segment(partial(_read_segment, folder, digest), Written(digest))


def verify_segment(folder: Path, digest: str) -> bytes:
    """Returns the content of a segment's file.

    Raises:
        CorruptError: If the file is missing or was modified.
    """
    file = _segment_file(folder, digest)
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


def _read_segment(folder: Path, digest: str) -> Pieces:
    tensors = safetensors.torch.load(verify_segment(folder, digest))
    return {name: tensors[name].clone() for name in sorted(tensors)}  # saving needs separate memory


def _segment_file(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.safetensors"


def prune_segments(folder: Path, named: set[str]) -> None:
    """Removes segments whose hashes are not in `named`, and files of an interrupted `write_segments`."""
    if not folder.is_dir():
        return
    for file in folder.iterdir():
        whole = re.fullmatch(r"([0-9a-f]{64})\.safetensors", file.name)
        if (whole and whole[1] not in named) or file.name.startswith(".writing-"):
            file.unlink()


NATIVE = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}
"""Types that every version of safetensors supports; others are stored as bytes."""


@dataclass
class Parts:
    """Tensors and segments that the JSON of a state refers to, by unique name."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    segments: dict[str, Segment] = field(default_factory=dict)


def encode(value: Any, place: str, parts: Parts) -> Any:
    """Returns `value` as JSON and adds its tensors and segments to `parts`.

    A JSON object is always a tag with its content.

    Raises:
        TypeError: For a value of an unsupported type; the message names its place.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return encode(value.item(), place, parts)
    if isinstance(value, int):
        # Long integers are slow to convert to decimal, and Python limits the number of digits.
        return int(value) if abs(value) < 1 << 63 else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return _encode_tensor(value, place, parts.tensors)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": _encode_tensor(torch.from_numpy(np.array(value)), place, parts.tensors)}
    if isinstance(value, dict):
        if all(type(key) is str for key in value):
            return {"dict": {key: encode(part, f"{place}/{key}", parts) for key, part in value.items()}}
        keys = [encode(key, f"{place}, key {key!r}", Parts()) for key in value]
        return {"items": [[k, encode(value[key], f"{place}/{key}", parts)] for k, key in zip(keys, value, strict=True)]}
    if isinstance(value, (list, tuple)):
        listed = [encode(part, f"{place}/{i}", parts) for i, part in enumerate(value)]
        return listed if isinstance(value, list) else {"tuple": listed}
    if isinstance(value, Segment):
        name = _free_name(place, parts.segments)
        parts.segments[name] = value
        return {"segment": name}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at {place.lstrip('/') or 'its root'}")


def _encode_tensor(tensor: Tensor, place: str, tensors: dict[str, Tensor]) -> dict:
    """Adds a tensor to `tensors` under a unique name and returns its tag."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"a checkpoint holds dense tensors, but {place.lstrip('/')} is {tensor.layout}")
    name = _free_name(place, tensors)
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in NATIVE:
        tensors[name] = tensor
        return {"tensor": name}
    dense = tensor.clone(memory_format=torch.contiguous_format)  # one number may have any stride
    tensors[name] = dense.reshape(-1).view(torch.uint8)
    return {"tensor": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}


def _free_name(place: str, taken: dict[str, Any]) -> str:
    """Unique name for `place`; two places can have the same text: {"a/b": x, "a": {"b": y}}."""
    base = name = place.lstrip("/") or "tensor"
    count = 1
    while name in taken or name == "__metadata__":
        count += 1
        name = f"{base}#{count}"
    return name


def decode(value: Any, parts: Parts) -> Any:
    """Inverse of `encode`.

    Raises:
        KeyError, ValueError: If `value` is not a result of `encode`.
    """
    if isinstance(value, list):
        return [decode(part, parts) for part in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    content = value[tag]
    if tag == "tensor":
        # Cloned into aligned memory: results of vectorized code can depend on the alignment of operands.
        tensor = parts.tensors[content].clone()
        return tensor.view(getattr(torch, value["dtype"])).reshape(value["shape"]) if "dtype" in value else tensor
    if tag == "segment":
        return parts.segments[content]
    if tag == "array":
        return decode(content, parts).numpy()
    if tag == "dict":
        return {key: decode(part, parts) for key, part in content.items()}
    if tag == "items":
        return {decode(key, parts): decode(part, parts) for key, part in content}
    if tag == "tuple":
        return tuple(decode(part, parts) for part in content)
    if tag == "int":
        return int(content, 16)
    if tag == "float":
        return float(content)
    raise ValueError(f"unknown tag '{tag}'")


def compare(expected: dict, found: dict) -> list[str]:
    """Returns a line for every leaf that is missing, unexpected, or of another shape or type.

    Numbers and strings are compared by type only. The result is empty if `found` can be loaded instead of `expected`.
    """
    here, there = _leaves(expected, ""), _leaves(found, "")
    return [
        f"{place}: expected {here.get(place, 'nothing')}, found {there.get(place, 'nothing')}"
        for place in dict.fromkeys([*here, *there])
        if here.get(place) != there.get(place)
    ]


def _leaves(value: Any, place: str) -> dict[str, str]:
    """Leaves by place: type and shape of tensors, type names of other values."""
    if isinstance(value, (dict, list, tuple)) and value:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {at: what for key, part in parts for at, what in _leaves(part, f"{place}/{key}").items()}
    if isinstance(value, (Tensor, np.ndarray)):
        what = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    elif isinstance(value, (dict, list, tuple)):
        what = f"empty {type(value).__name__}"
    else:
        what = "nothing" if value is None else type(value).__name__
    return {place.lstrip("/"): what}
