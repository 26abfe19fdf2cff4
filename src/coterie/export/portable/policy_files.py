"""Files of an export: checksums, and tensors without pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

FORMAT_VERSION = 1
"""Version of `policy.json` that this player reads."""
_MAX_DESCRIPTION, _MAX_FILE = 1 << 24, 1 << 31


class PolicyError(ValueError):
    """A damaged export, or observations that do not fit it."""


def read_description(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_DESCRIPTION:
            raise PolicyError(f"{path}: more than {_MAX_DESCRIPTION} bytes")
        info = json.loads(path.read_bytes())
        digest = info.pop("sha256")
        intact = digest == hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()
        known = info["format"] == "coterie-policy"
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise error if isinstance(error, PolicyError) else PolicyError(f"{path}: damaged, export again") from None
    if not intact or not known:
        raise PolicyError(f"{path}: changed or truncated after the export, export again")
    if info["version"] != FORMAT_VERSION:
        raise PolicyError(f"{path}: version {info['version']} of the format, this player reads {FORMAT_VERSION}")
    return info


def read_file(folder: Path, name: str, entry: dict[str, Any]) -> bytes:
    path = folder / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise PolicyError(f"{folder}: the file name '{name}' is not a plain one")
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size == entry["bytes"] and size < _MAX_FILE else b""
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise PolicyError(f"{path}: changed or truncated after the export, export again")
    return content


def read_tensors(content: bytes) -> dict[str, np.ndarray]:
    """Returns the tensors of a safetensors file: an eight-byte length, a JSON header, and plain numbers."""
    try:
        length = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]
        found = {}
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                part = data[begin:end]
                found[name] = np.frombuffer(part, {"F32": "<f4"}[entry["dtype"]]).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyError(f"weights.safetensors: damaged ({error}), export again") from None
    return found
