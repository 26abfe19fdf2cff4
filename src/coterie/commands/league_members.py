"""Members of a league: runs, scripts and the random policy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coterie.commands.learners import EvalMode, TrainedRun, eval_modes, load_run, make_algorithms
from coterie.config.resolve import load_resolved, resolve
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.specs import TeamSpec
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import RemappedPolicy
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.folder import RunFolder

BOTS = ("random", "scripted")
"""Members that are not runs: `random`, `scripted`, and `scripted:NAME`."""


@dataclass(frozen=True)
class Member:
    """A member of a league.

    Attributes:
        name: Name in tables.
        policies: Policy for each team.
        modes: Action selection for each team.
        warnings: Why another checkpoint than the preferred one was loaded.
        checkpoints: The checkpoint of each team, if the member is a run.
    """

    name: str
    policies: dict[str, Policy]
    modes: dict[str, Mode]
    warnings: tuple[str, ...] = ()
    checkpoints: dict[str, Any] = field(default_factory=dict)


def with_label(name: str) -> tuple[str, str]:
    """Returns the label of a member and its source."""
    label, equals, source = name.partition("=")
    if equals and re.fullmatch(r"[\w.+-]+", label) and not Path(name).exists():
        return label, source
    if _is_bot(name):
        return name, name
    config = load_resolved(RunFolder.open(Path(name)).config_path).config
    return f"{config.algo.name}-{config.seed}", name


def distinguish(labeled: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Labels runs with the same algorithm and seed by their folders."""
    labels = [label for label, _ in labeled]
    return [
        (Path(source).name if labels.count(label) > 1 and not _is_bot(source) else label, source)
        for label, source in labeled
    ]


def _is_bot(source: str) -> bool:
    return source.partition(":")[0] in BOTS and not Path(source).exists()


def common_config(labeled: Sequence[tuple[str, str]], overrides: Sequence[str]) -> RunConfig:
    """Returns the configuration whose environment all members share. UserError if they do not share it."""
    labels: set[str] = set()
    for label, _ in labeled:
        if label in labels:
            raise UserError(f"two members are named '{label}'. Give them names, e.g. first=RUN second=RUN.")
        labels.add(label)
    runs = [source for _, source in labeled if not _is_bot(source)]
    if not runs:
        return resolve([*overrides, "progress=off"]).config
    if overrides:
        raise UserError(f"the runs define the environment. Remove {' '.join(overrides)}.")
    configs = [load_resolved(RunFolder.open(Path(run)).config_path).config for run in runs]
    for run, config in zip(runs, configs, strict=True):
        for key, own, other in _env_differences(configs[0], config):
            raise UserError(
                f"{run} was trained with {key}={other}, but {runs[0]} with {own}. A league plays one environment with "
                "one setting: remove one of them."
            )
    return configs[0]


def _env_differences(one: RunConfig, other: RunConfig) -> list[tuple[str, Any, Any]]:
    """Returns the settings of the environment that differ, lessons and randomized parameters included."""

    def settings(config: RunConfig) -> dict[str, Any]:
        tree = config.tree()
        own = {f"env.{key}": value for key, value in tree["env"].items()}
        return {"env": config.env.name, **own} | {name: tree.get(name) for name in ("curriculum", "randomize")}

    first, second = settings(one), settings(other)
    return [(key, first.get(key), second.get(key)) for key in first | second if first.get(key) != second.get(key)]


def load_member(
    name: str,
    source: str,
    config: RunConfig,
    teams: dict[str, TeamSpec],
    *,
    mode: EvalMode,
    checkpoint: str,
    device: torch.device,
) -> Member:
    """Returns a member with a policy for each team.

    Args:
        name: Name in tables.
        source: Folder of a run, or a bot.
        config: Configuration with the environment of the league.
        teams: Teams of the environment by name.
        mode: Action selection.
        checkpoint: Checkpoint of the run. With auto and best, each team acts with its own best one, if it has one.
        device: Device of the networks.

    Raises:
        UserError: If it lacks a policy.
    """
    by_team = {team: _bot(source, config, teams, device) for team in teams} if _is_bot(source) else {}
    chosen = {}
    if not by_team:
        store = Checkpoints(RunFolder.open(Path(source)).checkpoints_path)
        separate = checkpoint in {"auto", "best"} and all(store.has_best(team) for team in teams)
        shared = None if separate else load_run(Path(source), checkpoint, device)
        by_team = {team: shared or load_run(Path(source), checkpoint, device, team=team) for team in teams}
        chosen = {team: run.choice for team, run in by_team.items() if run.choice is not None}
    policies: dict[str, Policy] = {}
    modes: dict[str, Mode] = {}
    for team, spec in teams.items():
        algorithms = by_team[team].algorithms
        if team not in algorithms:
            raise UserError(
                f"{source} trained the teams {', '.join(algorithms)}, but the league needs one for '{team}'. "
                "Train it with one team per side."
            )
        modes[team] = eval_modes(mode, algorithms)[team]
        policies[team] = RemappedPolicy(spec, algorithms[team].policy, modes[team])
    warnings = dict.fromkeys(line for choice in chosen.values() for line in choice.warnings)
    return Member(name, policies, modes, tuple(warnings), {team: choice.report() for team, choice in chosen.items()})


def _bot(source: str, config: RunConfig, teams: dict[str, TeamSpec], device: torch.device) -> TrainedRun:
    """Returns the algorithms of a member that is not a run."""
    kind, _, script = source.partition(":")
    settings = [f"algo={kind}", f"env={config.env.name}", *([f"algo.script={script}"] if script else [])]
    bot_config = resolve(settings).config.model_copy(update={"env": config.env})
    return TrainedRun(bot_config, make_algorithms(bot_config, teams, device))
