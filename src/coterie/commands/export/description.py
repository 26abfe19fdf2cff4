"""The content of `policy.json`: roles, spaces, tensors and origin of an exported team."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from gymnasium import spaces

from coterie.commands.export.portable.policy_files import FORMAT_VERSION
from coterie.commands.export.signature import inputs, noise_parts, outputs
from coterie.commands.export.subject import Subject, sensors
from coterie.commands.masked_observations import accepts_booleans
from coterie.core.specs import RoleSpec

Entry = dict[str, Any]


def describe(subject: Subject, backend: str, provenance: Entry) -> Entry:
    """Returns everything but the entries of the format, checksums and `sha256`."""
    return {
        "format": "coterie-policy",
        "version": FORMAT_VERSION,
        "backend": backend,
        "team": subject.team.name,
        "agents": list(subject.team.agents),
        "roles": [_role(subject, role) for role in subject.team.roles],
        "mode": subject.mode,
        "inputs": [asdict(entry) for entry in inputs(subject)],
        "outputs": [asdict(entry) for entry in outputs(subject)],
        "provenance": provenance,
    }


def seal(info: Entry, folder: Path, names: list[str]) -> str:
    """Returns the text of `policy.json`, with the checksums of the files in `folder` and of itself."""
    files = {}
    for name in names:
        content = (folder / name).read_bytes()
        files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    info = json.loads(json.dumps({**info, "files": files}))
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode()).hexdigest()
    return json.dumps({**info, "sha256": digest}, indent=2) + "\n"


def provenance(manifest: Entry, run: str, checkpoint: Entry, algorithm: str) -> Entry:
    """Returns the origin of the weights: run, checkpoint, algorithm, environment, seed and versions."""
    return {
        "run": run,
        "env": manifest.get("env"),
        "algo": algorithm,
        "seed": manifest.get("seed"),
        "started": manifest.get("started"),
        "git": manifest.get("git"),
        "trained_with": manifest.get("versions"),
        "checkpoint": checkpoint,
        "exported": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "exported_with": {name: metadata.version(name) for name in ("coterie", "torch", "numpy")},
    }


def _role(subject: Subject, role: RoleSpec) -> Entry:
    parts = {
        name: {"shape": list(box.shape), "dtype": str(box.dtype), "booleans": accepts_booleans(box)}
        for name, box in sensors(role.observation_space).items()
    }
    single = parts.pop("", {"shape": [], "dtype": "float32", "booleans": False})
    return {
        "name": role.name,
        "agents": list(role.agents),
        **single,
        "sensors": parts or None,
        "choices": list(role.action.choices),
        "continuous": role.action.continuous,
        "action": _space(role.action_space),
        "noise": [{"kind": kind, "size": size} for kind, size in noise_parts(subject, role)],
    }


def _space(space: spaces.Space) -> Entry:
    """An action space, as the player converts actions to it. Bounds of integers are exact."""
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "parts": [_space(part) for part in space.spaces]}
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "keys": list(space.spaces), "parts": [_space(part) for part in space.spaces.values()]}
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    shape, dtype = list(space.shape or ()), str(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multi_binary", "shape": shape, "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        start = [int(x) for x in space.start.reshape(-1)]
        nvec = [int(x) for x in space.nvec.reshape(-1)]
        return {"kind": "multi_discrete", "nvec": nvec, "start": start, "shape": shape, "dtype": dtype}
    assert isinstance(space, spaces.Box)
    low, high = space.low.reshape(-1).tolist(), space.high.reshape(-1).tolist()
    return {"kind": "box", "low": low, "high": high, "shape": shape, "dtype": dtype}
