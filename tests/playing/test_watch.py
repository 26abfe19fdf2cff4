"""Watching a run that another process trains: newest policies, states of the run, messages, and a real process."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from websockets.sync.client import connect

from coterie.assembly.environment import make_environment
from coterie.core.errors import UserError
from coterie.playing import watched_run
from coterie.playing.game import Game
from coterie.playing.page import Address
from coterie.playing.watch import Watcher, WatchOptions, watch
from coterie.playing.watched_run import WatchedRun
from coterie.runs.snapshots import SNAPSHOT, PolicySnapshots, read_snapshot
from tinyruns import Process, tiny, tiny_run

END = 156
"""Environment steps of the run at its end: rollouts of 40 steps, less when episodes restart."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two teams."""
    settings = ("env=particle/simple_tag", "algo=ippo", "eval.every=40", "checkpoint.every=40", "steps=120")
    return tiny_run(tmp_path / "run", *settings)


def parse(message: bytes) -> dict[str, Any]:
    (length,) = struct.unpack(">I", message[:4])
    return json.loads(message[4 : 4 + length])


def snapshot(run: Path, steps: int, fill: float) -> None:
    """Writes a snapshot whose parameters are all equal."""
    watched = WatchedRun(run, "auto")
    with torch.no_grad():
        for policy in watched.players.policies.values():
            for tensor in _tensors(policy.state_dict()):
                if tensor.is_floating_point():
                    tensor.fill_(fill)
    states = {name: policy.state_dict() for name, policy in watched.players.policies.items()}
    times = iter((0.0, 10.0, 10.0))
    assert PolicySnapshots(run / "checkpoints" / SNAPSHOT, 1.0, lambda: next(times)).write_if_due(steps, lambda: states)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)


def values(watched: WatchedRun) -> set[float]:
    """All parameters of the policies."""
    states = [policy.state_dict() for policy in watched.players.policies.values()]
    return {float(x) for state in states for t in _tensors(state) if t.is_floating_point() for x in t.flatten()}


def train_now(run: Path) -> None:
    """Lets the run look as if this process trained it."""
    (run / "lock").write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}))


def test_the_newest_policies_are_loaded(run: Path):
    watched = WatchedRun(run, "auto")
    assert watched.refresh()
    assert watched.steps == END
    assert not watched.refresh()
    snapshot(run, 160, 0.5)
    assert watched.refresh()
    assert (watched.steps, values(watched)) == (160, {0.5})
    snapshot(run, 200, 0.25)
    assert watched.refresh()
    assert (watched.steps, values(watched)) == (200, {0.25})
    (run / "checkpoints" / SNAPSHOT).unlink()  # the run was resumed from its checkpoint
    assert watched.refresh()
    assert watched.steps == END
    snapshot(run, 80, 0.5)  # older than the checkpoint
    assert not watched.refresh()


def test_a_damaged_snapshot_leaves_all_policies_as_they_are(run: Path):
    watched = WatchedRun(run, "auto")
    snapshot(run, 160, 0.5)
    assert watched.refresh()
    path = run / "checkpoints" / SNAPSHOT
    path.write_bytes(path.read_bytes()[:-20])
    watched.refresh()
    assert watched.steps == END  # the checkpoint is intact
    assert len(values(watched)) > 1


def test_watching_writes_nothing_to_the_folder_of_the_run(run: Path):
    before = {path: path.stat().st_mtime_ns for path in sorted(run.rglob("*"))}
    watched = WatchedRun(run, "auto")
    watched.refresh()
    watched.status()
    assert {path: path.stat().st_mtime_ns for path in sorted(run.rglob("*"))} == before


def test_the_state_of_the_run_is_shown_in_words(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watched_run, "_READ_AGAIN_SECONDS", 0.0)
    (run / "lock").unlink()
    watched = WatchedRun(run, "auto")
    text = "The run has no checkpoint and no process trains it. Continue with: coterie resume"
    assert watched.status()["text"].startswith(text)
    watched.refresh()
    assert watched.status()["text"] == "The run has finished its 120 steps."
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("steps: 120", "steps: 400", 1))  # resumed to train longer
    os.utime(run / "config.yaml", (1e9, 1e9))
    status = watched.status()
    assert status["text"] == f"The run stopped at {END} of 400 steps. Continue with: coterie resume {run}"
    assert (status["state"], status["steps"], status["total"], status["policy_steps"]) == ("stopped", END, 400, END)
    train_now(run)
    status = watched.status()
    assert (status["state"], status["text"]) == ("training", "The run is training.")
    assert set(status["evaluation"]) == set(status["training"]) == {"adversary", "agent"}
    assert 0 <= status["policy_age_s"] < 3600


class Watched:
    """A watcher with a clock of its own, and the messages that it sends."""

    def __init__(self, run: Path):
        self.now, self.sent = 0.0, []
        watched = WatchedRun(run, "auto")
        self.env = make_environment(watched.config, "play", num_envs=1, device=watched.device)
        game = Game(self.env, watched.players, [], seed=1, size=64)
        self.watcher = Watcher(watched, game, "a title", 10.0, lambda: self.now)
        self.watcher.send = lambda kind, message: self.sent.append(parse(message))

    def close(self) -> None:
        self.env.close()

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.watcher.advance()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["kind"] == kind]


def test_policies_change_between_episodes_only(run: Path):
    with closing(Watched(run)) as page:
        page.advance(8)
        assert page.sent[0]["kind"] == "hello"
        snapshot(run, 160, 0.5)
        page.advance(10)
        assert page.watcher.run.steps == END
        assert len({scene["timestep"]["episode"] for scene in page.of("scene")}) == 1
        page.advance(60)
        assert page.watcher.run.steps == 160
        episodes = [scene["timestep"]["episode"] for scene in page.of("scene")]
        assert episodes == sorted(episodes)
        assert set(episodes) >= {0, 1}
        finals = {
            s["timestep"]["episode"]: s["timestep"]["returns"] for s in page.of("scene") if s["timestep"]["final"]
        }
        status = page.of("run")[-1]
        assert status["policy_steps"] == 160
        assert 1 <= status["watched"]["episodes"] <= len(finals)
        complete = [finals[episode] for episode in range(status["watched"]["episodes"])]
        for team, mean in status["watched"]["returns"].items():
            assert mean == pytest.approx(sum(returns[team] for returns in complete) / len(complete))


def test_the_page_pauses_and_continues(run: Path):
    with closing(Watched(run)) as page:
        page.advance(5)
        page.watcher.handle('{"do": "pause", "on": true}')
        before = len(page.of("scene"))
        page.advance(5)
        assert len(page.of("scene")) == before
        page.watcher.handle('{"do": "step"}')
        assert len(page.of("scene")) == before + 1
        snapshot(run, 160, 0.5)
        page.watcher.handle('{"do": "new"}')
        assert page.watcher.run.steps == 160
        page.watcher.handle("nonsense")
        assert "invalid request" in page.of("note")[-1]["text"]


def test_the_page_waits_for_the_first_checkpoint(run: Path):
    hidden = run.parent / "hidden"
    (run / "checkpoints").rename(hidden)
    train_now(run)
    with closing(Watched(run)) as page:
        page.advance(3)
        assert [message["kind"] for message in page.sent] == ["run"] * len(page.sent)
        assert page.of("run")[-1]["text"] == "Waiting for the first checkpoint of the run."
        assert page.of("run")[-1]["state"] == "waiting"
        assert [parse(message)["kind"] for message in page.watcher.welcome()] == ["run"]
        page.watcher.handle('{"do": "new"}')  # nothing to do yet
        hidden.rename(run / "checkpoints")
        page.advance(3)
        kinds = [message["kind"] for message in page.sent]
        assert kinds[kinds.index("hello") :][:3] == ["hello", "scene", "state"]
        assert [parse(m)["kind"] for m in page.watcher.welcome()] == ["hello", "scene", "state", "run"]


def test_a_folder_without_a_run_is_a_one_line_error(tmp_path: Path):
    with pytest.raises(UserError, match="no such run"):
        watch(tmp_path / "none", WatchOptions(), Address())


@pytest.mark.slow
def test_a_run_is_watched_while_another_process_trains_it(tmp_path: Path):
    """Its policies arrive as snapshots. The run is killed, resumed and interrupted, which the page shows."""
    out = tmp_path / "run"
    settings = tiny("steps=10M", "checkpoint.every=5M", "eval.every=0", "checkpoint.policy_seconds=0.05", f"out={out}")
    trainer = Process(tmp_path, "train", *settings)
    trainer.wait_for((out / "manifest.json").exists)
    watcher = Process(tmp_path, "watch", out)
    try:
        watcher.wait_for(lambda: "http://" in watcher.written() and watcher.written().endswith("\n"))
        found = re.search(r"http://(\S+)/", watcher.written())
        assert found
        with connect(f"ws://{found[1]}/socket", proxy=None, open_timeout=60) as socket:

            def until(condition: Any) -> dict[str, Any]:
                while True:
                    fields = parse(socket.recv(timeout=120))  # type: ignore[arg-type]
                    if fields["kind"] == "run" and condition(fields):
                        return fields

            first = until(lambda status: status["state"] == "training" and status["policy_steps"])
            until(lambda status: status["policy_steps"] > first["policy_steps"])
            trainer.signal(signal.SIGKILL)
            assert trainer.end()[0] == -signal.SIGKILL
            stopped = until(lambda status: status["state"] == "stopped")
            assert "coterie resume" in stopped["text"]
            snapshot = out / "checkpoints" / SNAPSHOT
            killed = read_snapshot(snapshot)
            assert killed is not None
            trainer = Process(tmp_path, "resume", out)
            until(lambda status: status["state"] == "training")
            while (found := read_snapshot(snapshot)) is not None and found.steps == killed.steps:
                time.sleep(0.02)  # an interrupt before the training loop would leave it as it was
            trainer.signal(signal.SIGINT)
            assert trainer.end()[0] == 130
            until(lambda status: status["state"] == "stopped")
        assert not snapshot.exists()  # the checkpoint is newer
        watcher.signal(signal.SIGINT)
        assert watcher.end()[0] == 0
    finally:
        for process in (trainer, watcher):
            process.kill_after(0)
