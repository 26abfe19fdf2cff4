"""The study of a search: trials with their settings and results in SQLite, sampling and pruning by Optuna."""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from coterie.commands.tuning.dimensions import Dimension
from coterie.config.messages import show
from coterie.core.errors import UserError, one_line
from coterie.core.files import disk_error
from coterie.core.installation import install_extra
from coterie.core.seeds import seed_of
from coterie.core.text import shorten

STARTUP_TRIALS = 4
"""Finished trials before others are compared with them."""

_WARMUP_SHARE = 0.25
"""Share of the run before trials are pruned."""

_STARTUP_SAMPLES = 8
"""Trials with random settings before the sampler learns from results."""

_WAIT_SECONDS = 60
"""Time that a write to the database waits for other readers and writers."""

State = Literal["running", "finished", "pruned", "failed"]
_STATES: dict[str, State] = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a study.

    Attributes:
        number: Its number, 0 for the default settings.
        state: `running`, `finished`, `pruned` or `failed`.
        settings: Values of the settings that are searched, as text of the command line.
        values: Value of the metric at the end of the run of each seed; empty unless it has finished.
        reached: Last environment steps at which all seeds were evaluated, and the mean there; None before the first.
        reason: One line for a trial that failed.
        runs: Folders of the runs.
    """

    number: int
    state: State
    settings: Mapping[str, str] = field(default_factory=dict)
    values: tuple[float, ...] = ()
    reached: tuple[int, float] | None = None
    reason: str = ""
    runs: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """Mean over the seeds; NaN unless the trial has finished."""
        return sum(self.values) / len(self.values) if self.values else math.nan


def import_optuna() -> Any:
    """Imports Optuna. UserError with the command that installs it if it is missing."""
    try:
        optuna = importlib.import_module("optuna")
        importlib.import_module("sqlalchemy")
    except ImportError as error:
        raise UserError(
            f"coterie tune: requires '{error.name}', which is not installed. Install it with: {install_extra('tune')}"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@final
class Study:
    """A study in the file `study.db` of a folder, which is created or continued.

    Args:
        folder: The folder.
        space: The search space by key.
        identity: Values by name that must be equal to continue the study.
        defaults: Values of the settings of the search space in trial 0.
        minimize: True if lower values are better.
        steps: Environment steps of a run.
        seed: Seed of the sampler.
        prunes: False to finish all trials.

    Raises:
        UserError: If the file is not a study, or one with another identity.
    """

    def __init__(
        self,
        folder: Path,
        *,
        space: Mapping[str, Dimension],
        identity: Mapping[str, Any],
        defaults: Mapping[str, Any],
        minimize: bool,
        steps: int,
        seed: int,
        prunes: bool,
    ):
        self._optuna = import_optuna()
        self._folder, self._space, self._seed, self._prunes = folder, space, seed, prunes
        self.minimize = minimize
        path = folder / "study.db"
        if path.is_symlink():
            raise disk_error("the study", path, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
        with self._checked(path):
            self._study = self._open(path, steps)
            known = self._study.user_attrs.get("identity")
            if known is not None:
                _require_same(folder, dict(known), identity)
            for trial in self._study.get_trials(deepcopy=False):
                self._require_possible(trial)
            if not self._study.get_trials(deepcopy=False):
                self._study.set_user_attr("identity", dict(identity))
                self._study.set_user_attr("in_default", [k for k in space if space[k].fixed(defaults[k]) is not None])
                fixed = {key: dimension.fixed(defaults[key]) for key, dimension in space.items()}
                self._study.enqueue_trial({key: value for key, value in fixed.items() if value is not None})

    def _open(self, path: Path, steps: int) -> Any:
        pool = importlib.import_module("sqlalchemy.pool").NullPool  # no connection stays open when runs are forked
        storage = self._optuna.storages.RDBStorage(
            f"sqlite:///{path}", engine_kwargs={"poolclass": pool, "connect_args": {"timeout": _WAIT_SECONDS}}
        )
        pruner = self._optuna.pruners.MedianPruner(
            n_startup_trials=STARTUP_TRIALS, n_warmup_steps=math.ceil(_WARMUP_SHARE * steps)
        )
        return self._optuna.create_study(
            storage=storage,
            study_name="coterie",
            direction="minimize" if self.minimize else "maximize",
            pruner=pruner if self._prunes else self._optuna.pruners.NopPruner(),
            load_if_exists=True,
        )

    @contextlib.contextmanager
    def _checked(self, path: Path) -> Iterator[None]:
        """Turns errors of the database into one line, and hides warnings of experimental features."""
        database_error: Any = importlib.import_module("sqlalchemy.exc").SQLAlchemyError
        exceptions = self._optuna.exceptions
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except (database_error, exceptions.StorageInternalError) as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise UserError(f"{path}: cannot be used: {reason}. Choose another folder with --out.") from error
        except RuntimeError as error:  # of another version of Optuna
            raise UserError(f"{path}: {str(error).splitlines()[0]}") from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path}: not a study of `coterie tune` ({shorten(one_line(error))}). Choose another folder with --out."
            ) from error

    def _require_possible(self, trial: Any) -> None:
        """Raises UserError for a trial that no search has written: its settings become words of commands."""
        attributes, problem = trial.user_attrs, ""
        for key, text in dict(attributes.get("settings", {})).items():
            if key not in self._space or not isinstance(text, str) or not self._space[key].contains(text):
                problem = f"{shorten(f'{key}={text}')} is not searched"
        values = attributes.get("values", [])
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            problem = "its values are not finite numbers"
        if trial.state.name == "COMPLETE" and not values:
            problem = "it has no values"
        if not all(isinstance(text, str) for text in (attributes.get("reason", ""), *attributes.get("runs", []))):
            problem = "its reason or runs are not text"
        if problem:
            raise UserError(
                f"{self._folder / 'study.db'}: trial {trial.number} is not of this search, {problem}. Choose another "
                "folder with --out."
            )

    @property
    def records(self) -> list[TrialRecord]:
        """All trials that were started, in their order."""
        waiting = self._optuna.trial.TrialState.WAITING
        return [self._record(trial) for trial in self._study.get_trials(deepcopy=False) if trial.state != waiting]

    def ask(self) -> Trial:
        """Starts a trial and returns it. Equal studies with the same results so far get equal settings."""
        with self._checked(self._folder / "study.db"):
            self._set_sampler(len(self.records))
            return self._with_settings(self._study.ask())

    def unfinished(self) -> list[Trial]:
        """Returns the trials that were running when the study was interrupted.

        One that was interrupted before its settings were stored gets those that it would have had, because they follow
        from its number and the results so far.
        """
        running = self._optuna.trial.TrialState.RUNNING
        found = []
        with self._checked(self._folder / "study.db"):
            for frozen in self._study.get_trials(deepcopy=False, states=(running,)):
                self._set_sampler(frozen.number)
                trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
                settings = frozen.user_attrs.get("settings")
                found.append(self._with_settings(trial) if settings is None else Trial(self, trial, settings))
        return found

    def _set_sampler(self, number: int) -> None:
        """Sets the sampler of a trial, whose seed follows from the trial's number."""
        self._study.sampler = self._optuna.samplers.TPESampler(
            seed=seed_of(self._seed, "tune", number) % 2**32, n_startup_trials=_STARTUP_SAMPLES, multivariate=True
        )

    def _with_settings(self, trial: Any) -> Trial:
        """Suggests the settings of a trial that has begun, and stores them."""
        in_default = self._study.user_attrs["in_default"]
        wanted = {k: d for k, d in self._space.items() if trial.number or k in in_default}
        settings = {key: dimension.suggest(trial) for key, dimension in wanted.items()}
        settings = settings if trial.number else {}  # the default settings are not written again
        trial.set_user_attr("settings", settings)
        return Trial(self, trial, settings)

    def tell(
        self,
        trial: Trial,
        state: State,
        *,
        values: Sequence[float] = (),
        reason: str = "",
        runs: Sequence[Path] = (),
    ) -> TrialRecord:
        """Records the end of a trial and returns it."""
        states = self._optuna.trial.TrialState
        with self._checked(self._folder / "study.db"):
            for name, value in (("values", list(values)), ("reason", reason), ("runs", [str(run) for run in runs])):
                trial.optuna.set_user_attr(name, value)
            if state == "finished":
                self._study.tell(trial.optuna, sum(values) / len(values))
            else:
                self._study.tell(trial.optuna, state=states.PRUNED if state == "pruned" else states.FAIL)
        return self.records[trial.number]

    def discard(self) -> None:
        """Removes the file of a study in which no trial has ended."""
        if all(record.state == "running" for record in self.records):
            (self._folder / "study.db").unlink(missing_ok=True)

    def importances(self) -> dict[str, float]:
        """Returns the share of each setting in the differences between finished trials, by PED-ANOVA.

        Empty with fewer than five finished trials, or if all their values are equal.
        """
        finished = [record for record in self.records if record.state == "finished"]
        if len(finished) < STARTUP_TRIALS + 1 or len({record.value for record in finished}) < 2:
            return {}
        with self._checked(self._folder / "study.db"):
            found = self._optuna.importance.get_param_importances(self._study)
        return {key: float(value) for key, value in found.items() if math.isfinite(value)}

    def _record(self, trial: Any) -> TrialRecord:
        attributes = trial.user_attrs
        steps = max(trial.intermediate_values, default=None)
        return TrialRecord(
            number=trial.number,
            state=_STATES.get(trial.state.name, "running"),
            settings=attributes.get("settings", {}),
            values=tuple(attributes.get("values", ())),
            reached=None if steps is None else (steps, trial.intermediate_values[steps]),
            reason=attributes.get("reason", ""),
            runs=tuple(attributes.get("runs", ())),
        )


@final
class Trial:
    """A trial that runs.

    Args:
        study: Its study.
        optuna: Optuna's trial.
        settings: Values of the settings that are searched, as text of the command line.
    """

    def __init__(self, study: Study, optuna: Any, settings: Mapping[str, str]):
        self.study, self.optuna, self.settings = study, optuna, dict(settings)
        self.number: int = optuna.number
        reached = study.records[self.number].reached
        self._reported = -1 if reached is None else reached[0]
        self._compared = self._reported - 1  # the search may have been killed before it stopped the trial

    def report(self, steps: int, value: float) -> bool:
        """Records the mean over the seeds at an evaluation.

        Args:
            steps: Environment steps, the same at that evaluation in all trials. Known ones are skipped.
            value: The mean.

        Returns:
            True if the trial is worse than the median of the finished ones at these steps. Never for trial 0.
        """
        if steps <= self._compared or not math.isfinite(value):
            return False
        self._compared = steps
        if steps > self._reported:
            self._reported = steps
            self.optuna.report(value, steps)
        return self.number > 0 and bool(self.optuna.should_prune())


def _require_same(folder: Path, known: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Raises UserError if the study in a folder is another one, with the first difference."""
    for name in dict.fromkeys((*identity, *known)):
        before, now = known.get(name), identity.get(name)
        if before == now:
            continue
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            name = next(key for key in dict.fromkeys((*now, *before)) if before.get(key) != now.get(key))
            before, now = before.get(name), now.get(name)
        raise UserError(
            f"{folder}: contains a study of other settings ({name} is {show(before)} there, {show(now)} here). Choose "
            "another folder with --out, or remove that one."
        )
