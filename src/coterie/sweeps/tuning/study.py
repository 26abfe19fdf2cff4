"""The study of a search: its plan, checked before anything starts, and Optuna's study in SQLite.

A trial of the study has its parameters from Optuna, and in its user attributes `values`, the metric at the end of the
run of each seed, or the `reason` of its failure.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from coterie.algos import registry
from coterie.assembly.resolve import Resolved, resolve
from coterie.config.overrides import canonical, parse_all
from coterie.core.errors import UserError
from coterie.core.files import disk_error
from coterie.core.seeds import seed_of
from coterie.core.text import shorten
from coterie.runs.folder import default_parent
from coterie.sweeps.job_runs import difference, identity, settings_of
from coterie.sweeps.tuning.space import (
    Distribution,
    build_space,
    contains,
    parameter,
    range_text,
    read_space,
    split_words,
    suggest,
    value_text,
)

FIRST_SEED = 1000
"""First of the seeds by default, which no benchmark reports."""

STARTUP_TRIALS = 4
"""Finished trials before others are compared with them."""

STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
"""States of trials in reports by Optuna's names."""

_MAX_SEEDS = 100
_WARMUP_SHARE = 0.25
"""Share of the run before trials are pruned."""

_STARTUP_SAMPLES = 8
"""Trials with random settings before the sampler learns from results."""

_WAIT_SECONDS = 60
"""Time that a write to the database waits for other readers and writers."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


# ----------------------------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True)
class TunePlan:
    """A checked search.

    Attributes:
        words: Settings of all trials, as on the command line.
        config_file: Configuration file.
        resolved: The configuration that both result in.
        space: The settings that are searched, by key.
        seeds: Seeds of the runs of each trial.
        metric: Metric as `eval.best` names it: `auto`, METRIC or TEAM/METRIC, with a minus sign if lower is better.
        folder: Folder of the study.
    """

    words: tuple[str, ...]
    config_file: Path | None
    resolved: Resolved
    space: Mapping[str, Distribution]
    seeds: tuple[int, ...]
    metric: str
    folder: Path

    @property
    def minimize(self) -> bool:
        return self.metric.startswith("-")

    @property
    def metric_name(self) -> str:
        """Name of the metric in reports."""
        return "mean return" if self.metric == "auto" else self.metric

    @property
    def eval_every(self) -> int:
        """Environment steps between evaluations."""
        config = self.resolved.config
        return max(1, config.steps // 20) if config.eval.every is None else config.eval.every

    def metric_keys(self, row: Iterable[str]) -> list[str]:
        """Returns the names that the metric may have in the log entry of an evaluation."""
        name = self.metric.removeprefix("-").removeprefix("eval/")
        if name != "auto":
            return [f"eval/{name}", f"eval/{name.partition('/')[2]}"]
        config = self.resolved.config  # the mean return of the only team, or of the first one that learns
        silent = [team for team in config.teams if not _learns(config.algo_of(team).name)]
        means = [key for key in row if key.endswith("/return_mean") and key.startswith("eval/") and key.count("/") == 2]
        return ["eval/return_mean", *(key for key in means if key.split("/")[1] not in silent)]

    def trial_folder(self, number: int) -> Path:
        """Returns the folder of a trial, which contains `seedN` for each seed."""
        return self.folder / f"trial{number:03}"

    def identity(self) -> dict[str, Any]:
        """Returns the values that must be equal to continue the study."""
        settings = {key: value for key, value in settings_of(self.resolved.config).items() if _matters(key)}
        return {
            "settings": settings,
            "space": {key: range_text(distribution) for key, distribution in self.space.items()},
            "seeds": list(self.seeds),
            "metric": self.metric,
        }


def make_plan(
    words: Sequence[str],
    config_file: Path | None = None,
    *,
    space: Path | None = None,
    seeds: str = "3",
    metric: str | None = None,
    out: Path | None = None,
) -> TunePlan:
    """Returns the checked plan of a search.

    Args:
        words: Settings and ranges of the command line.
        config_file: Configuration file.
        space: YAML file with ranges, which words of the command line override.
        seeds: Number of seeds, or seeds such as `1000,1001` or `1000-1004`.
        metric: As in `TunePlan`. Default: `eval.best`.
        out: Folder of the study. Default: `runs/ENV/ALGO/tune-IDENTITY`.

    Raises:
        UserError: For any mistake, in one line.
    """
    settings, given = split_words(words)
    for override in parse_all(settings):
        if canonical(override.key) in {"seed", "out"}:
            option = f"--seeds {override.texts[0]}," if override.key == "seed" else f"--out {override.texts[0]}"
            raise UserError(f"{override.text}: each trial has several runs. Write {option} instead.")
    if metric is not None:
        settings.append(f"eval.best={metric}")
    resolved = resolve(settings, config_file)
    config = resolved.config
    if not any(_learns(algo) for algo in (config.algo.name, *(team.algo.name for team in config.teams.values()))):
        raise UserError(f"algo={config.algo.name}: does not learn. Choose an algorithm that does.")
    if config.eval.every == 0:
        raise UserError("eval.every=0: trials are compared by evaluations. Remove it.")
    if config.selfplay.enabled and config.eval.best == "auto":
        raise UserError(
            "selfplay.opponents: ratings of different runs are not comparable. Name a metric of the environment, e.g. "
            "--metric metric/won."
        )
    ranges = (read_space(space) if space is not None else {}) | given
    plan = TunePlan(
        words=tuple(settings),
        config_file=config_file,
        resolved=resolved,
        space=build_space(ranges, resolved, settings, config_file),
        seeds=_seeds(seeds),
        metric=config.eval.best,
        folder=Path(),
    )
    if out is None:
        parts = {name: part if isinstance(part, dict) else {"": part} for name, part in plan.identity().items()}
        values = {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}
        out = default_parent(config.env.name, config.algo.name) / f"tune-{identity(values)}"
    return replace(plan, folder=out)


def _seeds(text: str) -> tuple[int, ...]:
    """Returns the seeds of `3` (a number of seeds), `7,8`, or `1000-1004`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    matches = [re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", word) for word in words]
    if not words or None in matches:
        raise UserError(f"--seeds {text}: expected a number of seeds such as 3, or seeds such as 7,8 or 1000-1004.")
    spans = [(int(match[1]), int(match[2] or match[1])) for match in matches if match is not None]
    if "," not in text and "-" not in text:
        spans = [(FIRST_SEED, FIRST_SEED + spans[0][0] - 1)]
    count = sum(max(0, last - first + 1) for first, last in spans)
    if not 1 <= count <= _MAX_SEEDS:
        raise UserError(f"--seeds {text}: {count} seeds. Choose 1 to {_MAX_SEEDS}.")
    return tuple(dict.fromkeys(seed for first, last in spans for seed in range(first, last + 1)))


def _learns(algo: str) -> bool:
    return bool(registry.algorithm(algo).capabilities.learns)


def _matters(key: str) -> bool:
    """True for settings that have to be equal to continue a study."""
    return key not in {"seed", "out", "progress", "threads"} and not key.startswith(("log.", "checkpoint."))


# ---------------------------------------------------------------------------------------------------------------- study


def open_study(plan: TunePlan, *, prunes: bool = True) -> optuna.Study:
    """Creates or opens the study of a plan.

    Args:
        plan: The plan.
        prunes: False to finish all trials.

    Raises:
        UserError: If the file is not a study, or one with another identity.
    """
    path = plan.folder / "study.db"
    if path.is_symlink():
        raise disk_error("the study", path, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
    warmup = math.ceil(_WARMUP_SHARE * plan.resolved.config.steps)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=warmup)
    # Without a pool, no connection is open when runs are forked.
    engine = {"poolclass": NullPool, "connect_args": {"timeout": _WAIT_SECONDS}}
    with checked(plan):
        study = optuna.create_study(
            storage=optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=engine),
            study_name="coterie",
            direction="minimize" if plan.minimize else "maximize",
            pruner=pruner if prunes else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        known = study.user_attrs.get("identity")
        if known is not None:
            _require_same(plan, dict(known))
        trials = study.get_trials(deepcopy=False)
        for trial in trials:
            _require_possible(plan, trial)
        if not trials:
            study.set_user_attr("identity", plan.identity())
            study.enqueue_trial(_default_parameters(plan))
    return study


@contextlib.contextmanager
def checked(plan: TunePlan) -> Iterator[None]:
    """Context manager: errors of the study are one line, and warnings of Optuna's experimental features are hidden."""
    path = plan.folder / "study.db"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (SQLAlchemyError, OptunaError, RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = shorten(str(error.__cause__ or error).split("\n")[0])
        raise UserError(
            f"{path}: cannot be used as a study of `coterie tune` ({reason}). Choose another folder with --out."
        ) from error


def _require_same(plan: TunePlan, known: Mapping[str, Any]) -> None:
    """Raises UserError if the study is another one, with the first difference."""
    for name, now in plan.identity().items():
        before = known.get(name)
        if before != now:
            if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
                before, now = {name: before}, {name: now}
            change = difference(before, now)
            raise UserError(
                f"{plan.folder}: contains a study of other settings ({change}). Choose another folder with --out, or "
                "remove that one."
            )


def _require_possible(plan: TunePlan, trial: FrozenTrial) -> None:
    """Raises UserError for a trial that no search has written."""
    settings_of_trial(plan, trial)
    values, reason = trial.user_attrs.get("values", []), trial.user_attrs.get("reason", "")
    if trial.state == TrialState.COMPLETE and not (values and trial.value is not None and math.isfinite(trial.value)):
        raise _impossible(plan, trial, "it has no finite value")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise _impossible(plan, trial, "its values are not finite numbers")
    if not isinstance(reason, str):
        raise _impossible(plan, trial, "its reason is not text")


def settings_of_trial(plan: TunePlan, trial: FrozenTrial | optuna.Trial) -> dict[str, str]:
    """Returns the settings of a trial as text of the command line; none for trial 0, which has the default ones.

    Raises:
        UserError: For a value outside of the search space, because the study's file may be someone else's.
    """
    for key, value in trial.params.items():
        searched = plan.space.get(key)
        if searched is None or trial.distributions[key] != searched or not contains(searched, value):
            raise _impossible(plan, trial, f"{shorten(f'{key}={value}')} is not searched")
    return {key: value_text(value) for key, value in trial.params.items()} if trial.number else {}


def _impossible(plan: TunePlan, trial: FrozenTrial | optuna.Trial, problem: str) -> UserError:
    return UserError(
        f"{plan.folder / 'study.db'}: trial {trial.number} is not of this search, {problem}. Choose another folder "
        "with --out."
    )


def ask(plan: TunePlan, study: optuna.Study) -> optuna.Trial:
    """Starts a trial and returns it. Equal studies with the same results so far get equal parameters."""
    with checked(plan):
        study.sampler = _sampler(plan, len(started(study)))
        trial = study.ask()
        _suggest(plan, trial)
    return trial


def unfinished(plan: TunePlan, study: optuna.Study) -> list[optuna.Trial]:
    """Returns the trials that were running when the study was interrupted.

    One that was interrupted before its parameters were stored gets those that it would have had, because they follow
    from its number and the results so far.
    """
    trials = []
    with checked(plan):
        for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.sampler = _sampler(plan, frozen.number)
            trials.append(optuna.Trial(study, frozen._trial_id))
            _suggest(plan, trials[-1])
    return trials


def _suggest(plan: TunePlan, trial: optuna.Trial) -> None:
    """Suggests the parameters of a trial. Trial 0 has none for a default value outside of its range."""
    for key in plan.space if trial.number else _default_parameters(plan):
        suggest(trial, key, plan.space[key])


def started(study: optuna.Study) -> list[FrozenTrial]:
    """Returns all trials that were started, in their order."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]


def ranking(study: optuna.Study) -> list[FrozenTrial]:
    """Returns the finished trials, the best one first, and of equal ones that with the lowest number."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    best_is_high = study.direction == optuna.study.StudyDirection.MAXIMIZE
    return sorted(finished, key=lambda trial: trial.value or 0.0, reverse=best_is_high)


def _sampler(plan: TunePlan, number: int) -> optuna.samplers.BaseSampler:
    """Returns the sampler of a trial, whose seed follows from the trial's number."""
    seed = seed_of(plan.resolved.config.seed, "tune", number) % 2**32
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_SAMPLES, multivariate=True)


def _default_parameters(plan: TunePlan) -> dict[str, Any]:
    """Returns Optuna's parameters for the default settings, as far as they are within the ranges."""
    defaults = settings_of(plan.resolved.config)
    found = {key: parameter(key, distribution, defaults[key]) for key, distribution in plan.space.items()}
    return {key: value for key, value in found.items() if value is not None}
