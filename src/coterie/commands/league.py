"""League: members play every side of one environment against every other member."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.assembly.environment import make_environment, select_device
from coterie.assembly.learners import EvalMode, TrainedRun, eval_modes, load_run, make_algorithms
from coterie.assembly.resolve import load_resolved, resolve
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError
from coterie.core.markup import Markup, element, join, paragraphs, table
from coterie.core.process import configure_process
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.envs.contract.vector import VectorEnv, closed
from coterie.functional.intervals import Z_95, standard_error
from coterie.functional.ratings import elo
from coterie.policies.base import Mode, Policy
from coterie.policies.remapped import RemappedPolicy
from coterie.runs.checkpoints import Checkpoints
from coterie.runs.folder import RunFolder
from coterie.training.evaluation import ProgressCallback, evaluate
from coterie.training.opponents import win_criterion, win_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def labeled_members(names: Sequence[str]) -> dict[str, str]:
    """Returns the source of each member by its label: the given one, the bot, or the run's algorithm and seed.

    Runs with the same algorithm and seed are labeled by their folders.

    Raises:
        UserError: If two members have the same label.
    """
    labeled = [_with_label(name) for name in names]
    labels = [label for label, _ in labeled]
    found: dict[str, str] = {}
    for label, source in labeled:
        if labels.count(label) > 1 and not _is_bot(source):
            label = Path(source).name
        if label in found:
            raise UserError(f"two members are named '{label}'. Give them names, e.g. first=RUN second=RUN.")
        found[label] = source
    return found


def _with_label(name: str) -> tuple[str, str]:
    """Returns the label of a member and its source."""
    label, equals, source = name.partition("=")
    if equals and re.fullmatch(r"[\w.+-]+", label) and not Path(name).exists():
        return label, source
    if _is_bot(name):
        return name, name
    config = load_resolved(RunFolder.open(Path(name)).config_path).config
    return f"{config.algo.name}-{config.seed}", name


def _is_bot(source: str) -> bool:
    return source.partition(":")[0] in BOTS and not Path(source).exists()


def _common_config(sources: Iterable[str], overrides: Sequence[str]) -> RunConfig:
    """Returns the configuration whose environment all members share. UserError if they do not share it."""
    runs = [source for source in sources if not _is_bot(source)]
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


@dataclass(frozen=True)
class LeagueOptions:
    """Options of a league.

    Attributes:
        episodes: Episodes per pair.
        mode: Action selection.
        checkpoint: Checkpoint of the runs: auto, best, best:TEAM, last or a number of steps.
        seed: Seed of the episodes, the same for every pair.
    """

    episodes: int = 100
    mode: EvalMode = "auto"
    checkpoint: str = "auto"
    seed: int = 0


@dataclass(frozen=True)
class LeagueResult:
    """Result of a league of P members. Rows play the first team, columns the second.

    Attributes:
        env: Name of the environment.
        members: Names of the members.
        teams: The two teams.
        returns: Mean return by team, [P, P] each.
        error: Standard error of the mean return by team, [P, P] each.
        score: Share of episodes won by the row, draws counted half, [P, P].
        games: Episodes per pair.
        symmetric: True if the two sides are equal.
        win_criterion: Description of how the winner is determined.
        warnings: Why other checkpoints than the preferred ones were loaded.
        checkpoints: The checkpoint of each team of each run, by member and team.
    """

    env: str
    members: tuple[str, ...]
    teams: tuple[str, str]
    returns: dict[str, Tensor]
    error: dict[str, Tensor]
    score: Tensor
    games: int
    symmetric: bool
    win_criterion: str
    warnings: tuple[str, ...] = ()
    checkpoints: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def wins(self) -> Tensor:
        """Returns the games that each member has won against each other one, from either side, [P, P]."""
        won = self.score * self.games
        both = won + (self.games - won).T
        return both.fill_diagonal_(0.0)

    def win_rate(self) -> Tensor:
        """Returns the share of games that each member has won against each other one, from either side, [P, P]."""
        return self.wins() / (2 * self.games)

    def ratings(self) -> tuple[Tensor, Tensor] | None:
        """Returns Elo ratings [P] and standard errors [P] relative to the first member; None if sides differ."""
        return elo(self.wins()) if self.symmetric else None

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the scores of rows against columns, and ratings."""
        ratings = self.ratings()
        columns = ["", *self.members, *([] if ratings is None else ["Elo"])]
        rows = [[name, *(f"{x:.0%}" for x in row)] for name, row in zip(self.members, self.score.tolist(), strict=True)]
        if ratings is not None:
            rows = [
                [*row, f"{rating:.0f} ± {error:.0f}"]
                for row, rating, error in zip(rows, ratings[0].tolist(), ratings[1].tolist(), strict=True)
            ]
        title = f"{self.env}: share of {self.games} episodes won by {self.teams[0]} (rows) against {self.teams[1]}"
        return join((element("p", element("b", title)), table(columns, rows), paragraphs(self.warnings)))

    def report(self) -> dict[str, Any]:
        """Returns the result as plain numbers and strings."""

        def table(values: Tensor) -> dict[str, dict[str, float]]:
            rows = zip(self.members, values.tolist(), strict=True)
            return {name: dict(zip(self.members, row, strict=True)) for name, row in rows}

        found: dict[str, Any] = {
            "env": self.env,
            "episodes": self.games,
            "rows": self.teams[0],
            "columns": self.teams[1],
            "won_by": self.win_criterion,
            "return_mean": {team: table(values) for team, values in self.returns.items()},
            "return_error": {team: table(values) for team, values in self.error.items()},
            "return_interval": {
                team: {"low": table(values - Z_95 * self.error[team]), "high": table(values + Z_95 * self.error[team])}
                for team, values in self.returns.items()
            },
            "score": table(self.score),
            "checkpoints": dict(self.checkpoints),
            "warnings": list(self.warnings),
        }
        ratings = self.ratings()
        if ratings is not None:
            pairs = zip(self.members, ratings[0].tolist(), ratings[1].tolist(), strict=True)
            found["elo"] = {name: {"rating": rating, "error": error} for name, rating, error in pairs}
        return found


def league(
    names: Sequence[str],
    overrides: Sequence[str] = (),
    options: LeagueOptions | None = None,
    progress_of: Callable[[str], ProgressCallback] | None = None,
) -> LeagueResult:
    """Plays every pair of members in both directions.

    Args:
        names: Folders of runs, `random`, `scripted` or `scripted:NAME`, each optionally as `LABEL=...`.
        overrides: Settings of the environment if there are no runs.
        options: How to play.
        progress_of: Returns the progress callback for a pair, given its description.

    Raises:
        UserError: If there are fewer than two members, or they were trained in different environments.
    """
    options = options or LeagueOptions()
    if len(names) < 2:
        raise UserError(
            f"a league needs at least two members, but has {len(names)}. Name runs' folders, random or scripted, "
            "e.g. coterie league RUN RUN random"
        )
    sources = labeled_members(names)
    config = _common_config(sources.values(), overrides)
    configure_process(config.threads)
    device = select_device(config.device)
    num_envs = min(options.episodes, config.eval.num_envs)
    with closed(make_environment(config, "evaluate", num_envs=num_envs, device=device)) as env:
        teams = {team.name: team for team in env.spec.default_teams()}
        if len(teams) != 2:
            raise UserError(f"a league needs two teams, but {config.env.name} has {len(teams)}: {', '.join(teams)}")
        members = [
            load_member(label, source, config, teams, mode=options.mode, checkpoint=options.checkpoint, device=device)
            for label, source in sources.items()
        ]
        return _play(members, env, teams, options=options, progress_of=progress_of)


def _play(
    members: Sequence[Member],
    env: VectorEnv,
    teams: dict[str, TeamSpec],
    *,
    options: LeagueOptions,
    progress_of: Callable[[str], ProgressCallback] | None,
) -> LeagueResult:
    first, second = teams
    size = len(members)
    returns = {team: torch.zeros(size, size, dtype=torch.float64) for team in teams}
    error = {team: torch.zeros(size, size, dtype=torch.float64) for team in teams}
    score = torch.zeros(size, size, dtype=torch.float64)
    games = 0
    for i, row in enumerate(members):
        for j, column in enumerate(members):
            found = evaluate(
                env,
                {first: row.policies[first], second: column.policies[second]},
                episodes=options.episodes,
                modes={first: row.modes[first], second: column.modes[second]},
                seed=seed_of(options.seed, "league"),  # the same for every pair: only the players differ
                on_progress=None if progress_of is None else progress_of(f"{row.name} against {column.name}"),
            ).episodes
            games = len(found)
            for name, team in teams.items():
                total = found.team_return(team)
                returns[name][i, j] = total.mean()
                error[name][i, j] = standard_error(total)
            score[i, j] = win_scores(found, teams[first], teams[second]).mean()
    return LeagueResult(
        env=env.spec.name,
        members=tuple(member.name for member in members),
        teams=(first, second),
        returns=returns,
        error=error,
        score=score,
        games=games,
        symmetric=env.spec.symmetric,
        win_criterion=win_criterion(env.spec),
        warnings=tuple(dict.fromkeys(line for member in members for line in member.warnings)),
        checkpoints={member.name: member.checkpoints for member in members if member.checkpoints},
    )


# ------------------------------------------------------------------------------------------------------------- output


def draw(result: LeagueResult) -> Figure:
    """Draws the cross-play matrix: one panel per team, or one of win rates if the sides are equal."""
    from matplotlib.figure import Figure

    if result.symmetric:
        panels = [("win rate of the row, from either side", result.win_rate().fill_diagonal_(math.nan))]
    else:
        panels = [(f"mean team return of {team}", values) for team, values in result.returns.items()]
    size = len(result.members)
    figure = Figure(figsize=((1.1 * size + 2.4) * len(panels), 0.75 * size + 2.0), layout="constrained")
    low, high = (0.0, 1.0) if result.symmetric else (None, None)
    for k, (title, values) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), k + 1)
        # Color-blind people can tell both ends of these colors apart.
        image = axes.imshow(values.numpy(), cmap="PuOr" if result.symmetric else "viridis", vmin=low, vmax=high)
        axes.set_xticks(range(size), result.members, rotation=30, ha="right")
        axes.set_yticks(range(size), result.members)
        first, second = result.teams
        axes.set_ylabel("" if result.symmetric else f"plays {first}")
        axes.set_xlabel("" if result.symmetric else f"plays {second}")
        axes.set_title(title, fontsize=10)
        _write_values(axes, values, np.asarray(image.to_rgba(values.numpy())))
    figure.suptitle(f"{result.env}, {result.games} episodes per pair", fontsize=11)
    return figure


def _write_values(axes: Axes, values: Tensor, colors: np.ndarray) -> None:
    """Writes the numbers [P, P] into the cells, white on dark colors [P, P, 4]."""
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            if math.isfinite(value):
                red, green, blue, _ = colors[i, j]
                is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                color = "white" if is_dark else "black"
                axes.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=9, color=color)


def tables(result: LeagueResult) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Returns the result as tables: title, columns, rows."""
    found: list[tuple[str, list[str], list[list[Any]]]] = []
    first, second = result.teams
    columns = ["", *result.members]
    ratings = result.ratings()
    if ratings is not None:
        rows = [
            [name, *("-" if i == j else f"{value:.2f}" for j, value in enumerate(row))]
            for i, (name, row) in enumerate(zip(result.members, result.win_rate().tolist(), strict=True))
        ]
        found.append((f"win rate of the row, from either side (winner: {result.win_criterion})", columns, rows))
        order = ratings[0].argsort(descending=True).tolist()
        rows = [[result.members[i], f"{ratings[0][i]:.0f}", f"± {ratings[1][i]:.0f}"] for i in order]
        found.append((f"Elo relative to {result.members[0]}", ["member", "rating", "standard error"], rows))
        return found
    for team, values in result.returns.items():
        lines = zip(result.members, values.tolist(), result.error[team].tolist(), strict=True)
        rows = [
            [name, *(f"{value:.4g} ± {error:.2g}" for value, error in zip(row, errors, strict=True))]
            for name, row, errors in lines
        ]
        found.append((f"mean team return of {team}; rows play {first}, columns {second}", columns, rows))
    return found
