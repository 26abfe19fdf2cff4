"""The folder that a run leaves behind: where it lies, who uses it, and what was true when it started."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import weakref
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from coterie.errors import UserError, nearest

try:
    import fcntl
except ImportError:  # not on Windows, where a run is not guarded against two writers
    fcntl = None

_REQUIRED = ("config.yaml", "manifest.json")
_STARTED = (
    *(*_REQUIRED, "lock", "metrics.jsonl", "checkpoints", "tensorboard", "videos"),
    *("wandb", "wandb-id", "mlruns", "mlflow-id"),
)
"""What starting a run may have written before anything of worth is in it."""

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What `flock` answers on file systems of clusters that cannot lock; the run goes on unguarded there."""


# ------------------------------------------------------------------------------------------------------ writing to disk


def disk_error(what: str, path: Path, error: OSError) -> UserError:
    """The one line for a write that failed: what could not be written, where, why, and the mend."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        mend = "free some space, then go on with `coterie resume`"
    else:
        mend = "choose another folder with out="
    return UserError(f"cannot write {what} {path}: {error.strerror or error}; {mend}")


def sync_folder(path: Path) -> None:
    """Makes names that were created, renamed or removed in the folder survive a power cut."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file and makes sure that it is on the disk. OSError if it is not."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Puts `text` in the place of the file at once: a reader, or a crash, sees the old content or the new, whole.

    UserError if it cannot be written; the old content is intact then.
    """
    beside = path.with_name(f".writing-{path.name}")
    try:
        write_bytes(beside, text.encode())
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise disk_error("the file", path, error) from error


# ----------------------------------------------------------------------------------------------------------- the folder


class RunDir:
    """One run's folder.

    path: the folder; checkpoint: the folder of one checkpoint, if the path that was opened named one. The process that
    writes to a run holds its lock, which the operating system takes back however the process ends.
    """

    def __init__(self, path: Path, checkpoint: Path | None = None):
        self.path, self.checkpoint = Path(path), checkpoint
        self._lock: int | None = None
        self._made: list[Path] = []  # folders made by `create`, the deepest first

    config_path = property(lambda self: self.path / "config.yaml")
    manifest_path = property(lambda self: self.path / "manifest.json")
    metrics_path = property(lambda self: self.path / "metrics.jsonl")
    checkpoints_path = property(lambda self: self.path / "checkpoints")
    tensorboard_path = property(lambda self: self.path / "tensorboard")
    videos_path = property(lambda self: self.path / "videos")

    @classmethod
    def create(cls, path: str | Path | None, env: str, algo: str, seed: int, now: datetime) -> RunDir:
        """A new folder, locked: `path`, or `runs/<env>/<algo>/<date>-seed<k>` with a suffix if that is taken.

        UserError if `path` holds something already or cannot be made.
        """
        if path is not None:
            run = cls(Path(path))
            if run.path.is_dir() and any(run.path.iterdir()):
                kind = "a run" if _missing(run.path) == [] else "files"
                mend = f"choose another out=, or go on with `coterie resume {run.path}`" if kind == "a run" else ""
                raise UserError(f"out={run.path} holds {kind} already; {mend or 'choose another out='}")
            run._make(exist_ok=True)
        else:
            run = _first_free(cls, Path("runs") / env / algo / f"{now:%Y%m%d-%H%M%S}-seed{seed}")
        try:
            run.lock()
        except BaseException:
            run.remove_if_empty()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """The run at `path`, at its `checkpoints` folder or at one of its checkpoints; not locked, so reading is free.

        UserError if there is none, with what is missing or with the runs that lie below.
        """
        path = Path(path)
        if not path.exists():
            siblings = [str(other) for other in _folders(path.parent)]
            mend = f"; {nearest(str(path), siblings)}" if 0 < len(siblings) <= 20 else "; expected the folder of a run"
            raise UserError(f"there is no run {path}{mend}")
        if not _missing(path):
            return cls(path)
        whole = path.resolve()
        if whole.name == "checkpoints" and not _missing(whole.parent):
            return cls(path.parent if path.name == "checkpoints" else whole.parent)
        if whole.parent.name == "checkpoints" and whole.name.isdigit() and not _missing(whole.parent.parent):
            return cls(whole.parent.parent, checkpoint=path)
        below = runs_below(path)
        if below:
            listed = ", ".join(str(run) for run in below[:3]) + (", ..." if len(below) > 3 else "")
            raise UserError(f"{path} is not a run but holds some; name one of them: {listed}")
        missing = " and ".join(_missing(path))
        raise UserError(f"{path} is not a run: it has no {missing}; expected the folder that `coterie train` printed")

    def lock(self) -> None:
        """Claims the run for this process until `close` or the process' end. UserError if another one writes to it."""
        if self._lock is not None or fcntl is None:
            return
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise disk_error("the run", self.path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(handle, 1000, 0))
            os.close(handle)
            raise UserError(
                f"the run {self.path} is in use by {holder}; wait for it to end, or stop it, and try again"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise disk_error("the lock of the run", self.path, error) from error
        self._lock = handle
        _locked.add(self)
        holder = json.dumps({"pid": os.getpid(), "host": platform.node()}).encode()
        with contextlib.suppress(OSError):  # only the message of a refusal would miss it
            os.ftruncate(handle, 0)
            os.pwrite(handle, holder, 0)

    def close(self) -> None:
        """Gives the lock back. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Writes `manifest.json`; see `describe`."""
        write_text(self.manifest_path, json.dumps(manifest, indent=2) + "\n")

    def read_manifest(self) -> dict[str, Any]:
        """What `write_manifest` wrote. UserError if it cannot be read."""
        try:
            return json.loads(self.manifest_path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{self.manifest_path} cannot be read ({error}); restore it from a copy") from error

    def remove_if_empty(self) -> bool:
        """Removes a run that has neither metrics nor a checkpoint, and the folders made for it; True if it did.

        For a start that failed. Files that no start writes are left, and so is the folder that holds them.
        """
        if not self.path.is_dir():
            return False
        metrics = self.metrics_path
        if (metrics.exists() and metrics.stat().st_size) or any(
            f.name.isdigit() for f in _folders(self.checkpoints_path)
        ):
            return False
        for name in _STARTED:
            file = self.path / name
            shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)
        self.close()
        _remove_empty(self._made)
        return not self.path.exists()

    def _make(self, exist_ok: bool) -> None:
        """Makes the folder and notes which of its parents were missing."""
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            if not self.path.parent.is_dir():
                self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _remove_empty(made)
            raise disk_error("the run folder", self.path, error) from error
        try:
            self.path.mkdir(exist_ok=exist_ok)
        except FileExistsError:
            if not exist_ok:
                raise
            raise UserError(f"out={self.path} is a file; choose another out=") from None
        except OSError as error:
            _remove_empty(made)
            raise disk_error("the run folder", self.path, error) from error
        self._made = made


def _remove_empty(folders: list[Path]) -> None:
    """Removes those of the folders that hold nothing, the deepest first."""
    for folder in folders:
        with contextlib.suppress(OSError):  # it holds something else, or is gone
            folder.rmdir()


_locked: weakref.WeakSet[RunDir] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked worker must not keep its parent's runs locked after the parent was killed."""
    for run in list(_locked):
        run.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _holder(content: bytes) -> str:
    """Who wrote the lock file, in words."""
    try:
        holder = json.loads(content)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _first_free(cls: type[RunDir], path: Path) -> RunDir:
    """`path`, or `path-2`, `path-3`, ...: the first that did not exist, made. Two processes never get the same."""
    for count in range(1, 10_000):
        run = cls(path if count == 1 else path.with_name(f"{path.name}-{count}"))
        try:
            run._make(exist_ok=False)
        except FileExistsError:
            continue
        return run
    raise UserError(f"{path} and ten thousand names like it are taken; choose another with out=")


def _missing(path: Path) -> list[str]:
    """What `path` lacks to be a run."""
    return [name for name in _REQUIRED if not (path / name).is_file()]


def _folders(path: Path) -> list[Path]:
    """The folders in `path` that are not hidden, sorted; none if it is no folder."""
    try:
        return sorted(other for other in path.iterdir() if other.is_dir() and not other.name.startswith("."))
    except OSError:
        return []


def runs_below(path: Path, depth: int = 5, most: int = 100) -> list[Path]:
    """Runs in the folders below `path`, at most `depth` deep, sorted by path; at most `most`."""
    found: list[Path] = []
    for folder in _folders(path):
        if len(found) >= most:
            break
        if not _missing(folder):
            found.append(folder)
        elif depth > 1:
            found += runs_below(folder, depth - 1, most - len(found))
    return found


# --------------------------------------------------------------------------------------------------------- the manifest


def describe(seed: int, command: Sequence[str], threads: int | None, now: datetime, **more: Any) -> dict[str, Any]:
    """What the manifest says of this process: versions, git revision, seeds, hardware, command line.

    command: the words of the command line; threads: those PyTorch computes with; now: the start, with a time zone;
    more: further entries, e.g. `env`, `algo`, `levels` (which `coterie plot` draws as dashed lines).
    """
    packages = ("coterie", "torch", "numpy", "gymnasium", "safetensors")
    return {
        "started": now.astimezone(timezone.utc).isoformat(timespec="seconds"),
        "command": list(command),
        "seed": seed,
        "threads": threads,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "git": {"revision": _git("rev-parse", "HEAD"), "modified": bool(_git("status", "--porcelain", "-uno"))},
        "platform": platform.platform(),
        "hardware": {"cpu": _cpu(), "cores": _cores(), "memory_bytes": _memory(), "gpus": _gpus()},
        **more,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says of the present folder, None outside of a repository, without git, or if it takes long."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=3, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _cpu() -> str:
    """The processor's model."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    """Bytes of main memory, None where the system does not say."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _gpus() -> list[str]:
    """Names of the accelerators, if PyTorch is loaded and sees any."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
