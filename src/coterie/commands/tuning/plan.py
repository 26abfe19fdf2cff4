"""The plan of a search: settings, search space, seeds and folder, checked before anything starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.commands.sweep_runs import identity, settings_of
from coterie.commands.tuning.dimensions import Dimension
from coterie.commands.tuning.space import build_space, read_space, split_words
from coterie.commands.tuning.trial_runs import Metric
from coterie.config import registry
from coterie.config.overrides import canonical, parse_all
from coterie.config.resolve import Resolved, resolve
from coterie.core.errors import UserError
from coterie.runs.folder import default_parent

FIRST_SEED = 1000
"""First of the seeds by default, which no benchmark reports."""

_MAX_SEEDS = 100


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
    space: Mapping[str, Dimension]
    seeds: tuple[int, ...]
    metric: str
    folder: Path

    @property
    def minimize(self) -> bool:
        return self.metric.startswith("-")

    def measured(self) -> Metric:
        """Returns the metric that is read from evaluations."""
        config = self.resolved.config
        silent = [team for team in config.teams if not _learns(config.algo_of(team).name)]
        return Metric(self.metric.removeprefix("-"), tuple(silent))

    def identity(self) -> dict[str, Any]:
        """Returns the values that must be equal to continue the study."""
        settings = {key: value for key, value in settings_of(self.resolved.config).items() if _matters(key)}
        return {
            "settings": settings,
            "space": {key: dimension.text for key, dimension in self.space.items()},
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
    if not _learns(config.algo.name) and not any(_learns(team.algo.name) for team in config.teams.values()):
        raise UserError(f"algo={config.algo.name}: does not learn. Choose an algorithm that does.")
    if config.eval.every == 0:
        raise UserError("eval.every=0: trials are compared by evaluations. Remove it.")
    if config.selfplay.enabled and config.eval.best == "auto":
        raise UserError(
            "selfplay.opponents: ratings of different runs are not comparable. Name a metric of the environment, e.g. "
            "--metric metric/won."
        )
    ranges = (read_space(space) if space is not None else {}) | given
    searched = build_space(ranges, resolved, settings, config_file)
    plan = TunePlan(
        words=tuple(settings),
        config_file=config_file,
        resolved=resolved,
        space=searched,
        seeds=_seeds(seeds),
        metric=config.eval.best,
        folder=Path("."),
    )
    folder = out or default_parent(config.env.name, config.algo.name) / f"tune-{identity(_flat(plan.identity()))}"
    return TunePlan(**{**vars(plan), "folder": folder})


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


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": part for name, value in values.items() for key, part in _items(value)}


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else [("", value)]
