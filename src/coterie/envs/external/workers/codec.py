"""Encoding of messages between trainer and workers as JSON and safetensors, which cannot execute code."""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import load, save

from coterie.core.serialize import Parts, decode, encode

_HEADER = 8  # bytes that hold the length of the JSON part


def pack(value: Any) -> bytes:
    """Encodes nested plain values and tensors.

    Raises:
        TypeError: For values of other types.
    """
    parts = Parts()
    text = json.dumps(encode(value, "", parts)).encode()
    return len(text).to_bytes(_HEADER, "big") + text + save(parts.tensors)


def unpack(content: bytes) -> Any:
    """Decodes what `pack` encoded."""
    stop = _HEADER + int.from_bytes(content[:_HEADER], "big")
    return decode(json.loads(content[_HEADER:stop]), Parts(load(content[stop:])))
