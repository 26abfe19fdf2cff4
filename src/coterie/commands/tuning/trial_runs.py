"""The runs of a trial: one process per seed, all at the same time, so that they reach the same steps together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from coterie.commands.sweep import out_word
from coterie.commands.sweep_processes import Running
from coterie.commands.sweep_runs import Found, find
from coterie.config.resolve import resolve
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.runs.evaluations import read_evaluations
from coterie.runs.folder import RunFolder

_INTERRUPTED, _USER_ERROR = (130, 143), 2
"""Exit codes of runs."""


@dataclass(frozen=True)
class Metric:
    """The metric that is searched for.

    Attributes:
        name: Name as in `eval.best`, without a minus sign; auto: the mean return of the first team that learns.
        not_learning: Teams whose algorithm does not learn.
    """

    name: str
    not_learning: tuple[str, ...] = ()

    def value(self, row: dict[str, Any]) -> float:
        """Returns the value in the log entry of an evaluation; NaN if it has none."""
        value = row.get(self.key(row) or "")
        return math.nan if value is None else float(value)

    def key(self, row: dict[str, Any]) -> str | None:
        """Returns the metric's name in the log entry of an evaluation; None if it has none."""
        if self.name != "auto":
            name = self.name.removeprefix("eval/")
            return next((key for key in (f"eval/{name}", f"eval/{name.partition('/')[2]}") if key in row), None)
        if "eval/return_mean" in row:
            return "eval/return_mean"
        keys = [key for key in row if key.startswith("eval/") and key.endswith("/return_mean") and key.count("/") == 2]
        return next((key for key in keys if key.split("/")[1] not in self.not_learning), None)


@dataclass
class _SeedRun:
    """The run of one seed."""

    seed: int
    out: Path
    config: RunConfig
    found: Found
    words: list[str]
    running: Running | None = None
    exit_code: int | None = None
    error: str = ""
    size: int = -1
    values: dict[int, float] = field(default_factory=dict)
    """Value of the metric by number of the evaluation."""

    @property
    def path(self) -> Path:
        return self.found.path or self.out


@final
class TrialRuns:
    """Starts, reads and stops the runs of a trial.

    Args:
        folder: Folder of the trial, which contains `seedN` for each seed.
        words: Settings, without seed and folder.
        config_file: Configuration file.
        seeds: The seeds.
        metric: The metric.

    Raises:
        UserError: If the settings are invalid together.
    """

    def __init__(
        self, folder: Path, words: Sequence[str], config_file: Path | None, *, seeds: Sequence[int], metric: Metric
    ):
        self._config_file, self._metric = config_file, metric
        self._runs: list[_SeedRun] = []
        for seed in seeds:
            out = folder / f"seed{seed}"
            own = [*words, f"seed={seed}", out_word(out)]
            config = resolve(own, config_file).config
            self._runs.append(_SeedRun(seed, out, config, find(config, out, named=True), own))
        every = self._runs[0].config.eval.every
        self._every = max(1, self._runs[0].config.steps // 20) if every is None else every
        self.steps = self._runs[0].config.steps

    @property
    def paths(self) -> list[Path]:
        return [run.path for run in self._runs if (run.path / "config.yaml").is_file()]

    @property
    def processes(self) -> list[Running]:
        return [run.running for run in self._runs if run.running is not None and run.exit_code is None]

    @property
    def has_ended(self) -> bool:
        return all(run.exit_code is not None for run in self._runs)

    @property
    def was_interrupted(self) -> bool:
        return any(run.exit_code in _INTERRUPTED for run in self._runs)

    @property
    def failure(self) -> str:
        """One line about the first run that failed; empty if none did."""
        return next((f"seed {run.seed}: {run.error}" for run in self._failed), "")

    @property
    def failed_by_mistake(self) -> bool:
        """True if the first run that failed has ended with the error of a user."""
        return next((run.exit_code == _USER_ERROR for run in self._failed), False)

    @property
    def _failed(self) -> list[_SeedRun]:
        return [run for run in self._runs if run.exit_code not in (None, 0, *_INTERRUPTED)]

    def start(
        self,
        command: Callable[[], Sequence[str] | None],
        *,
        threads: int | None,
        cores: Callable[[], frozenset[int]],
    ) -> None:
        """Starts the runs that are not finished.

        Args:
            command: Returns the program that runs Coterie; None to fork.
            threads: PyTorch threads of each run; None for those that are configured.
            cores: Returns the cores of the next run.
        """
        for run in self._runs:
            if run.found.state == "finished":
                run.exit_code = 0
                continue
            if run.found.path is not None:
                words = ["resume", str(run.found.path), "--trust", "--json"]
            else:
                config = ["--config", str(self._config_file)] if self._config_file else []
                words = ["train", *run.words, *([f"threads={threads}"] if threads else []), *config, "--json"]
            log = run.out.with_name(f"{run.out.name}.log")
            run.running = Running(words, command(), cores(), log=log, on_line=lambda line: None)

    def poll(self) -> list[frozenset[int]]:
        """Reads outputs, logs and exit codes. Returns the cores of the runs that have ended since the last call."""
        free: list[frozenset[int]] = []
        for run in self._runs:
            if run.running is not None and run.exit_code is None:
                for stream in list(run.running.open_streams):
                    run.running.read(stream)
                if run.running.process.exit_code() is not None:
                    run.exit_code = run.running.close()
                    run.error = run.running.last_line.removeprefix("coterie: ") or f"exit code {run.exit_code}"
                    free.append(run.running.cores)
            self._read(run)
        return free

    def evaluations(self) -> list[tuple[int, float]]:
        """Returns the evaluations that all seeds have finished: nominal environment steps, and the mean of the metric.

        Steps are multiples of the interval between evaluations, because rollouts may end at others. The evaluation
        before the first update is left out.
        """
        shared = set.intersection(*(set(run.values) for run in self._runs))
        count = len(self._runs)
        return [(k * self._every, sum(run.values[k] for run in self._runs) / count) for k in sorted(shared) if k > 0]

    def final_values(self) -> list[float]:
        """Returns the value of the metric in the last evaluation of each seed.

        Raises:
            UserError: If an evaluation does not have the metric, or a value is not finite.
        """
        values = []
        for run in self._runs:
            rows = read_evaluations(RunFolder(run.path).metrics_path)
            value = self._metric.value(rows[-1]) if rows else math.nan
            if not math.isfinite(value):
                there = ", ".join(key for key in (rows[-1] if rows else ()) if key.startswith("eval/")) or "none"
                raise UserError(f"seed {run.seed}: no finite value of {self._metric.name} at the end, but {there}")
            values.append(value)
        return values

    def stop(self) -> None:
        """Interrupts the runs, which save their checkpoints and end."""
        for running in self.processes:
            running.interrupt()

    def kill(self) -> None:
        """Kills the runs."""
        for running in self.processes:
            running.kill()

    def _read(self, run: _SeedRun) -> None:
        """Reads the evaluations of a run if its log has grown."""
        file = RunFolder(run.path).metrics_path
        size = file.stat().st_size if file.is_file() else 0
        if size == run.size:
            return
        run.size = size
        for row in read_evaluations(file):
            value = self._metric.value(row)
            if math.isfinite(value):
                # The last evaluation of a run may follow soon after another one, whose value is not replaced.
                run.values.setdefault(int(row["steps"]) // self._every, value)
