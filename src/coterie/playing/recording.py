"""Recorded episodes: one file that holds pictures, actions, rewards and what agents weighed up, row by row.

The file is a ZIP archive, so that any tool opens it:

    header.json         what is recorded: `Header`
    rows.jsonl          a JSON object a row, closing rows included: `RowRecord`
    frames/000000.webp  the picture of row 0, lossless; and so on, one a row

Numbers are rounded to six digits; what is not finite is null. Nothing in it is code, and reading runs none.
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

from coterie.errors import UserError

_MOST_TEXT = 1 << 30
"""Bytes of header or rows, unpacked, that are read; a file that claims more was made to do harm."""
_MOST_FRAME = 1 << 26


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class AgentHeader(_Part):
    """Who an agent is, and what it can do."""

    name: str
    """The agent's name."""
    team: str
    """Its team."""
    role: str
    """Its role."""
    choices: tuple[PositiveInt, ...] = ()
    """A of each discrete component."""
    choice_names: tuple[tuple[str, ...], ...] = ()
    """What the choices of each component are called; empty where the environment does not say."""
    low: tuple[float, ...] = ()
    """Lower bounds of its numbers."""
    high: tuple[float, ...] = ()
    """Upper bounds of its numbers."""
    number_names: tuple[str, ...] = ()
    """What its numbers are called; empty where the environment does not say."""


class Header(_Part):
    """What a file holds."""

    format: Literal["coterie/episodes"] = "coterie/episodes"
    """Says that it is one of these files."""
    version: Literal[1] = 1
    """Of the format."""
    title: str
    """Who plays what, in words."""
    env: str
    """The environment's name."""
    algos: dict[str, str] = Field(default_factory=dict)
    """Algorithms by team."""
    seed: int
    """Of the episodes."""
    agents: tuple[AgentHeader, ...]
    """All agents, in the environment's order: [N]."""
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By group that is rewarded together, in order: its agents' names."""
    width: PositiveInt
    """Pixels of a picture."""
    height: PositiveInt
    """Pixels of a picture."""
    rows: NonNegativeInt = 0
    """How many there are."""
    episodes: tuple[NonNegativeInt, ...] = ()
    """The row that each episode begins with."""


class Did(_Part):
    """An action."""

    discrete: tuple[NonNegativeInt, ...] = ()
    """The choice of each component."""
    continuous: tuple[float | None, ...] = ()
    """Numbers, within their bounds."""


class AgentRow(_Part):
    """An agent in a row."""

    alive: bool
    """It exists in this row."""
    mask: tuple[bool, ...] | None = None
    """What it can choose [sum A]; null: everything."""
    probability: tuple[float | None, ...] | None = None
    """What its policy draws each choice with [sum A]; null where nobody knows."""
    q: tuple[float | None, ...] | None = None
    """What each choice is worth to it [sum A]; null where its policy does not say."""
    mean: tuple[float | None, ...] | None = None
    """The middle of its numbers, within their bounds [C]; null where nobody knows."""
    spread: tuple[float | None, ...] | None = None
    """Their standard deviation [C]; null where nobody knows."""
    value: float | None = None
    """What its critic expects it to earn from here on, discounted; null where nobody says."""
    did: Did | None = None
    """What it did in the row before, which led here; null in an episode's first row."""
    reward: float | None = 0.0
    """What that earned it, its group's rewards aside."""
    total: float | None = 0.0
    """What it has earned in this episode so far."""


class RowRecord(_Part):
    """A row of an episode."""

    episode: NonNegativeInt
    """Number of the episode in the file."""
    row: NonNegativeInt
    """Number of the row in the episode."""
    closing: bool
    """The episode has ended, this is what it ended with."""
    ended: Literal["terminated", "truncated"] | None = None
    """How it ended: by the task, or by a limit."""
    agents: tuple[AgentRow, ...]
    """In the order of the header [N]."""
    group_reward: dict[str, float | None] = Field(default_factory=dict)
    """What the step before paid to groups."""
    returns: dict[str, float | None] = Field(default_factory=dict)
    """By team: what its agents and its groups have earned in this episode so far."""
    metrics: dict[str, float | None] = Field(default_factory=dict)
    """What the environment reports of the episode; in closing rows."""


def encode(frame: np.ndarray) -> bytes:
    """A picture, uint8 [H, W, 3], as lossless WebP."""
    out = io.BytesIO()
    Image.fromarray(frame).save(out, "WEBP", lossless=True, quality=50, method=1)
    return out.getvalue()


class Recorder:
    """Writes a file as rows come, beside its place; `close` puts it there, complete, or nothing is there at all.

    As a context it closes at its end, and leaves nothing behind after an error. UserError where it cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]):
        self.path, self._header = path, dict(header)
        self._rows: list[str] = []
        self._episodes: list[int] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.stem[:40]}-", suffix=".zip", dir=path.parent)
        except OSError as error:
            raise _unwritable(path, error) from error
        self._beside = Path(name)
        self._file = os.fdopen(handle, "wb")
        self._archive = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)

    def add(self, row: Mapping[str, Any], frame: bytes) -> None:
        """A further row, a `RowRecord` as plain words, and its picture as WebP."""
        number = len(self._rows)
        if row["row"] == 0:
            self._episodes.append(number)
        self._rows.append(json.dumps({**row, "episode": len(self._episodes) - 1}, allow_nan=False))
        try:
            self._archive.writestr(frame_name(number), frame)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> Path:
        """Puts the file in its place, and returns that."""
        header = Header(**self._header, rows=len(self._rows), episodes=tuple(self._episodes))
        try:
            self._archive.writestr("header.json", header.model_dump_json(indent=1), zipfile.ZIP_DEFLATED)
            self._archive.writestr("rows.jsonl", "\n".join(self._rows) + "\n", zipfile.ZIP_DEFLATED)
            self._archive.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            umask = os.umask(0o22)
            os.umask(umask)
            os.chmod(self._beside, 0o666 & ~umask)
            os.replace(self._beside, self.path)
        except OSError as error:
            self.discard()
            raise _unwritable(self.path, error) from error
        return self.path

    def discard(self) -> None:
        """Leaves nothing behind."""
        with contextlib.suppress(OSError, ValueError):  # closing writes once more, to what goes anyway
            self._archive.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._beside.unlink(missing_ok=True)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: Any) -> None:
        if failed is None:
            self.close()
        else:
            self.discard()


class Recording:
    """A file that was read: its header, its rows as text and checked, and its pictures when they are asked for.

    UserError for a file that is none, or that does not hold what it says.
    """

    def __init__(self, path: Path):
        self.path = path
        with contextlib.ExitStack() as stack:
            try:
                self._archive = stack.enter_context(zipfile.ZipFile(path))
                header, rows = (self._member(name, _MOST_TEXT) for name in ("header.json", "rows.jsonl"))
                self.header = Header.model_validate_json(header)
                self.rows = [RowRecord.model_validate_json(line) for line in rows.decode().splitlines()]
                self._check()
            except OSError as error:
                said = f"cannot be read ({error.strerror or error})"
                raise UserError(f"{path}: {said}: name a file of recorded episodes") from error
            except (ValidationError, zipfile.BadZipFile, ValueError, KeyError) as error:
                raise UserError(
                    f"{path}: {_words(error)}; expected a file that `coterie play --record FILE` wrote"
                ) from error
            stack.pop_all()

    def frame(self, row: int) -> bytes:
        """The picture of a row, WebP. IndexError beyond the last."""
        if not 0 <= row < self.header.rows:
            raise IndexError(row)
        return self._member(frame_name(row), _MOST_FRAME)

    def close(self) -> None:
        """Closes the file."""
        self._archive.close()

    def _member(self, name: str, most: int) -> bytes:
        info = self._archive.getinfo(name)
        if info.file_size > most:
            raise ValueError(f"{name} says that it has {info.file_size:,} bytes")
        return self._archive.read(info)

    def _check(self) -> None:
        """ValueError where header, rows and pictures do not tell the same."""
        header, names = self.header, set(self._archive.namelist())
        if header.rows != len(self.rows):
            raise ValueError(f"header.json says {header.rows} rows, and rows.jsonl has {len(self.rows)}")
        begins = tuple(i for i, row in enumerate(self.rows) if row.row == 0)
        if begins != header.episodes or (self.rows and begins[:1] != (0,)):
            raise ValueError(
                f"header.json says that episodes begin at rows {list(header.episodes)}, not {list(begins)}"
            )
        for i, row in enumerate(self.rows):
            if len(row.agents) != len(header.agents):
                raise ValueError(f"row {i} has {len(row.agents)} agents, the header {len(header.agents)}")
            if frame_name(i) not in names:
                raise ValueError(f"there is no picture {frame_name(i)}")


def _words(error: Exception) -> str:
    """What is wrong with a file, on one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return ".".join(str(part) for part in first["loc"]) + ": " + first["msg"]
    return " ".join(str(error).strip("'\"").split())


def frame_name(row: int) -> str:
    """The name of a row's picture in the archive."""
    return f"frames/{row:06d}.webp"


def rounded(numbers: Sequence[float]) -> list[float | None]:
    """Six digits of each number; None for what is not finite."""
    return [float(f"{x:.6g}") if abs(x) < float("inf") else None for x in numbers]


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path}: cannot be written ({error.strerror or error}); choose a folder that you may write to, with room left"
    )
