"""`coterie reproduce`: trains the runs of a published table, continues interrupted ones, and compares the values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.commands.fresh_evaluation import evaluate_fresh
from coterie.config.schema import parse_count
from coterie.core.errors import UserError, nearest
from coterie.functional.intervals import mean_interval_95
from coterie.reports.collection import RETURN, read_run, series_of
from coterie.reports.published import Level, PublishedTable, Row
from coterie.reports.records import EvaluationSeries
from coterie.sweeps import sweep
from coterie.sweeps.job_processes import ForkGate
from coterie.sweeps.job_runs import find
from coterie.sweeps.sweep import Job

DEFAULT_OUT = Path("runs/reproduce")


@dataclass(frozen=True)
class Budget:
    """Environment steps of each run, at most the published number.

    Attributes:
        steps: The same number for all algorithms; None for a share.
        share: Share of the published number, above 0 and at most 1.
    """

    steps: int | None = None
    share: float = 1.0

    @classmethod
    def parse(cls, text: str | None) -> Budget:
        """Returns the budget for a number such as 100k or a percentage such as 5%; None for the published numbers.

        Raises:
            UserError: If the text is neither.
        """
        if text is None:
            return cls()
        steps = parse_count(text)
        if isinstance(steps, int) and steps >= 1:
            return cls(steps)
        number = text.strip().removesuffix("%")
        if number != text.strip() and number.replace(".", "", 1).isdecimal() and 0 < float(number) <= 100:
            return cls(share=float(number) / 100)
        raise UserError(
            f"--steps {text}: neither a number of environment steps nor a percentage of the published ones. Give one "
            "such as 100k or 5%."
        )

    def of(self, published: int) -> int:
        """Returns the environment steps of a run instead of the published ones."""
        return max(1, round(self.share * published)) if self.steps is None else min(self.steps, published)

    def note(self) -> str:
        """Returns a sentence for results with fewer steps than published; otherwise an empty string."""
        if self.steps is not None:
            return f"At most {self.steps:,} steps instead of the published number, as --steps asks."
        return f"{100 * self.share:g}% of the published steps, as --steps asks." if self.share < 1 else ""


_ROUNDING = 0.005
"""Largest error of published levels, which have two decimals."""


@dataclass(frozen=True)
class Choice:
    """Rows, algorithms and seeds of a table that are reproduced.

    Attributes:
        table: The table.
        rows: Its rows.
        algorithms: Columns.
        seeds: Seeds of each value.
        budget: Environment steps of each run.
        out: Folder of all runs.
    """

    table: PublishedTable
    rows: tuple[Row, ...]
    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    budget: Budget
    out: Path

    def steps_of(self, row: Row, algo: str) -> int:
        """Environment steps of a run."""
        return self.budget.of(self.table.steps(row, algo))


@dataclass(frozen=True)
class Value:
    """Results of an algorithm on a task.

    Attributes:
        row: Task.
        algo: Algorithm.
        steps: Environment steps of the runs.
        seeds: Seeds whose runs are finished.
        peak: Highest mean over seeds of an evaluation during training, the published convention; None without runs.
        peak_steps: Environment steps at that evaluation.
        absolute: Mean over seeds of fresh episodes of each run's best checkpoint, which are not chosen by their value;
            None without.
        published: The published level; None if there is none.
    """

    row: Row
    algo: str
    steps: int
    seeds: tuple[int, ...]
    peak: Level | None = None
    peak_steps: int | None = None
    absolute: Level | None = None
    published: Level | None = None

    @property
    def below(self) -> bool:
        """True if the interval of the value is below that of the published one by more than its rounding."""
        if self.peak is None or self.published is None:
            return False
        highest = self.peak.mean + (self.peak.half_width or 0.0)
        return highest < self.published.mean - (self.published.half_width or 0.0) - _ROUNDING

    def report(self) -> dict[str, Any]:
        """Returns plain numbers and strings."""
        levels = {"peak": self.peak, "absolute": self.absolute, "published": self.published}
        return {
            "row": self.row.name,
            "algo": self.algo,
            "steps": self.steps,
            "seeds": list(self.seeds),
            "peak_steps": self.peak_steps,
            **{key: None if level is None else vars(level) for key, level in levels.items()},
            "below": self.below,
        }


def choose(
    table: PublishedTable,
    rows: Sequence[str] = (),
    *,
    algorithms: Sequence[str] = (),
    num_seeds: int | None = None,
    budget: Budget = Budget(),
    out: Path = DEFAULT_OUT,
) -> Choice:
    """Checks what to reproduce.

    Args:
        table: The table.
        rows: Names of rows; none for all of them.
        algorithms: Columns; none for all that Coterie has.
        num_seeds: Number of seeds, from the first on; None for all.
        budget: Environment steps of each run.
        out: Folder of all runs.

    Raises:
        UserError: If a row or column does not exist, or if there are too many seeds.
    """
    for algo in algorithms:
        if algo not in table.columns:
            raise UserError(f"--algo {algo}: not a column of {table.name}. {nearest(algo, table.algorithms)}")
        if algo not in table.algorithms:
            raise UserError(f"--algo {algo}: Coterie does not have it. Columns: {', '.join(table.algorithms)}.")
    count = len(table.seeds)
    if num_seeds is not None and not 1 <= num_seeds <= count:
        raise UserError(
            f"--seeds {num_seeds}: {table.name} has {len(table.seeds)} seeds. Choose 1 to {len(table.seeds)}."
        )
    return Choice(
        table=table,
        rows=tuple(table.row(name) for name in dict.fromkeys(rows)) or tuple(table.rows.values()),
        algorithms=tuple(name for name in table.algorithms if not algorithms or name in algorithms),
        seeds=table.seeds[:num_seeds],
        budget=budget,
        out=out / table.name,
    )


# ------------------------------------------------------------------------------------------------------------- training


def train(choice: Choice, num_parallel: int = 1, gate: ForkGate | None = None) -> int:
    """Trains what is missing, rows in their order, and evaluates the best checkpoints.

    Args:
        choice: Rows, algorithms and seeds.
        num_parallel: Runs at the same time.
        gate: As in `sweep.run_all`.

    Returns:
        0, the highest exit code of failed runs, or 130 after an interruption. Failed runs do not stop the others.
    """
    code = 0
    if opponents := dict(opponent_jobs(choice)):
        code = sweep.run_all(list(opponents.values()), num_parallel=num_parallel, gate=gate, tables=False)
        # The runs of values can be planned only when those of their opponents exist.
        failed = {row for row, job in opponents.items() if find(job.config, job.out, named=True).state != "finished"}
        choice = replace(choice, rows=tuple(row for row in choice.rows if row.name not in failed))
    jobs = [job for _, _, job in value_jobs(choice)]
    if jobs and code != sweep.INTERRUPTED:
        code = max(code, sweep.run_all(jobs, num_parallel=num_parallel, gate=gate, tables=False))
    if code != sweep.INTERRUPTED:
        _evaluate_best(choice)
    return code


def shell_commands(choice: Choice) -> list[str]:
    """Returns all runs as lines for a shell. Those of opponents come first."""
    opponents = (job for _, job in opponent_jobs(choice))
    return sweep.shell_commands([*opponents, *(job for _, _, job in value_jobs(choice))])


def opponent_jobs(choice: Choice) -> Iterator[tuple[str, Job]]:
    """Names of rows with fixed opponents, and the runs that train these."""
    for row in choice.rows:
        if row.opponents is not None:
            # A share does not apply: opponents with few steps would be weak ones.
            steps = Budget(choice.budget.steps).of(row.opponents.steps)
            words = choice.table.settings(row, row.opponents.algo, steps)
            folder = _opponent_folder(choice, row)
            (job,) = sweep.plan([*words, f"seed={row.opponents.seed}", f"out={folder}"])
            yield row.name, replace(job, name=f"{row.name}/opponents", configuration=f"{row.name}, opponents")


def value_jobs(choice: Choice, *, started: bool = False) -> Iterator[tuple[Row, str, Job]]:
    """Row, algorithm and job of every run, or only of those that were `started`."""
    for row in choice.rows:
        for algo in choice.algorithms:
            words = choice.table.settings(row, algo, choice.steps_of(row, algo))
            if row.opponents is not None:
                words.append(f"teams.{row.opponents.team}.run={_opponent_folder(choice, row)}")
            for seed in choice.seeds:
                folder = choice.out / row.name / algo / f"seed{seed}"
                if started and not folder.exists():
                    continue
                (job,) = sweep.plan([*words, f"seed={seed}", f"out={folder}"])
                yield row, algo, replace(job, name=f"{row.name}/{algo}/seed{seed}", configuration=f"{row.name}, {algo}")


def _opponent_folder(choice: Choice, row: Row) -> Path:
    return choice.out / row.name / "opponents"


def _evaluate_best(choice: Choice) -> None:
    """Evaluates the best checkpoint of every finished run once, in episodes that did not choose it."""
    for (row, algo), folders in finished_runs(choice).items():
        for folder in folders:
            label = f"fresh evaluation of {row}/{algo}/{folder.name}"
            evaluate_fresh(folder, choice.table.absolute_episodes, label)


def finished_runs(choice: Choice) -> dict[tuple[str, str], list[Path]]:
    """Returns the folders of the finished runs by row and algorithm, in the order of the seeds."""
    found: dict[tuple[str, str], list[Path]] = {}
    for row, algo, job in value_jobs(choice, started=True):
        run = find(job.config, job.out, named=True)
        if run.state == "finished" and run.path is not None:
            found.setdefault((row.name, algo), []).append(run.path)
    return found


# --------------------------------------------------------------------------------------------------------------- values


def values(choice: Choice) -> list[Value]:
    """Returns the results of the finished runs, row by row in the order of the columns."""
    finished = finished_runs(choice)
    return [
        _value(choice, row, algo, finished.get((row.name, algo), []))
        for row in choice.rows
        for algo in choice.algorithms
    ]


def _value(choice: Choice, row: Row, algo: str, folders: Sequence[Path]) -> Value:
    value = Value(row, algo, choice.steps_of(row, algo), (), published=row.published.get(algo))
    if not folders:
        return value
    runs = [read_run(folder) for folder in folders]
    team = row.team if row.team in runs[0].teams else ""
    series = [one for run in runs if (one := series_of(run, team=team)) is not None]
    divisor = runs[0].agents[team] if row.scale == "agent" else 1
    peak, peak_steps = peak_of_mean(series, divisor)
    fresh = [one.mean() / divisor for run in runs if (one := run.fresh_values("best", team, RETURN)) is not None]
    absolute = _level(fresh) if len(fresh) == len(runs) else None
    seeds = tuple(run.seed for run in runs if run.seed is not None)
    return replace(value, seeds=seeds, peak=peak, peak_steps=peak_steps, absolute=absolute)


def peak_of_mean(series: Sequence[EvaluationSeries], divisor: float = 1.0) -> tuple[Level | None, int | None]:
    """Returns the highest mean over seeds of an evaluation, with its 95% interval and environment steps.

    Evaluations take place at the first update after a multiple of the interval. Where episodes differ in length, so do
    the steps of the seeds: evaluations belong together if they have the same number in all series, and if all of them
    come before the next one of any series.

    Args:
        series: Evaluations of each seed. If some are missing, only steps at which all seeds were evaluated count.
        divisor: Number by which returns are divided, such as the number of agents.

    Returns:
        The level and the highest number of steps of the seeds; (None, None) if there is no such evaluation.
    """
    if not series:
        return None, None
    if _same_schedule(series):
        chosen = [slice(None)] * len(series)
    else:
        shared = sorted(set.intersection(*(set(one.steps.tolist()) for one in series)))
        chosen = [np.searchsorted(one.steps, shared) for one in series]
    steps = np.stack([one.steps[places] for one, places in zip(series, chosen, strict=True)])  # [seeds, P]
    scores = np.stack([one.mean[places] for one, places in zip(series, chosen, strict=True)]) / divisor
    if not steps.size:
        return None, None
    best = int(scores.mean(axis=0).argmax())
    return _level(scores[:, best].tolist()), int(steps[:, best].max())


def _same_schedule(series: Sequence[EvaluationSeries]) -> bool:
    """Returns True if the evaluations of the same number belong together."""
    if len({len(one) for one in series}) > 1:
        return False
    steps = np.stack([one.steps for one in series])  # [seeds, P]
    return bool((steps[:, :-1].max(axis=0, initial=-1) < steps[:, 1:].min(axis=0)).all())


def _level(means: Sequence[float]) -> Level:
    """Returns the mean over seeds with its 95% interval by Student's t distribution; one seed has no interval."""
    mean, half_width = mean_interval_95([float(one) for one in means])
    return Level(mean, None if math.isnan(half_width) else half_width)


def as_rows(found: Sequence[Value]) -> tuple[list[str], list[list[Any]]]:
    """Returns the columns and rows of a table of values."""
    columns = ["row", "algo", "seeds", "steps", "peak", "at step", "best, fresh", "published", ""]
    rows = [
        [
            value.row.name,
            value.algo,
            len(value.seeds) or "not run",
            value.steps,
            _shown(value.peak),
            value.peak_steps,
            _shown(value.absolute),
            f"{value.published}{'' if value.row.confirmed else ' *'}" if value.published else None,
            "below the published interval" if value.below else "",
        ]
        for value in found
    ]
    return columns, rows


def notes(choice: Choice) -> list[str]:
    """Returns the conditions under which the values are comparable, in sentences."""
    lines = [
        f"{choice.table.title}, {choice.table.source}.",
        "peak: highest mean over seeds of an evaluation, with its 95% interval, as published. It is biased upward.",
        f"best, fresh: {choice.table.absolute_episodes:,} new episodes of each seed's best checkpoint.",
    ]
    if not all(row.confirmed for row in choice.rows):
        lines.append("* Not checked against a second source.")
    lines += [f"{row.name}: {row.note}." for row in choice.rows if row.note]
    lines += [note] if (note := choice.budget.note()) else []
    return lines


def as_markdown(choice: Choice, found: Sequence[Value]) -> str:
    """Returns the values and their conditions as a Markdown document."""
    columns, rows = as_rows(found)
    lines = [columns, ["---"] * len(columns), *rows]
    text = ["| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines]
    return "\n".join([f"# {choice.table.title}", "", *text, "", *(f"{line}\n" for line in notes(choice))])


def _shown(level: Level | None) -> str | None:
    if level is None:
        return None
    return f"{level.mean:.4g}" + ("" if level.half_width is None else f" ± {level.half_width:.2g}")
