"""Messages between Coterie and the Unity helper: plain values and arrays, which cannot execute code.

A message consists of two lengths (uint32 of the header, uint64 of the arrays), a JSON header, and the bytes of the
arrays one after the other. This module imports NumPy only, because the helper's interpreter does not have Coterie.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import numpy as np

_LENGTHS = struct.Struct("<IQ")
_MAX_BYTES = 2**34
"""Largest valid length of header or arrays."""


def pack_message(content: dict, arrays: dict[str, np.ndarray]) -> bytes:
    """Encodes a message: `content` as JSON, and numeric or boolean arrays by name."""
    layout = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({"content": content, "arrays": layout}).encode()
    body = b"".join(array.tobytes() for array in arrays.values())
    return _LENGTHS.pack(len(header), len(body)) + header + body


def unpack_message(read: Callable[[int], bytes]) -> tuple[dict, dict[str, np.ndarray]]:
    """Decodes the next message. `read` returns as many bytes as requested. ValueError for invalid data."""
    size, length = _LENGTHS.unpack(read(_LENGTHS.size))
    if size > _MAX_BYTES or length > _MAX_BYTES:
        raise ValueError("this is not a valid message")
    header = json.loads(read(size))
    body = read(length)
    arrays, at = {}, 0
    for name, kind, shape in header["arrays"]:
        dtype = np.dtype(kind)
        if dtype.kind not in "biuf":
            raise ValueError(f"a message cannot contain an array of {dtype}")
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(body, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    return header["content"], arrays
