"""Tiny runs, and a tiny world whose every number is known, for the tests of whole runs."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie.plot
from coterie import run
from coterie.__main__ import main
from coterie.checkpoint import Checkpoints
from coterie.config import resolve
from coterie.loop import Trainer
from coterie.segments import Segment
from coterie.types import tree_leaves

TINY = (
    *("copies=4", "algo.horizon=10", "algo.hidden=[8]", "algo.epochs=2", "algo.minibatches=2"),
    *("steps=80", "threads=1", "device=cpu", "eval.every=120", "eval.episodes=4", "eval.copies=4"),
    *("log.tensorboard=false", "progress=off"),
)
"""Settings of a run that takes a fraction of a second."""


def tiny(*settings: str) -> list[str]:
    """The settings, and those of a tiny run that they leave open."""
    given = {setting.partition("=")[0] for setting in settings}
    return [*(setting for setting in TINY if setting.partition("=")[0] not in given), *settings]


def train(out: Path, *settings: str) -> run.Result:
    """A tiny run in the folder `out`."""
    return run.train(resolve([*tiny(*settings), f"out={out}"]))


def stop_at(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Runs from now on are asked to stop in the window that reaches `steps`, as a signal would."""
    advance = Trainer._advance

    def asked(trainer: Trainer) -> dict[str, float]:
        row = advance(trainer)
        if trainer.steps >= steps:
            trainer.request_stop()
        return row

    monkeypatch.setattr(Trainer, "_advance", asked)


def assert_resumes_to_the_bit(folder: Path, monkeypatch: pytest.MonkeyPatch, stop: int, *settings: str) -> None:
    """A tiny run that is stopped at `stop` steps and resumed ends as one that was not; both go into `folder`."""
    train(folder / "whole", *settings)
    with monkeypatch.context() as patch:
        stop_at(patch, stop)
        train(folder / "halves", *settings)
    assert state_of(folder / "halves")["steps"] < state_of(folder / "whole")["steps"]
    assert main(["resume", str(folder / "halves")]) == 0
    assert_same(state_of(folder / "halves"), state_of(folder / "whole"))


def state_of(out: Path) -> dict[str, Any]:
    """What the last checkpoint of a run holds."""
    found = Checkpoints(out / "checkpoints").latest()
    assert found is not None
    assert found.warning is None
    return found.state


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics without what is measured by the clock."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def assert_same(one: Any, other: Any, place: str = "") -> None:
    """Two states are equal to the bit, apart from the wall time."""
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            if key != "wall":
                assert_same(one[key], other[key], f"{place}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{place}/{i}")
    elif isinstance(one, Segment):
        assert_same(one.read(), other.read(), place)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, place
        assert one.shape == other.shape, place
        assert one.numpy().tobytes() == other.numpy().tobytes(), place
    else:
        assert one == other, place


def all_finite(tree: Any) -> bool:
    return all(bool(x.isfinite().all()) for x in tree_leaves(tree) if isinstance(x, torch.Tensor))


# ------------------------------------------------------------------------------------- processes of their own


class Process:
    """`coterie WORDS...` as a process of its own, forked from one that has imported everything already.

    die_at: it is killed with SIGKILL just before so many changes to files (created, renamed, removed) are done;
    most_bytes: length that no file can grow past, as on a full disk.
    """

    def __init__(self, folder: Path, *words: str | Path, die_at: int | None = None, most_bytes: int | None = None):
        self.said = folder / f"said-{next(_count)}.txt"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        arguments = (list(map(str, words)), str(folder), str(self.said), die_at, most_bytes)
        self._process = context.Process(target=_child, args=arguments)
        self._process.start()

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill_after(self, seconds: float) -> bool:
        """Whether the process lived for so long and was killed then."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.signal(signal.SIGKILL)
        self._process.join()
        return self._process.exitcode == -signal.SIGKILL

    def wait_for(self, found: Callable[[], bool]) -> None:
        """Until `found` holds; AssertionError if the process ends before."""
        while not found():
            assert self._process.exitcode is None, f"ended with {self._process.exitcode}: {self.said.read_text()}"
            time.sleep(0.002)

    def end(self) -> tuple[int, str]:
        """The exit code, negative for a signal, and what was said on stderr."""
        self._process.join(120)
        assert self._process.exitcode is not None, "still running after two minutes"
        return self._process.exitcode, self.said.read_text()


_count = itertools.count()
_IMPORTED = ["tinyruns", "coterie.cli", "coterie.run", "coterie.algos.ppo", "torch._dynamo", "torch.utils.tensorboard"]
_IMPORTED += ["coterie.envs.workers.serve"]


def _child(words: list[str], folder: str, said: str, die_at: int | None, most_bytes: int | None) -> None:
    os.chdir(folder)
    handle = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.path.append(folder)
    coterie.plot.plot = lambda runs, out: []
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    if die_at is not None:
        _die_at(die_at)
    sys.exit(main(words))


def _die_at(change: int) -> None:
    """Kills this process before the `change`-th time that it creates, renames or removes a file or a folder."""
    changes = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in {"os.rename", "os.mkdir", "os.rmdir", "os.remove"}) and next(changes) >= change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def is_run(out: Path) -> bool:
    return (out / "config.yaml").exists() and (out / "manifest.json").exists()
