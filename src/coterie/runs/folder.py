"""The folder of a run: its files, its lock and its manifest, and the search for runs."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import platform
import re
import shutil
import weakref
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.config.messages import first_mistake
from coterie.core import strict_json
from coterie.core.errors import UserError, nearest
from coterie.core.files import disk_error, read_bytes, without_links, write_text
from coterie.core.terminal import in_notebook
from coterie.core.text import coterie_command

try:
    import fcntl
except ImportError:  # on Windows, runs are not protected against two writers
    fcntl = None

_REQUIRED = ("config.yaml", "manifest.json")
_START_FILES = (
    *("metrics.jsonl", "checkpoints", "videos", "wandb", "wandb-id", "mlruns", "mlflow-id"),
    *(".writing-manifest.json", ".writing-config.yaml", "manifest.json", "config.yaml", "lock"),
)
"""Files and folders that starting a run may create before the first result, in the order in which they are removed. If
that is interrupted, the rest is a run, or the interrupted start of one.
"""

_INTERRUPTED_START = {"lock", "config.yaml", ".writing-config.yaml", ".writing-manifest.json"}
"""Files of a start that was killed before the manifest was written. Another start may replace them."""

_WRITTEN_FOLDERS = ("checkpoints", "checkpoints/segments", "videos", "wandb", "mlruns")
"""Folders in a run to which its process writes, and from which it removes files."""

_LOCKS_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""Errors of `flock` on cluster file systems without locks. The run continues unlocked there."""

_RESTORE = "Restore it from a backup."

_MOST_RUNS = 100_000
_DEEPEST = 12


class RunFolder:
    """Folder of one run.

    The process that writes to a run holds its lock. The operating system releases it when the process ends.

    Args:
        path: Folder of the run.
        checkpoint: Folder of one checkpoint, if the opened path named one.
    """

    def __init__(self, path: Path, checkpoint: Path | None = None):
        self.path, self.checkpoint = Path(path), checkpoint
        self._lock: int | None = None
        self._created: list[Path] = []  # folders that `create` made, deepest first

    config_path = property(lambda self: self.path / "config.yaml")
    manifest_path = property(lambda self: self.path / "manifest.json")
    metrics_path = property(lambda self: self.path / "metrics.jsonl")
    checkpoints_path = property(lambda self: self.path / "checkpoints")
    videos_path = property(lambda self: self.path / "videos")

    @classmethod
    def create(
        cls, path: str | Path | None, env: str, algo: str, seed: int, now: datetime, *, overwrite: bool = False
    ) -> RunFolder:
        """Creates and locks a new folder.

        Args:
            path: Folder, or None for `<date>-seed<k>` in `default_parent`, with a suffix if that exists.
            env: Name of the environment.
            algo: Name of the algorithm.
            seed: Seed of the run.
            now: Time of the start.
            overwrite: Remove the run that `path` contains.

        Raises:
            UserError: If `path` is not empty or cannot be created.
        """
        if path is not None:
            run = cls(Path(path))
            if overwrite:
                cls.clear_run(run.path)
            if run.path.is_dir() and any(run.path.iterdir()) and not _is_interrupted_start(run.path):
                is_run = not _missing(run.path)
                resume = f", or continue the run with `{coterie_command('resume', run.path)}`" if is_run else ""
                if is_run and in_notebook():
                    resume += ", or replace it with overwrite=True"
                raise UserError(
                    f"out={run.path}: already contains {'a run' if is_run else 'files'}. Choose another folder{resume}."
                )
            run.make(exist_ok=True)
        else:
            run = _first_free(cls, default_parent(env, algo) / f"{now:%Y%m%d-%H%M%S}-seed{seed}")
        try:
            run.lock()
            for file in list(run.path.iterdir()):
                if file.name != "lock":
                    file.unlink()  # of a start that was interrupted
        except BaseException:
            run.remove_if_empty()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Opens the run at `path`, which may also be its `checkpoints` folder or one checkpoint. Does not lock it.

        Raises:
            UserError: If `path` is not a run. The message lists what is missing, or the runs below `path`.
        """
        path = Path(path)
        if not path.exists():
            siblings = [str(other) for other in _folders(path.parent)]
            hint = nearest(str(path), siblings) if 0 < len(siblings) <= 20 else "Expected the folder of a run."
            raise UserError(f"{path}: no such run. {hint}")
        run, resolved = None, path.resolve()
        if not _missing(path):
            run = cls(path)
        elif resolved.name == "checkpoints" and not _missing(resolved.parent):
            run = cls(path.parent if path.name == "checkpoints" else resolved.parent)
        elif resolved.parent.name == "checkpoints" and resolved.name.isdigit() and not _missing(resolved.parent.parent):
            run = cls(resolved.parent.parent, checkpoint=path)
        if run is not None:
            run.require_supported_version()
            return run
        below = runs_below(path)
        if below:
            listed = ", ".join(str(run) for run in below[:3]) + (", ..." if len(below) > 3 else "")
            raise UserError(f"{path}: contains several runs. Name one of them: {listed}")
        if path.is_dir() and _is_interrupted_start(path):
            config = path / "config.yaml"
            again = coterie_command("train", "--config", config) if config.is_file() else "it"
            raise UserError(
                f"{path}: the start of this run was interrupted, there is nothing to resume. Start {again}."
            )
        missing = " and ".join(_missing(path))
        raise UserError(f"{path}: not a run, it has no {missing}. Expected the folder that `coterie train` printed.")

    @classmethod
    def clear_run(cls, path: Path) -> None:
        """Removes everything in the folder of a run; does nothing if `path` is no run.

        What is left by an interruption is still a run.

        Raises:
            UserError: If another process writes to it, or a file cannot be removed.
        """
        if not path.is_dir() or _missing(path):
            return
        run = cls(path)
        run.lock()
        others = sorted(file for file in path.iterdir() if file.name not in (*_REQUIRED, "lock"))
        try:
            for file in (*others, run.manifest_path, run.config_path):
                if file.is_dir() and not file.is_symlink():
                    shutil.rmtree(file)
                else:
                    file.unlink()
        except OSError as error:
            raise disk_error("the folder", path, error) from error
        finally:
            run.close()

    def lock(self) -> None:
        """Locks the run for this process until `close`.

        Raises:
            UserError: If another process writes to it, or one of its folders is a symbolic link.
        """
        for folder in (self.path / name for name in _WRITTEN_FOLDERS):
            if folder.is_symlink():
                raise disk_error("to the folder", folder, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
        if self._lock is not None or fcntl is None:
            return
        try:
            handle = without_links(str(self.path / "lock"), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise disk_error("the lock", self.path / "lock", error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(handle, 1000, 0))
            os.close(handle)
            raise UserError(
                f"run {self.path}: in use by {holder}. Wait for it to finish, or stop it, and try again."
            ) from None
        except OSError as error:
            if error.errno not in _LOCKS_UNSUPPORTED:
                os.close(handle)
                raise disk_error("the lock of the run", self.path, error) from error
        self._lock = handle
        _locked.add(self)
        holder = json.dumps({"pid": os.getpid(), "host": platform.node()}).encode()
        with contextlib.suppress(OSError):  # it is only used in an error message
            os.ftruncate(handle, 0)
            os.pwrite(handle, holder, 0)

    def is_in_use(self) -> bool:
        """True if another process writes to the run. Creates no file."""
        if fcntl is None:
            return False
        try:
            handle = without_links(str(self.path / "lock"), os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(handle)
        return False

    def close(self) -> None:
        """Releases the lock. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Writes `manifest.json`; see `description.describe`."""
        write_text(self.manifest_path, json.dumps(manifest, indent=2) + "\n")

    def read_manifest(self) -> dict[str, Any]:
        """Returns the manifest. Raises UserError if it cannot be read."""
        return read_manifest(self.manifest_path)

    def require_supported_version(self) -> None:
        """Raises UserError if the run was written by version 0.1, whose settings and checkpoints cannot be read."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # reported when the manifest is needed
            version = str(strict_json.parse(read_bytes(self.manifest_path)).get("versions", {}).get("coterie"))
            if version.startswith("0.1."):
                raise UserError(
                    f"{self.path}: written by Coterie {version}, whose settings and checkpoints cannot be read. "
                    f"Train the run again, or use Coterie {version}."
                )

    def event_files(self) -> list[Path]:
        """Returns the files of TensorBoard, which are in the folder itself: TensorBoard names runs by folder."""
        return sorted(self.path.glob("events.out.tfevents.*"))

    def remove_results(self) -> None:
        """Removes the metrics and checkpoints of a new run that is refused in its first steps."""
        self.metrics_path.unlink(missing_ok=True)
        for path in self.event_files():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints_path, ignore_errors=True)

    def remove_if_empty(self) -> bool:
        """Removes a run without metrics and checkpoints, and the parent folders created for it. Used after a failed
        start.

        Other files are not removed, nor is the folder that contains them.

        Returns:
            True if the folder was removed.
        """
        if not self.path.is_dir():
            return False
        metrics = self.metrics_path
        if (metrics.exists() and metrics.stat().st_size) or any(
            f.name.isdigit() for f in _folders(self.checkpoints_path)
        ):
            return False
        for file in (*self.event_files(), *(self.path / name for name in _START_FILES)):
            shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)
        self.close()
        _remove_empty(self._created)
        return not self.path.exists()

    def make(self, exist_ok: bool) -> None:
        """Creates the folder and stores which of its parents were missing."""
        self._created = created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            if not self.path.parent.is_dir():
                self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _remove_empty(created)
            raise disk_error("the run folder", self.path, error) from error
        try:
            self.path.mkdir(exist_ok=exist_ok)
        except FileExistsError:
            if not exist_ok:
                raise
            raise UserError(f"out={self.path}: is a file. Choose another folder.") from None
        except OSError as error:
            _remove_empty(created)
            raise disk_error("the run folder", self.path, error) from error


def _remove_empty(folders: list[Path]) -> None:
    """Removes the empty ones of `folders`, which are ordered deepest first."""
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty, or already removed
            folder.rmdir()


_locked: weakref.WeakSet[RunFolder] = weakref.WeakSet()


def _close_in_child() -> None:
    """Closes locks in a forked worker, which would otherwise keep runs locked after its parent was killed."""
    for run in list(_locked):
        run.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _holder(content: bytes) -> str:
    """Describes the process that wrote the lock file."""
    try:
        holder = strict_json.parse(content)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def default_parent(env: str, algo: str) -> Path:
    """Returns `runs/<env>/<algo>`, the parent of runs whose folder the user does not choose.

    Characters that have a meaning in shells or for `scp`, such as the colon of `package.module:factory`, become `_`.
    """
    words = [re.sub(r"[^\w.+-]+", "_", word, flags=re.ASCII).lstrip(".-") or "_" for word in f"{env}/{algo}".split("/")]
    return Path("runs", *words)


def _first_free(cls: type[RunFolder], path: Path) -> RunFolder:
    """Creates the first free folder of `path`, `path-2`, `path-3`, ... Safe with several processes."""
    for count in range(1, 10_000):
        run = cls(path if count == 1 else path.with_name(f"{path.name}-{count}"))
        try:
            run.make(exist_ok=False)
        except FileExistsError:
            continue
        return run
    raise UserError(f"{path}: 10,000 folders with this name exist. Choose another with out=.")


def _is_interrupted_start(path: Path) -> bool:
    """True if a process was killed in `path` after it had locked the folder and before its manifest was written."""
    names = {file.name for file in path.iterdir()}
    return {"lock"} <= names <= _INTERRUPTED_START


def _missing(path: Path) -> list[str]:
    """Returns the required files of a run that `path` does not contain."""
    return [name for name in _REQUIRED if not (path / name).is_file()]


def _folders(path: Path) -> list[Path]:
    """Returns the folders in `path` that are not hidden, sorted. Empty if `path` is not a folder."""
    try:
        return sorted(other for other in path.iterdir() if other.is_dir() and not other.name.startswith("."))
    except OSError:
        return []


# ------------------------------------------------------------------------------------------------------------- manifest


class _Manifest(BaseModel):
    """Entries that are used again; others only inform readers of the file."""

    model_config = ConfigDict(strict=True)

    env: str = ""
    algo: str = ""
    seed: int | None = None
    random: dict[str, float | None] | None = None
    random_error: dict[str, float | None] | None = None
    episode_limit: int | None = None
    published: dict[str, float | None] | None = None
    levels: dict[str, dict[str, float | None]] | None = None
    environment: dict[str, Any] | None = None
    init: dict[str, Any] | None = None
    teams: dict[str, dict[str, Any]] | None = None
    teams_because: str | None = None
    project: dict[str, Any] | None = None
    installed: dict[str, str] | None = None
    versions: dict[str, Any] = {}


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the content of a `manifest.json`.

    Raises:
        UserError: If it cannot be read, or an entry that is used again has another type.
    """
    manifest = strict_json.read_object(path, _RESTORE)
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        raise UserError(f"{path}: cannot be read ({first_mistake(error)}). {_RESTORE}") from error
    return manifest


# --------------------------------------------------------------------------------------------------------------- search


def runs_below(path: Path, depth: int = 5, limit: int = 100) -> list[Path]:
    """Returns at most `limit` runs in the folders below `path`, up to `depth` levels deep, sorted by path."""
    found: list[Path] = []
    for folder in _folders(path):
        if len(found) >= limit:
            break
        if not _missing(folder):
            found.append(folder)
        elif depth > 1:
            found += runs_below(folder, depth - 1, limit - len(found))
    return found


def find_runs(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Returns the JSON files and the folders of runs of the paths, each once.

    Raises:
        UserError: If a path is neither and contains no run.
    """
    files: dict[Path, Path] = {}
    folders: dict[Path, Path] = {}
    for given in paths:
        matches = [Path(given)]
        if not matches[0].exists() and glob.has_magic(str(given)):
            matches = [Path(match) for match in sorted(glob.glob(str(given), recursive=True))]
        before = len(files) + len(folders)
        known = False
        for path in matches:
            if path.is_file() and path.suffix == ".json" and len(matches) == 1:
                files.setdefault(path.resolve(), path)
                continue
            for folder in _runs_of(path):
                known = True
                folders.setdefault(folder.resolve(), folder)
        if len(files) + len(folders) == before and not known and not (len(matches) == 1 and matches[0].is_file()):
            raise _not_found(given, matches)
        if len(matches) == 1 and matches[0].is_file() and matches[0].suffix != ".json":
            raise UserError(f"{given}: is a file. Name folders of runs, or JSON files of marl-eval.")
    return list(files.values()), list(folders.values())


def _runs_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    if (path / "config.yaml").is_file() and (path / "manifest.json").is_file():
        return [path]
    return runs_below(path, depth=_DEEPEST, limit=_MOST_RUNS)


def _not_found(given: str | Path, matches: Sequence[Path]) -> UserError:
    if len(matches) == 1 and not matches[0].exists():
        return UserError(f"{given}: no such folder or file. Name folders of runs, or folders that contain runs.")
    return UserError(f"{given}: contains no runs. Name folders that `coterie train` has written.")
