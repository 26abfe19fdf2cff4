"""Damage to files: bits, bytes, lines, values, encodings, whole files, and the members of archives.

A checkpoint's check sums would find almost all of it. Half of the time they are therefore computed again afterwards, so
that what reads the files has to find it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_values import HOSTILE, JSON_VALUES

SUMS = "SHA256SUMS"
IGNORED = {".png", ".svg", ".log", ".gif", ".py"}
"""Suffixes of files that no command reads."""

_PLACEHOLDER = "@@replaced@@"
_YAML_VALUE = re.compile(r"^(\s*(?:- )?[\w./-]+:[ ]+)([^#\n]+)", re.MULTILINE)


def _bits(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.randint(1, 8)):
        changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def _bytes(data: bytes, generator: random.Random) -> bytes:
    at, count = generator.randrange(len(data)), generator.randint(1, 32)
    return data[:at] + generator.randbytes(count) + data[at + generator.randint(0, count) :]


def _truncated(data: bytes, generator: random.Random) -> bytes:
    return data[: generator.randrange(len(data))]


def _grown(data: bytes, generator: random.Random) -> bytes:
    return data + generator.choice((b"\n", b"\x00" * 100, b"{}", data, generator.randbytes(50), b"x: 1\n", b"\n\n{"))


def _line_removed(data: bytes, generator: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[generator.randrange(len(lines))]
    return b"".join(lines)


def _line_repeated(data: bytes, generator: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    lines.insert(generator.randrange(len(lines)), generator.choice(lines))
    return b"".join(lines)


def _lines_shuffled(data: bytes, generator: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    generator.shuffle(lines)
    return b"".join(lines)


def _recoded(data: bytes, generator: random.Random) -> bytes:
    text = data.decode("latin-1")
    return generator.choice(
        (
            text.encode("utf-16"),
            text.encode("utf-8-sig"),
            text.encode("utf-32"),
            b"\xff\xfe" + data,
            data.replace(b"\n", b"\r\n"),
            data.replace(b"\n", b"\r"),
            data.replace(b"a", b"\xe9"),
            data.replace(b"e", b"\x00", 1),
        )
    )


def _nested(data: bytes, generator: random.Random) -> bytes:
    whole = generator.choice(
        (b"[" * 100_000, b'{"a":' * 50_000, b"- " * 2_000, b"{a: " * 2_000, b"[" * 999 + b"]" * 999)
    )
    return whole if generator.random() < 0.5 else data + b"\nx: " + whole  # fmt: skip


def _other(data: bytes, generator: random.Random) -> bytes:
    return generator.choice(
        (b"{}", b"[]", b"null", b"0", b'"x"', b"\n", b"\x00", b"{", b"a: 1\n", b"\x89PNG\r\n", b"PK\x03\x04", b"<html>")
    )


def _value(data: bytes, generator: random.Random) -> bytes:
    """Replaces a value of JSON, of a line of JSON, of the header of safetensors, or of YAML; else bytes."""
    if len(data) > 8 and (header := _safetensors_header(data)) is not None:
        changed = _json_changed(header, generator).encode("utf-8", "replace")
        length = len(changed) if generator.random() < 0.9 else generator.randrange(2**63)
        return struct.pack("<Q", length) + changed + data[8 + struct.unpack("<Q", data[:8])[0] :]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _bytes(data, generator)
    try:
        return _json_changed(json.loads(text), generator).encode("utf-8", "replace")
    except ValueError:
        pass
    lines = text.splitlines(keepends=True)
    at = generator.randrange(len(lines))
    try:
        lines[at] = _json_changed(json.loads(lines[at]), generator) + "\n"
        return "".join(lines).encode("utf-8", "replace")
    except ValueError:
        pass
    found = list(_YAML_VALUE.finditer(text))
    if not found:
        return _bytes(data, generator)
    match = generator.choice(found)
    value = generator.choice(HOSTILE)
    return (text[: match.start(2)] + value + text[match.end(2) :]).encode("utf-8", "surrogateescape")


def _safetensors_header(data: bytes) -> Any:
    length = struct.unpack("<Q", data[:8])[0]
    if length > len(data) - 8:
        return None
    try:
        return json.loads(data[8 : 8 + length])
    except ValueError:
        return None


def _json_changed(tree: Any, generator: random.Random) -> str:
    """Returns JSON in which a value of `tree` was replaced or removed, or a key was renamed or repeated."""
    places = list(_places(tree))
    if not places:
        return generator.choice(JSON_VALUES)
    parent, key = generator.choice(places)
    action = generator.choice(("replace", "replace", "replace", "remove", "rename", "repeat"))
    if action == "remove":
        del parent[key]
    elif action == "rename" and isinstance(parent, dict):
        parent[generator.choice(("", "x", f"{key}x", "\u65e5", "x" * 2000))] = parent.pop(key)
    elif action == "repeat":
        if isinstance(parent, list):
            parent.append(parent[key])
        else:
            parent[_PLACEHOLDER] = parent[key]
            return json.dumps(tree).replace(json.dumps(_PLACEHOLDER), json.dumps(key))
    else:
        parent[key] = _PLACEHOLDER
    return json.dumps(tree).replace(json.dumps(_PLACEHOLDER), generator.choice(JSON_VALUES))


def _places(tree: Any) -> Any:
    """Yields every container of nested JSON with each of its keys."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


def _member(data: bytes, generator: random.Random) -> bytes:
    """Damages, removes or renames a member of a zip archive; bytes of other files."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError):
        return _value(data, generator)
    readable = [name for name in members if not name.endswith(".webp")]
    name = generator.choice(readable if generator.random() < 0.8 else list(members))
    content = members.pop(name)
    action = generator.random()
    if action < 0.8 and content:
        members[name] = generator.choice((_value, _value, _value, _line_removed, _truncated, _bits))(content, generator)
    elif action < 0.9:
        members[generator.choice(("../x", "/x", "x" * 300, "header.json/x"))] = content
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bits flipped": _bits,
    "bytes replaced": _bytes,
    "truncated": _truncated,
    "bytes appended": _grown,
    "line removed": _line_removed,
    "line repeated": _line_repeated,
    "lines shuffled": _lines_shuffled,
    "other encoding": _recoded,
    "deep nesting": _nested,
    "value replaced": _value,
    "member or value replaced": _member,
    "other content": _other,
    "emptied": lambda data, generator: b"",
}
"""Changes of a file's bytes, by name."""

REPLACED, MISSING, FOLDER, LOOP = "replaced by another file", "removed", "a folder instead", "a link to itself"
KINDS = (*DAMAGES, *("value replaced",) * 8, *("member or value replaced",) * 2, REPLACED, MISSING, FOLDER, LOOP)
"""Kinds of damage, as often as they are drawn."""


def files_of(path: Path) -> list[Path]:
    """Returns the files of an artifact that commands read, in order."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and file.suffix not in IGNORED)


def damage(file: Path, kind: str, generator: random.Random, others: list[Path]) -> None:
    """Damages a file.

    Args:
        file: The file.
        kind: One of `KINDS`.
        generator: Random numbers.
        others: Files that may replace it.
    """
    data = file.read_bytes()
    if kind in DAMAGES:
        file.write_bytes(DAMAGES[kind](data, generator) if data else b"\x00")
    elif kind == REPLACED:
        shutil.copyfile(generator.choice(others), file)
    else:
        file.unlink()
        if kind == FOLDER:
            file.mkdir()
        elif kind == LOOP:
            file.symlink_to(file.name)
    sums = file.parent / SUMS
    if file.name != SUMS and sums.is_file() and file.is_file() and generator.random() < 0.5:
        _sum_again(sums)


def _sum_again(sums: Path) -> None:
    """Computes the check sums of a checkpoint again."""
    names = [line.split(maxsplit=1)[1] for line in sums.read_text().splitlines()]
    present = [name for name in names if os.path.isfile(sums.parent / name)]
    sums.write_text("".join(f"{digest(sums.parent / name)}  {name}\n" for name in present))


def digest(file: Path) -> str:
    """Returns the check sum of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
