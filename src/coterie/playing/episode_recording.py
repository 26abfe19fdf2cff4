"""Recorded episodes: one file with images, actions, rewards and policy outputs for every timestep.

The file is a ZIP archive:

    header.json         contents of the file: `Header`
    timesteps.jsonl     one JSON object per timestep, final timesteps included: `TimestepRecord`
    frames/000000.webp  lossless image of timestep 0, and so on

Numbers are rounded to six digits; non-finite numbers are null. The file contains no code, and reading it executes none.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from coterie.config.messages import first_mistake
from coterie.core.errors import UserError

_MAX_TEXT = 1 << 30
"""Maximum uncompressed size in bytes of header and timesteps; protects against decompression bombs."""
_MAX_FRAME = 1 << 26


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class AgentHeader(_Part):
    """Identity and actions of an agent."""

    name: str
    """Name of the agent."""
    team: str
    """Name of its team."""
    role: str
    """Name of its role."""
    choices: tuple[PositiveInt, ...] = ()
    """Number of actions of each discrete component."""
    choice_names: tuple[tuple[str, ...], ...] = ()
    """Names of the actions of each component; empty if unnamed."""
    low: tuple[float, ...] = ()
    """Lower bounds of the continuous components."""
    high: tuple[float, ...] = ()
    """Upper bounds of the continuous components."""
    number_names: tuple[str, ...] = ()
    """Names of the continuous components; empty if unnamed."""


class Header(_Part):
    """Contents of a file."""

    format: Literal["coterie/episodes"] = "coterie/episodes"
    """Identifies the file format."""
    version: Literal[1] = 1
    """Version of the format."""
    title: str
    """Human-readable title."""
    env: str
    """Name of the environment."""
    algos: dict[str, str] = Field(default_factory=dict)
    """Algorithms by team."""
    seed: int
    """Seed of the episodes."""
    agents: tuple[AgentHeader, ...]
    """All agents in the order of the environment: [N]."""
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Names of the agents of each group."""
    width: PositiveInt
    """Width of the images in pixels."""
    height: PositiveInt
    """Height of the images in pixels."""
    timesteps: NonNegativeInt = 0
    """Number of timesteps."""
    episodes: tuple[NonNegativeInt, ...] = ()
    """First timestep of each episode."""


class RecordedAction(_Part):
    """An action."""

    discrete: tuple[NonNegativeInt, ...] = ()
    """Choice of each discrete component."""
    continuous: tuple[float | None, ...] = ()
    """Continuous components within their bounds."""


class AgentTimestep(_Part):
    """An agent at a timestep."""

    alive: bool
    """True if the agent exists at this timestep."""
    mask: tuple[bool, ...] | None = None
    """Action mask [sum A]; null: all actions are legal."""
    probability: tuple[float | None, ...] | None = None
    """Action probabilities of the policy [sum A]; null if unknown."""
    q: tuple[float | None, ...] | None = None
    """Q-values [sum A]; null if the policy has none."""
    mean: tuple[float | None, ...] | None = None
    """Mean of the continuous components within their bounds [C]; null if unknown."""
    std: tuple[float | None, ...] | None = None
    """Standard deviation of the continuous components [C]; null if unknown."""
    value: float | None = None
    """Value estimate of the critic; null if there is none."""
    action: RecordedAction | None = None
    """Action that led to this timestep; null at the first timestep of an episode."""
    reward: float | None = 0.0
    """Individual reward for that action, without group rewards."""
    total: float | None = 0.0
    """Individual return so far in this episode; null if there are group rewards, and no agent of this role has had an
    individual one so far."""


class TimestepRecord(_Part):
    """A timestep of an episode."""

    episode: NonNegativeInt
    """Index of the episode in the file."""
    timestep: NonNegativeInt
    """Index of the timestep in the episode."""
    final: bool
    """True for the last timestep of an episode."""
    ended: Literal["terminated", "truncated"] | None = None
    """Reason for the end of the episode."""
    agents: tuple[AgentTimestep, ...]
    """Agents in the order of the header [N]."""
    group_reward: dict[str, float | None] = Field(default_factory=dict)
    """Group rewards of the previous step."""
    returns: dict[str, float | None] = Field(default_factory=dict)
    """Return of each team so far in this episode (agents and groups)."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """Episode metrics of the environment; at final timesteps."""


def encode(frame: np.ndarray) -> bytes:
    """Encodes an image, uint8 [H, W, 3], as lossless WebP."""
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "WEBP", lossless=True, quality=50, method=1)
    return out.getvalue()


class Recorder:
    """Writes a file incrementally to a temporary path; `close` moves the complete file to its destination.

    Use it as a context manager: it closes on success and leaves nothing behind on error. UserError if it cannot be
    written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]):
        self.path, self._header = path, dict(header)
        self._timesteps: list[str] = []
        self._episodes: list[int] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.stem[:40]}-", suffix=".zip", dir=path.parent)
        except OSError as error:
            raise _write_error(path, error) from error
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "wb")
        self._archive = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)

    def add(self, timestep: Mapping[str, Any], frame: bytes) -> None:
        """Appends a timestep, the fields of a `TimestepRecord`, and its WebP image."""
        number = len(self._timesteps)
        if timestep["timestep"] == 0:
            self._episodes.append(number)
        self._timesteps.append(json.dumps({**timestep, "episode": len(self._episodes) - 1}, allow_nan=False))
        try:
            self._archive.writestr(frame_name(number), frame)
        except OSError as error:
            raise _write_error(self.path, error) from error

    def close(self) -> Path:
        """Moves the file to its destination and returns the path."""
        header = Header(**self._header, timesteps=len(self._timesteps), episodes=tuple(self._episodes))
        try:
            self._archive.writestr("header.json", header.model_dump_json(indent=1), zipfile.ZIP_DEFLATED)
            self._archive.writestr("timesteps.jsonl", "\n".join(self._timesteps) + "\n", zipfile.ZIP_DEFLATED)
            self._archive.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            umask = os.umask(0o22)
            os.umask(umask)
            os.chmod(self._temporary, 0o666 & ~umask)
            os.replace(self._temporary, self.path)
        except OSError as error:
            self.discard()
            raise _write_error(self.path, error) from error
        return self.path

    def discard(self) -> None:
        """Deletes the unfinished file."""
        with contextlib.suppress(OSError, ValueError):  # closing writes to a file that is deleted anyway
            self._archive.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: Any) -> None:
        if failed is None:
            self.close()
        else:
            self.discard()


class Recording:
    """A recorded file: header and timesteps are validated, images are read on request.

    Raises:
        UserError: For other files, and files whose contents are inconsistent.
    """

    def __init__(self, path: Path):
        self.path = path
        with contextlib.ExitStack() as stack:
            try:
                self._archive = stack.enter_context(zipfile.ZipFile(path))
                header, timesteps = (self._member(name, _MAX_TEXT) for name in ("header.json", "timesteps.jsonl"))
                self.header = Header.model_validate_json(header)
                self.timesteps = [TimestepRecord.model_validate_json(line) for line in timesteps.decode().splitlines()]
                self._check()
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be read ({error.strerror or error}). "
                    "Expected a file written by `coterie play --record FILE`."
                ) from error
            except Exception as error:  # zipfile raises many kinds for damaged archives
                raise UserError(
                    f"{path}: {_describe_error(error)}. Expected a file written by `coterie play --record FILE`."
                ) from error
            stack.pop_all()

    def frame(self, timestep: int) -> bytes:
        """WebP image of a timestep. IndexError past the last one."""
        if not 0 <= timestep < self.header.timesteps:
            raise IndexError(timestep)
        return self._member(frame_name(timestep), _MAX_FRAME)

    def close(self) -> None:
        """Closes the file."""
        self._archive.close()

    def _member(self, name: str, limit: int) -> bytes:
        info = self._archive.getinfo(name)
        if info.file_size > limit:
            raise ValueError(f"{name} declares {info.file_size:,} bytes, more than the limit of {limit:,}")
        return self._archive.read(info)

    def _check(self) -> None:
        """ValueError if header, timesteps and images are inconsistent."""
        header, names = self.header, set(self._archive.namelist())
        if header.timesteps != len(self.timesteps):
            raise ValueError(
                f"header.json has {header.timesteps} timesteps, but timesteps.jsonl has {len(self.timesteps)}"
            )
        begins = tuple(i for i, timestep in enumerate(self.timesteps) if timestep.timestep == 0)
        if begins != header.episodes or (self.timesteps and begins[:1] != (0,)):
            raise ValueError(
                f"header.json declares episodes that begin at timesteps {list(header.episodes)}, not {list(begins)}"
            )
        for i, timestep in enumerate(self.timesteps):
            if len(timestep.agents) != len(header.agents):
                raise ValueError(
                    f"timestep {i} has {len(timestep.agents)} agents, but the header has {len(header.agents)}"
                )
            if frame_name(i) not in names:
                raise ValueError(f"missing image {frame_name(i)}")


def _describe_error(error: Exception) -> str:
    """One-line description of an error."""
    if isinstance(error, ValidationError):
        return first_mistake(error)
    return " ".join(str(error).strip("'\"").split())


def frame_name(timestep: int) -> str:
    """Name of the image of a timestep in the archive."""
    return f"frames/{timestep:06d}.webp"


def round_all(numbers: Sequence[float]) -> list[float | None]:
    """Numbers rounded to six digits; None for non-finite ones."""
    return [float(f"{x:.6g}") if abs(x) < float("inf") else None for x in numbers]


def _write_error(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: cannot be written ({error.strerror or error}). Choose a writable folder with enough space."
    )
