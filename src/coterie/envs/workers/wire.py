"""States as bytes between a trainer and its workers: JSON with tags and tensors beside it, nothing that runs code."""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import load, save

from coterie.nest import Parts, decode, encode

_HEAD = 8  # bytes of the length of the JSON part


def pack(value: Any) -> bytes:
    """A nest of plain values and tensors as bytes. TypeError for anything else in it."""
    parts = Parts()
    said = json.dumps(encode(value, "", parts)).encode()
    return len(said).to_bytes(_HEAD, "big") + said + save(parts.tensors)


def unpack(content: bytes) -> Any:
    """What `pack` made bytes of."""
    stop = _HEAD + int.from_bytes(content[:_HEAD], "big")
    return decode(json.loads(content[_HEAD:stop]), Parts(load(content[stop:])))
