"""Messages between Coterie and the helper that speaks to Unity: plain values and arrays, nothing that runs code.

A message is two lengths (uint32 of the head, uint64 of the arrays), a head of JSON, and the arrays' bytes one after the
other. This module knows numpy only: the helper's interpreter has nothing else of Coterie.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import numpy as np

_LENGTHS = struct.Struct("<IQ")
_MOST = 2**34
"""Bytes of arrays that a message may hold; a length beyond it is no message."""


def packed(said: dict, arrays: dict[str, np.ndarray]) -> bytes:
    """A message as bytes. said: what JSON can hold; arrays: of booleans or numbers, by name."""
    form = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"said": said, "arrays": form}).encode()
    body = b"".join(array.tobytes() for array in arrays.values())
    return _LENGTHS.pack(len(head), len(body)) + head + body


def unpacked(read: Callable[[int], bytes]) -> tuple[dict, dict[str, np.ndarray]]:
    """The next message. read: returns as many bytes as it is asked for. ValueError for what is no message."""
    size, length = _LENGTHS.unpack(read(_LENGTHS.size))
    if size > _MOST or length > _MOST:
        raise ValueError("this is no message")
    head = json.loads(read(size))
    body = read(length)
    arrays, at = {}, 0
    for name, kind, shape in head["arrays"]:
        dtype = np.dtype(kind)
        if dtype.kind not in "biuf":
            raise ValueError(f"an array of {dtype} is no message")
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(body, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    return head["said"], arrays
