"""The newest policies of a run that another process trains."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coterie.algos.replay.memory import no_memory_check
from coterie.assembly.environment import (
    lessons_of,
    load_teams,
    recorded_agents,
    require_recorded_agents,
    with_agent_order,
)
from coterie.assembly.learners import EvalMode, eval_modes, make_algorithms
from coterie.assembly.resolve import load_resolved
from coterie.core.errors import UserError
from coterie.core.files import read_text
from coterie.core.text import coterie_command
from coterie.envs.contract.vector import VectorEnv
from coterie.playing.game import Players
from coterie.runs.activity import Activity, activity
from coterie.runs.checkpoints import Checkpoints, CorruptError, decoding
from coterie.runs.folder import RunFolder
from coterie.runs.progress import duration
from coterie.runs.snapshots import SNAPSHOT, Snapshot, read_snapshot

_READ_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class _Source:
    """The newest file with policies: a snapshot, or the folder of a checkpoint."""

    path: Path
    written: float
    steps: int


class WatchedRun:
    """Policies of a run, updated from its newest checkpoint or snapshot. Reads the run's folder, never writes to it.

    Args:
        run: Folder of the run.
        mode: Action selection.

    Attributes:
        config: Configuration of the run.
        device: Device of the policies, the CPU.
        players: Policies that act.
        steps: Environment steps of the policies; None before the first ones were loaded.
    """

    def __init__(self, run: Path, mode: EvalMode):
        self.folder = RunFolder.open(run)
        config = load_resolved(self.folder.config_path).config
        manifest = self.folder.read_manifest()
        self.config = with_agent_order(config, recorded_agents(manifest))
        self.device = device = torch.device("cpu")  # a GPU is left to the training
        with no_memory_check():
            teams = load_teams(self.config, device)
            require_recorded_agents(manifest, config.env.name, teams)
            learners = make_algorithms(self.config, teams, device, with_rewards=False)
        self.players = Players(
            policies={name: learner.policy for name, learner in learners.items()},
            modes=eval_modes(mode, learners),
            algos={name: self.config.algo_of(name).name for name in learners},
        )
        self.steps: int | None = None
        self._source: _Source | None = None
        self._lesson: int | None = None
        self._total, self._config_written = self.config.steps, self.folder.config_path.stat().st_mtime
        self._read_at, self._activity = -float("inf"), activity(self.folder, self._total)

    def refresh(self) -> bool:
        """Loads newer policies if there are any. Call it between episodes. Returns True if policies were loaded.

        Policies are loaded of all teams or of none. A file that is being replaced is read at the next call.

        Raises:
            UserError: If the policies do not fit the configuration of the run.
        """
        source = self._newest()
        if source is None or source == self._source:
            return False
        found = self._read(source)
        if found is None:
            return False
        for name, policy in self.players.policies.items():
            policy.load_state_dict(found.policies[name])
        self._source, self.steps = source, found.steps
        return True

    def apply_lesson(self, env: VectorEnv) -> None:
        """Makes the next episodes those of the lesson that the run is at."""
        lessons, lesson = lessons_of(self.config), self.activity().lesson
        if lessons is not None and lesson is not None and lesson != self._lesson and 0 <= lesson <= lessons.last:
            lessons.apply(env, lessons.eval_lesson(lesson))
            self._lesson = lesson

    def activity(self) -> Activity:
        """Returns the state of the run, read at most once per second."""
        now = time.monotonic()
        if now - self._read_at >= _READ_AGAIN_SECONDS:
            self._read_at = now
            with contextlib.suppress(OSError, UserError):  # replaced by a resume just now
                written = self.folder.config_path.stat().st_mtime
                if written != self._config_written:
                    self._total, self._config_written = load_resolved(self.folder.config_path).config.steps, written
            self._activity = activity(self.folder, self._total)
        return self._activity

    def status(self) -> dict[str, Any]:
        """Returns what the page shows about the run: its state in words, steps, age of the policies, and returns."""
        now = self.activity()
        age = None if self._source is None else max(0.0, time.time() - self._source.written)
        steps = max(now.steps, self.steps or 0)
        return {
            "state": "waiting" if self.steps is None else now.state,
            "text": self._text(now, steps),
            "steps": steps,
            "total": self._total,
            "policy_steps": self.steps,
            "policy_age_s": age,
            "policy_age": None if age is None else duration(age),
            "training": now.training,
            "evaluation": now.evaluation,
        }

    def _text(self, now: Activity, steps: int) -> str:
        resume = coterie_command("resume", self.folder.path)
        if self.steps is None:
            if now.state == "training":
                return "Waiting for the first checkpoint of the run."
            return f"The run has no checkpoint and no process trains it. Continue with: {resume}"
        if now.state == "training":
            return "The run is training."
        if now.state == "finished":
            return f"The run has finished its {self._total:,} steps."
        return f"The run stopped at {steps:,} of {self._total:,} steps. Continue with: {resume}"

    def _newest(self) -> _Source | None:
        """Returns the snapshot if it is as new as the last checkpoint, otherwise that checkpoint; None without both.

        A run that was resumed can be at fewer steps than before, so that its last checkpoint is also the newest one.
        """
        checkpoint = None
        with contextlib.suppress(OSError, ValueError):
            name = read_text(self.folder.checkpoints_path / "last").strip()
            path = self.folder.checkpoints_path / name
            checkpoint = _Source(path, (path / "state.json").stat().st_mtime, int(name))
        path = self.folder.checkpoints_path / SNAPSHOT
        with contextlib.suppress(OSError):
            written = path.stat().st_mtime
            if self._source is not None and (self._source.path, self._source.written) == (path, written):
                snapshot: _Source | None = self._source
            else:
                found = read_snapshot(path)
                snapshot = None if found is None else _Source(path, written, found.steps)
            if snapshot is not None and (checkpoint is None or snapshot.steps >= checkpoint.steps):
                return snapshot
        return checkpoint

    def _read(self, source: _Source) -> Snapshot | None:
        """Returns the policies of a source, None if it was replaced since."""
        if source.path.name == SNAPSHOT:
            found = read_snapshot(source.path)
            return found if found is None or found.policies.keys() == self.players.policies.keys() else None
        try:
            loaded = Checkpoints(self.folder.checkpoints_path).latest(segments=False)
        except CorruptError:
            return None
        if loaded is None:
            return None
        with decoding(loaded):
            states = loaded.state["algorithms"]
            return Snapshot(loaded.steps, {name: states[name]["policy"] for name in self.players.policies})
