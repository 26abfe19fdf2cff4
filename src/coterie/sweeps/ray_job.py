"""A job of a sweep on a node of a Ray cluster: a process in a temporary folder, whose run is copied back."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5
_OUTPUT_BYTES = 1 << 16
"""Bytes at the end of the process's output that are kept for its report."""

OUT = "{out}"
"""Placeholder in words of a command for the folder of the run on the node."""


def pack(run: Path) -> bytes:
    """Returns the files of a run as a tar archive. The log is read last: it may be ahead of checkpoints, not behind."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        last = ("metrics.jsonl", "lock")
        for path in sorted(run.iterdir(), key=lambda path: path.name in last):
            if path.name != "lock" and not path.name.startswith(".writing-"):
                archive.add(path, arcname=path.name)
    return content.getvalue()


def unpack(content: bytes, run: Path) -> None:
    """Replaces the folder of a run by the files of an archive, as a whole. ValueError if it holds anything else."""
    run.parent.mkdir(parents=True, exist_ok=True)
    new, old = (run.with_name(f".{word}-{run.name}") for word in ("copying", "replaced"))
    for folder in (new, old):
        shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            if not (member.isfile() or member.isdir()) or Path(member.name).is_absolute() or ".." in member.name:
                raise ValueError(f"the archive of a run has a member that is not a file of it: {member.name!r}")
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(new)
    if run.exists():
        run.rename(old)
    new.rename(run)
    shutil.rmtree(old, ignore_errors=True)


@final
class RayJob:
    """Runs a command on a node. Its methods are called one after the other.

    Args:
        words: Words of the command line, in which `{out}` is the run's folder and `{config}` a file.
        run: Files of the run to resume; None to start one.
        config: Content of the configuration file; None for none.
        folder: Folder in which the command runs, if the node has it.
        module_path: PYTHONPATH of the command.
        copy_seconds: Seconds between two copies of the run.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        run: bytes | None,
        config: str | None,
        folder: str,
        module_path: str,
        copy_seconds: float,
    ):
        self._folder = Path(tempfile.mkdtemp(prefix="coterie-job-"))
        self._run, self._copy_seconds = self._folder / "run", copy_seconds
        if run is not None:
            unpack(run, self._run)
        file = self._folder / "config.yaml"
        if config is not None:
            file.write_text(config, encoding="utf-8")
        words = [word.replace(OUT, str(self._run)).replace("{config}", str(file)) for word in words]
        self._lines: list[str] = []
        self._output = b""
        self._copied, self._copied_at = 0.0, time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "coterie", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder if os.path.isdir(folder) else self._folder,
            env={**os.environ, "PYTHONPATH": module_path},
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_lines, self._read_output)]
        for reader in self._readers:
            reader.start()

    def poll(self) -> tuple[list[str], bytes | None, int | None, str]:
        """Waits a moment for the process.

        Returns:
            New lines of its messages; the files of its run if they are to be copied; its exit code, None while it
            runs; and at the end the last line of its output.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLL_SECONDS)
        code = self._process.returncode
        if code is None:
            return self._take_lines(), self._changed_run(), None, ""
        for reader in self._readers:
            reader.join(timeout=5)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        files = pack(self._run) if (self._run / "manifest.json").is_file() else None
        shutil.rmtree(self._folder, ignore_errors=True)
        report = (self._output.decode(errors="replace").strip().splitlines() or [""])[-1]
        return self._take_lines(), files, 128 - code if code < 0 else code, report

    def interrupt(self) -> None:
        """Interrupts the process, which saves its checkpoint and ends."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def _changed_run(self) -> bytes | None:
        """Returns the files of the run if it has a newer checkpoint than the last copy and some time has passed."""
        if time.monotonic() - self._copied_at < self._copy_seconds:
            return None
        with contextlib.suppress(OSError, tarfile.TarError):  # a checkpoint is being replaced: the next time
            changed = (self._run / "checkpoints").stat().st_mtime
            if changed != self._copied:
                files = pack(self._run)
                self._copied, self._copied_at = changed, time.monotonic()
                return files
        return None

    def _take_lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def _read_lines(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line.decode(errors="replace").rstrip())

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        while content := os.read(self._process.stdout.fileno(), _OUTPUT_BYTES):
            self._output = (self._output + content)[-_OUTPUT_BYTES:]


def _end_with_parent() -> None:
    """Ends the process with a checkpoint when the node's worker is lost, as Ray does when the sweep is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
