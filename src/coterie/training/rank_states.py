"""State of a run of several ranks: that of rank 0, and for each other rank what is different there.

Networks, optimizers and statistics are equal on all ranks. Environments, hidden states and replay buffers are not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.torch
import torch

from coterie.core.errors import ReportedError
from coterie.core.serialize import Parts, Segment, Written, decode, encode
from coterie.ranks.ranks import Ranks

_RANKS = "ranks"
"""Entry of a checkpoint's state with the differences of ranks 1, 2, ..."""

_SAME = "same as rank 0"
"""Stands for a part of a state that is equal on rank 0."""

State = dict[str, Any]


def pack(state: Any, *, whole: bool = False) -> bytes:
    """Returns a state as bytes. Segments that were packed before are named by their hash only, unless `whole`."""
    parts = Parts()
    tree = encode(state, "", parts)
    tensors, digests = dict(parts.tensors), {}
    for name, segment in parts.segments.items():
        pieces = dict(segment.read()) if whole or not segment.written.digest else {}
        if pieces:
            content = safetensors.torch.save({key: x.detach().cpu().contiguous() for key, x in pieces.items()})
            segment.written.digest = hashlib.sha256(content).hexdigest()
        tensors |= {f"segment {name}/{key}": x for key, x in pieces.items()}
        digests[name] = [segment.written.digest, sorted(pieces)]
    header = json.dumps({"tree": tree, "segments": digests})
    clones = {name: x.detach().cpu().clone().contiguous() for name, x in tensors.items()}
    return safetensors.torch.save(clones, metadata={"state": header})


def unpack(content: bytes) -> Any:
    """Inverse of `pack`."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["state"])
    tensors, segments = safetensors.torch.load(content), {}
    for name, (digest, keys) in header["segments"].items():
        pieces = {key: tensors.pop(f"segment {name}/{key}") for key in keys}
        # One without pieces is in the folder of segments already.
        segments[name] = Segment(lambda pieces=pieces: pieces, Written(None if pieces else digest))
    return decode(header["tree"], Parts(tensors, segments))


class RanksDifferError(ReportedError):
    """Parameters differ between ranks, which must not happen. Exit code 3."""


def join_states(own: State, ranks: Ranks) -> State | None:
    """Returns the state of rank 0 with the differences of the others, on rank 0; None on the others.

    Raises:
        RanksDifferError: If a policy or critic is another than on rank 0.
    """
    if ranks.size == 1:
        return own
    content = json.dumps(_digests(own)).encode() if ranks.is_first else None
    digests = json.loads(ranks.broadcast(content))
    _require_equal_parameters(own, digests, ranks)
    different = b"" if ranks.is_first else pack(_difference(own, digests))
    found = ranks.collect(different)
    if not ranks.is_first:
        return None
    return own | {_RANKS: [unpack(content) for content in found[1:]]}


def _require_equal_parameters(own: State, digests: Any, ranks: Ranks) -> None:
    for team, state in own["algorithms"].items() if "algorithms" in own else ():
        known = _entry(_entry(digests, "algorithms"), team)
        for part in (name for name in ("policy", "critic") if name in state):
            place = _first_difference(state[part], _entry(known, part), part)
            if place is not None:
                raise RanksDifferError(
                    f"rank {ranks.rank}: {place} of team {team} is not that of rank 0. All ranks must take the same "
                    "gradient steps: an algorithm has to use coterie.algos.optimizer.Optimizer."
                )


def _entry(digests: Any, name: str) -> Any:
    """Returns the hashes of an entry of a dictionary, see `_digests`."""
    return next(found for _, key, found in digests["keys"] if key == name)


def _first_difference(value: Any, digests: Any, place: str) -> str | None:
    """Returns the place of the first leaf whose hash is another; None if there is none."""
    if isinstance(value, dict) and isinstance(digests, dict):
        known = {key: found for _, key, found in digests["keys"]}
        parts = ((f"{place}.{key}", x, known.get(str(key))) for key, x in value.items())
    elif isinstance(value, list | tuple) and isinstance(digests, list):
        parts = ((f"{place}[{i}]", x, found) for i, (x, found) in enumerate(zip(value, digests, strict=False)))
    else:
        return None if _digests(value) == digests else place
    return next((found for name, x, known in parts if (found := _first_difference(x, known, name)) is not None), None)


def state_for(state: State, rank: int, size: int) -> State:
    """Returns the part of a checkpoint's state that a rank of `size` reads, in the form of `join_states`."""
    shared = {name: value for name, value in state.items() if name != _RANKS}
    before = num_ranks(state)
    if before == size:
        own = _merged(shared, state[_RANKS][rank - 1]) if rank else shared
    else:  # replay buffers start empty
        algorithms = {n: a | {"buffer": None} if "buffer" in a else a for n, a in shared["algorithms"].items()}
        own = shared | {"algorithms": algorithms}
    return own | {_RANKS: [_SAME] * (before - 1)}


def num_ranks(state: State) -> int:
    """Returns the number of ranks of a saved state."""
    return 1 + len(state.get(_RANKS, ()))


def own_state(state: State, ranks: Ranks, fresh: Callable[[], State]) -> State:
    """Returns the state of this rank.

    Args:
        state: State of a checkpoint.
        ranks: The ranks of the run.
        fresh: Returns the state of a run that starts. It replaces what belongs to environments if the checkpoint is of
            another number of ranks.
    """
    shared = {name: value for name, value in state.items() if name != _RANKS}
    if num_ranks(state) != ranks.size:
        return _with_fresh_environments(shared, fresh())
    return shared if ranks.is_first else _merged(shared, state[_RANKS][ranks.rank - 1])


def _with_fresh_environments(saved: State, fresh: State) -> State:
    """Returns a saved state with the environments, hidden states and replay buffers of a run that starts."""
    algorithms = {
        name: _fitting(state, fresh["algorithms"][name]) | {"buffer": fresh["algorithms"][name]["buffer"]}
        if "buffer" in state
        else _fitting(state, fresh["algorithms"][name])
        for name, state in saved["algorithms"].items()
    }
    collector = fresh["collector"] | {name: saved["collector"][name] for name in ("noise", "collected", "finished")}
    pending: dict[str, list[Any]] = {name: [] for name in saved["pending"]}
    return saved | {"algorithms": algorithms, "collector": collector, "pending": pending}


def _fitting(saved: Any, fresh: Any) -> Any:
    """Returns the saved state with tensors of other shapes than now replaced by those of a run that starts."""
    if isinstance(saved, dict) and isinstance(fresh, dict):
        return {key: _fitting(value, fresh[key]) if key in fresh else value for key, value in saved.items()}
    if isinstance(saved, torch.Tensor) and isinstance(fresh, torch.Tensor) and saved.shape != fresh.shape:
        return fresh
    return saved


def _digests(value: Any) -> Any:
    """Returns the state with leaves replaced by their hashes; lists and dictionaries keep their form."""
    if isinstance(value, dict):
        return {"keys": [[str(type(key).__name__), str(key), _digests(x)] for key, x in value.items()]}
    if isinstance(value, list | tuple):
        return [_digests(x) for x in value]
    return _digest(value)


def _digest(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        plain = leaf.detach().cpu().clone(memory_format=torch.contiguous_format)  # one number may have any stride
        content = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        text = f"{leaf.dtype} {list(leaf.shape)}"
        return hashlib.sha256(text.encode() + content).hexdigest()
    if isinstance(leaf, np.ndarray):  # its text has three of many numbers
        return hashlib.sha256(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes()).hexdigest()
    if isinstance(leaf, Segment):
        return "segment"
    return f"{type(leaf).__name__} {leaf!r}"


def _difference(value: Any, digests: Any) -> Any:
    """Returns the state with parts that are equal on rank 0 replaced by a mark."""
    if _digests(value) == digests and not _has_segment(value):
        return _SAME
    if isinstance(value, dict) and isinstance(digests, dict):
        known = {(kind, key): digest for kind, key, digest in digests["keys"]}
        found = {key: (type(key).__name__, str(key)) for key in value}
        if set(found.values()) == set(known):
            return {"parts": {key: _difference(value[key], known[found[key]]) for key in value}}
    return {"whole": value}


def _has_segment(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(_has_segment(x) for x in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, Segment)


def _merged(value: Any, difference: Any) -> Any:
    """Inverse of `_difference`, given the state of rank 0."""
    if difference == _SAME:
        return value
    if "whole" in difference:
        return difference["whole"]
    return {key: _merged(value[key], part) for key, part in difference["parts"].items()}
