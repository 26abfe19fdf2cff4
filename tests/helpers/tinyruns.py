"""Tiny runs, for tests of whole runs."""

from __future__ import annotations

import atexit
import copy
import faulthandler
import functools
import gc
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.__main__ import main
from coterie.assembly.resolve import resolve
from coterie.checks.environment.contract import check
from coterie.commands import run_manifest
from coterie.commands import train as training
from coterie.config import provenance, strict_yaml
from coterie.core.serialize import Segment
from coterie.core.tree import tree_leaves
from coterie.runs import description
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.folder import RunFolder
from coterie.training.trainer import Trainer
from places import ROOT

TINY = (
    *("num_envs=4", "algo.rollout_length=10", "algo.hidden_sizes=[8]", "algo.epochs=2", "algo.num_minibatches=2"),
    *("steps=80", "threads=1", "device=cpu", "eval.every=120", "eval.episodes=4", "eval.num_envs=4"),
    "eval.min_episodes=1",
    *("log.tensorboard=false", "progress=off"),
)
"""Settings of a run that takes a fraction of a second."""
REPLAY = ("algo.learning_starts=0", "algo.batch_size=4", "algo.buffer_size=400")
"""Settings of a tiny run with a replay buffer."""
GRU = ("algo.rnn=gru", "algo.rnn_size=6")


DRAW_CURVES = training.draw_curves


def draw_nothing(folder: RunFolder) -> None:
    """Replaces `draw_curves`."""


def disable_flushing() -> None:
    """Replaces fsync by a no-op: a tiny run waits for the disk longer than it computes, and no test cuts the power.

    Tests of when files are flushed replace it by a function that counts. Files of a killed process are complete
    without it, since the operating system writes them.
    """
    os.fsync = lambda handle: None


def cache_git() -> None:
    """Calls git once per folder for the manifests of runs in Coterie's own checkout, instead of seven times per run.

    The checkout does not change while tests run. Other repositories are read each time.
    """
    description._git = _of_checkout(description._git)
    description._version = functools.cache(description._version)
    run_manifest.project_record = _of_checkout(run_manifest.project_record)


def cache_yaml() -> None:
    """Parses the settings of a run once, and once for runs that differ in their folder only: it takes 20 ms each time.

    Comments and the folder are no part of the key. A comment begins behind a space in lines without quotation marks,
    unless a text of several lines is in the file.
    """
    parse = strict_yaml.parse_settings
    found: dict[str, Any] = {}

    @functools.wraps(parse)
    def cached(text: str, name: str) -> Any:
        key, out = text, None
        if "|" not in text and ">" not in text:
            key = _COMMENT.sub(r"\1", text)
            if match := _OUT.search(key):
                key, out = _OUT.sub("out: /", key), match[1]
        if key not in found:
            leaves = parse(text, name)  # errors contain the name and are not kept
            if len(found) > 100:
                found.clear()
            found[key] = leaves
        leaves = copy.deepcopy(found[key])
        return leaves if out is None else [(k, out if k == "out" else x, line) for k, x, line in leaves]

    strict_yaml.parse_settings = cached
    provenance.parse_settings = cached


_COMMENT = re.compile(r"^([^\"'#\n]*?) +#.*$", re.MULTILINE)
_OUT = re.compile(r"^out: (/[\w./-]+)$", re.MULTILINE)


def _of_checkout(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that remembers its results for folders of the checkout and the current search path."""
    found: dict[Any, Any] = {}

    @functools.wraps(function)
    def cached(*arguments: Any) -> Any:
        paths = [Path.cwd(), *(path for value in arguments if isinstance(value, list) for path in value)]
        if not all(path.is_relative_to(ROOT) for path in paths):
            return function(*arguments)
        key = (paths[0], os.environ.get("PATH"), repr(arguments))
        if key not in found:
            found[key] = function(*arguments)
        return copy.deepcopy(found[key])

    return cached


def tiny(*settings: str) -> list[str]:
    """Returns the settings, completed by those of a tiny run, which has no epochs with a replay buffer."""
    given = {setting.partition("=")[0] for setting in settings}
    if "algo.buffer_size" in given:
        given |= {"algo.epochs", "algo.num_minibatches"}
    return [*(setting for setting in TINY if setting.partition("=")[0] not in given), *settings]


def train(out: Path, *settings: str) -> training.TrainingResult:
    """Trains a tiny run in the folder `out`."""
    return training.train(resolve([*tiny(*settings), f"out={out}"]))


def tiny_run(out: Path, *settings: str, stop: int | None = None) -> Path:
    """Copies a tiny run to `out` that is trained once per process and these settings, for tests of finished runs.

    Args:
        out: Folder of the copy, which is also returned.
        settings: Settings of the run.
        stop: Number of steps at which the run is stopped before its end.
    """
    shutil.copytree(_tiny_run(settings, stop), out)
    return out


@functools.cache
def _tiny_run(settings: tuple[str, ...], stop: int | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="coterie-trained-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        if stop is not None:
            stop_at(patch, stop)
        train(folder / "run", *settings)
    return folder / "run"


def stop_at(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Makes runs stop after the rollout that reaches `steps`, as a signal would."""
    train_once = Trainer.train_once

    def train_and_stop(trainer: Trainer) -> None:
        train_once(trainer)
        if trainer.steps >= steps:
            trainer.request_stop()

    monkeypatch.setattr(Trainer, "train_once", train_and_stop)


def assert_resumes_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stops: int | tuple[int, ...], *settings: str
) -> None:
    """Asserts that a tiny run that is stopped at `stops` and resumed ends and logs as an uninterrupted one.

    Their folders are `whole` and `halves`.
    """
    whole, parts = folder / "whole", folder / "halves"
    train(whole, *settings)
    for stop in stops if isinstance(stops, tuple) else (stops,):
        with monkeypatch.context() as patch:
            stop_at(patch, stop)
            if parts.exists():
                training.resume(parts, [])
            else:
                train(parts, *settings)
        assert stop <= checkpoint_state(parts)["steps"] < checkpoint_state(whole)["steps"]
    training.resume(parts, [])
    assert_same(checkpoint_state(whole), checkpoint_state(parts))
    assert log_entries(whole) == log_entries(parts)
    best = [path.read_text() for path in (whole / "checkpoints/best", parts / "checkpoints/best") if path.exists()]
    assert best in ([], 2 * best[:1])


def checkpoint_state(out: Path) -> dict[str, Any]:
    """Returns the state in the last checkpoint of a run."""
    found = Checkpoints(out / "checkpoints").latest()
    assert found is not None
    assert found.warning is None
    return found.state


def shorten_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the checks of environments, for faults that show at once."""
    monkeypatch.setattr("coterie.checks.environment.check_env._STEPS", 20)
    monkeypatch.setattr("coterie.checks.environment.check_env._COMPARED_STEPS", 10)
    monkeypatch.setattr("coterie.checks.environment.contract.check", functools.partial(check, steps=10, num_envs=2))


def log_entries(out: Path) -> list[dict[str, Any]]:
    """Returns the log entries of a run without times."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def assert_same(one: Any, other: Any, place: str = "") -> None:
    """Asserts that two states are bit-identical except for the wall time."""
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            if key != "wall_s":
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
    """Runs `coterie WORDS...` in another process, forked from one that has imported everything.

    Args:
        folder: Working directory.
        words: The command.
        die_at: Number of the file change (create, rename, remove) before which the process kills itself with SIGKILL.
        max_bytes: Maximum file size, as on a full disk.
        kills: Folder, and where it is copied to before every file change, as a kill at that moment would leave it.
        terminal: Terminal that the process gets as the leader of a new session. Default: none, output goes to a file.
        prepare: Function of a module, which the process calls first.
    """

    def __init__(
        self,
        folder: Path,
        *words: str | Path,
        die_at: int | None = None,
        max_bytes: int | None = None,
        kills: tuple[Path, Path] | None = None,
        terminal: Path | None = None,
        prepare: Callable[[], None] | None = None,
    ):
        self.output = folder / f"output-{next(_count)}.txt" if terminal is None else terminal
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED_MODULES)
        arguments = (list(map(str, words)), str(folder), str(self.output), die_at, max_bytes, kills, prepare)
        self._process = context.Process(target=_child, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill_after(self, seconds: float) -> bool:
        """Kills the process after `seconds`; returns True if it was still running."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.signal(signal.SIGKILL)
        self._process.join()
        return self._process.exitcode == -signal.SIGKILL

    def wait_for(self, found: Callable[[], bool]) -> None:
        """Waits until `found` returns True. AssertionError if the process ends before."""
        while not found():
            assert self._process.exitcode is None, f"ended with {self._process.exitcode}: {self.written()}"
            time.sleep(0.002)

    def end(self) -> tuple[int, str]:
        """Waits for the end. Returns the exit code, negative for a signal, and the output."""
        self._process.join(120)
        if self._process.exitcode is None:
            self.signal(signal.SIGQUIT)  # prints where its threads are
            self.kill_after(2)
            pytest.fail(f"still running after two minutes: {self.written()}")
        return self._process.exitcode, self.written()

    def written(self) -> str:
        """Returns the output so far."""
        return self.output.read_text() if self.output.is_file() else ""  # a terminal cannot be read again


_count = itertools.count()
PRELOADED_MODULES = [
    "tinyruns",
    "coterie.cli.app",
    "coterie.commands.train",
    "coterie.algos.ppo",
    "coterie.envs.worlds.particle.spread",
    "coterie.envs.worlds.particle.tag",
    "torch.utils.tensorboard",
]
PRELOADED_MODULES += ["coterie.envs.external.workers.worker_loop"]


def folders_of_kills(folder: Path, out: Path, *words: str | Path) -> list[Path]:
    """Returns copies of `out` as a kill before each file change of `coterie WORDS...` leaves it, equal ones once."""
    copies = folder / f"kills-{next(_count)}"
    code, output = Process(folder, *words, kills=(out, copies)).end()
    assert code == 0, output
    return sorted(copies.iterdir())


def _child(
    words: list[str],
    folder: str,
    output: str,
    die_at: int | None,
    max_bytes: int | None,
    kills: tuple[Path, Path] | None,
    prepare: Callable[[], None] | None,
) -> None:
    gc.freeze()  # a collection would copy all that the fork server has imported
    os.chdir(folder)
    if Path(output).is_char_device():
        os.setsid()  # a terminal that the leader of a session opens to read and write becomes the session's
    handle = os.open(output, os.O_RDWR | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    faulthandler.register(signal.SIGQUIT)
    sys.path.append(folder)
    training.draw_curves = draw_nothing
    disable_flushing()
    if max_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    if die_at is not None:
        _die_at(die_at)
    if kills is not None:
        _copy_before_changes(*kills)
    if prepare is not None:
        prepare()
    sys.argv = ["coterie", *words]
    sys.exit(main())


def _before_changes(action: Callable[[], None]) -> None:
    """Calls `action` before this process creates, renames or removes a file or folder."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in {"os.rename", "os.mkdir", "os.rmdir", "os.remove"}:
            action()

    sys.addaudithook(hook)


def _die_at(change: int) -> None:
    """Kills this process before its `change`-th change of a file."""
    changes = itertools.count(1)

    def die() -> None:
        if next(changes) >= change:
            os.kill(os.getpid(), signal.SIGKILL)

    _before_changes(die)


def _copy_before_changes(out: Path, copies: Path) -> None:
    seen: list[list[tuple[Path, bytes]]] = []
    copying = False

    def copy() -> None:
        nonlocal copying
        if copying or not out.exists():  # copying changes files, too
            return
        copying = True
        state = [(path, path.read_bytes() if path.is_file() else b"") for path in sorted(out.rglob("*"))]
        if state not in seen:
            shutil.copytree(out, copies / f"{len(seen):03}")
            seen.append(state)
        copying = False

    _before_changes(copy)


def save_forever(folder: Path) -> None:
    """Saves checkpoints with tensors and metadata that are their number of steps, after those that are there."""
    store = Checkpoints(folder)
    found = store.latest()
    for steps in itertools.count(1 + (found.steps if found else 0)):
        store.save(steps, {"w": torch.full((200, 100), float(steps))}, {"n": steps}, best=steps % 3 == 0)


def is_run(out: Path) -> bool:
    return (out / "config.yaml").exists() and (out / "manifest.json").exists()
