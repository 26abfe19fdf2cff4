"""Commands on several ranks whose processes are forks."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coterie.__main__ import main
from coterie.assembly import local_ranks
from tinyruns import Process


class ForkedRank(multiprocessing.get_context("fork").Process):
    """A rank that is forked from its command instead of started by `subprocess.Popen`, since imports take seconds."""

    def __init__(self, command: list[str], *, env: dict[str, str], stderr: Any = None, **_: Any):
        assert command[:3] == [sys.executable, "-m", "coterie"]
        super().__init__(target=_be_rank, args=(command[3:], env, stderr))
        self.start()

    returncode = property(lambda self: self.exitcode)

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> None:
        self.join()


def _be_rank(words: list[str], env: dict[str, str], stderr: Any) -> None:
    os.environ.update(env)
    if stderr is not None:
        os.dup2(stderr.fileno(), 2)
    sys.argv = ["coterie", *words]
    sys.exit(main())


def _fork_ranks() -> None:
    local_ranks.subprocess = SimpleNamespace(Popen=ForkedRank, DEVNULL=subprocess.DEVNULL)


class ForkedCommand(Process):
    """A command whose process and ranks are forks, with the methods of `subprocess.Popen` that campaigns use."""

    def __init__(self, folder: Path, *words: str):
        super().__init__(folder, *words, prepare=_fork_ranks)

    returncode = property(lambda self: self.poll())

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        return "", self.end()[1]
