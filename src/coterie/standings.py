"""Everyone against everyone: members of a league play every side of one environment against every other member."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.borrowed import Borrowed
from coterie.build import AskedMode, algorithms, environment, eval_modes, load_learners, pick_device
from coterie.config import load_resolved, resolve
from coterie.errors import UserError
from coterie.evaluation import Told, evaluate
from coterie.math.ratings import elo
from coterie.policy import Mode, Policy
from coterie.process import settle
from coterie.rundir import RunDir
from coterie.schema import RunConfig
from coterie.seeds import seed_of
from coterie.selfplay.ladder import counted, outcome
from coterie.types import EnvSpec, TeamSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOTS = ("random", "scripted")
"""Members that are no runs: `random`, `scripted`, and `scripted:NAME`."""


@dataclass(frozen=True)
class Member:
    """Who plays: its name in tables, and for each team the policy that acts for it and how."""

    name: str
    policies: dict[str, Policy]
    modes: dict[str, Mode]


@dataclass(frozen=True)
class Standings:
    """What a league of P members came to. Rows play the first team, columns the second.

    returns: by team [P, P], mean return; error: by team [P, P], its standard error; score: [P, P], the share of
    episodes that the row has won, draws counted half; games: episodes of each pair; equal: the sides are equal;
    counted: how it is told who has won.
    """

    env: str
    members: tuple[str, ...]
    teams: tuple[str, str]
    returns: dict[str, Tensor]
    error: dict[str, Tensor]
    score: Tensor
    games: int
    equal: bool
    counted: str

    def score_of(self) -> Tensor:
        """[P, P]: games that each member has won of each other, from either side where sides are equal."""
        won = self.score * self.games
        both = won + (self.games - won).T
        return both.fill_diagonal_(0.0)

    def ratings(self) -> tuple[Tensor, Tensor] | None:
        """Elo ratings [P] and their standard errors relative to the first member's; None where sides differ."""
        return elo(self.score_of()) if self.equal else None

    def report(self) -> dict[str, Any]:
        """The standings as plain numbers and words."""

        def table(values: Tensor) -> dict[str, dict[str, float]]:
            rows = zip(self.members, values.tolist(), strict=True)
            return {name: dict(zip(self.members, row, strict=True)) for name, row in rows}

        found: dict[str, Any] = {
            "env": self.env,
            "episodes": self.games,
            "rows": self.teams[0],
            "columns": self.teams[1],
            "won_by": self.counted,
            "return_mean": {team: table(values) for team, values in self.returns.items()},
            "return_error": {team: table(values) for team, values in self.error.items()},
            "score": table(self.score),
        }
        rated = self.ratings()
        if rated is not None:
            pairs = zip(self.members, rated[0].tolist(), rated[1].tolist(), strict=True)
            found["elo"] = {name: {"rating": rating, "error": error} for name, rating, error in pairs}
        return found


def league(
    names: Sequence[str],
    overrides: Sequence[str] = (),
    episodes: int = 100,
    mode: AskedMode = "auto",
    checkpoint: str = "best",
    seed: int = 0,
    told: Callable[[str], Told] | None = None,
) -> Standings:
    """Plays every pair of members in both directions.

    names: runs' folders, `random`, `scripted` or `scripted:NAME`, each perhaps as `LABEL=...`; overrides: settings of
    the environment where no run brings one; told: is told what is played, and gives what is told how far that is.
    UserError for a league without two members, and for members of different environments.
    """
    labelled = _told_apart([_labelled(name) for name in names])
    if len(labelled) < 2:
        raise UserError(
            f"a league of {len(labelled)} has nobody to play: name at least two of runs' folders, random and scripted, "
            "e.g. coterie league RUN RUN random"
        )
    config = _common(labelled, overrides)
    settle(config.threads)
    device = pick_device(config.device)
    with closing(environment(config, min(episodes, config.eval.copies), "evaluate", device)) as env:
        teams = {team.name: team for team in env.spec.default_teams()}
        if len(teams) != 2:
            raise UserError(f"a league needs two teams, and {config.env.name} has {len(teams)}: {', '.join(teams)}")
        members = [_member(label, what, config, teams, mode, checkpoint, device) for label, what in labelled]
        return _played(members, config, env.spec, teams, env, episodes, seed, told)


def _played(
    members: Sequence[Member],
    config: RunConfig,
    spec: EnvSpec,
    teams: Mapping[str, TeamSpec],
    env: Any,
    episodes: int,
    seed: int,
    told: Callable[[str], Told] | None,
) -> Standings:
    first, second = teams
    size = len(members)
    returns = {team: torch.zeros(size, size, dtype=torch.float64) for team in teams}
    error = {team: torch.zeros(size, size, dtype=torch.float64) for team in teams}
    score = torch.zeros(size, size, dtype=torch.float64)
    games = 0
    for i, row in enumerate(members):
        for j, column in enumerate(members):
            policies = {first: row.policies[first], second: column.policies[second]}
            modes: dict[str, Mode] = {first: row.modes[first], second: column.modes[second]}
            told_of = None if told is None else told(f"{row.name} against {column.name}")
            # The same seed for every pair: what differs is who plays.
            found = evaluate(env, policies, episodes, modes, seed_of(seed, "league"), told=told_of).episodes
            games = len(found.length)
            for name, team in teams.items():
                total = found.team_return(team)
                returns[name][i, j] = total.mean()
                error[name][i, j] = total.std(correction=1) / math.sqrt(games) if games > 1 else math.nan
            score[i, j] = outcome(found, teams[first], teams[second]).mean()
    names = tuple(member.name for member in members)
    return Standings(
        config.env.name, names, (first, second), returns, error, score, games, spec.equal_sides, counted(spec)
    )


def _labelled(name: str) -> tuple[str, str]:
    """The label of a member and what it is."""
    label, equals, what = name.partition("=")
    if equals and re.fullmatch(r"[\w.+-]+", label) and not Path(name).exists():
        return label, what
    if name.partition(":")[0] in BOTS and not Path(name).exists():
        return name, name
    folder = RunDir.open(Path(name))
    config = load_resolved(folder.config_path).config
    return f"{config.algo.name}-{config.seed}", name


def _told_apart(labelled: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Runs of the same algorithm and seed are called by their folders."""
    labels = [label for label, _ in labelled]
    return [
        (Path(what).name if labels.count(label) > 1 and not _is_bot(what) else label, what) for label, what in labelled
    ]


def _is_bot(what: str) -> bool:
    return what.partition(":")[0] in BOTS and not Path(what).exists()


def _common(labelled: Sequence[tuple[str, str]], overrides: Sequence[str]) -> RunConfig:
    """The configuration whose environment all members share. UserError where they do not share it."""
    seen: set[str] = set()
    for label, _ in labelled:
        if label in seen:
            raise UserError(f"two members are called '{label}': give them names, e.g. first=RUN second=RUN")
        seen.add(label)
    runs = [what for _, what in labelled if not _is_bot(what)]
    if not runs:
        return resolve([*overrides, "progress=off"]).config
    if overrides:
        raise UserError(f"the runs bring their environment: leave out {' '.join(overrides)}")
    configs = [load_resolved(RunDir.open(Path(run)).config_path).config for run in runs]
    for run, config in zip(runs, configs, strict=True):
        for key, mine, its in _differences(configs[0], config):
            raise UserError(
                f"{run} was trained with {key}={its}, and {runs[0]} with {mine}: a league plays one environment with "
                "one setting, so leave one of them out"
            )
    return configs[0]


def _differences(one: RunConfig, other: RunConfig) -> list[tuple[str, Any, Any]]:
    """Keys of the environment that differ, with both values, lessons and what copies draw among them."""

    def flat(config: RunConfig) -> dict[str, Any]:
        tree = config.tree()
        own = {f"env.{key}": value for key, value in tree["env"].items()}
        return {"env": config.env.name, **own} | {name: tree.get(name) for name in ("curriculum", "randomise")}

    mine, its = flat(one), flat(other)
    return [(key, mine.get(key), its.get(key)) for key in {**mine, **its} if mine.get(key) != its.get(key)]


def _member(
    label: str, what: str, config: RunConfig, teams: Mapping[str, TeamSpec], mode: AskedMode, checkpoint: str,
    device: torch.device,
) -> Member:  # fmt: skip
    """A member's policies by team. UserError for one that cannot act for both."""
    if _is_bot(what):
        kind, _, script = what.partition(":")
        settings = [f"algo={kind}", f"env={config.env.name}", *([f"algo.script={script}"] if script else [])]
        learners = algorithms(resolve(settings).config.model_copy(update={"env": config.env}), dict(teams), device)
    else:
        _, learners = load_learners(Path(what), checkpoint, device)
    missing = [name for name in teams if name not in learners]
    if missing:
        raise UserError(
            f"{what} trained the teams {', '.join(learners)}, and a league needs one for '{missing[0]}': train it with "
            "a team a side"
        )
    modes = eval_modes(mode, learners)
    policies = {
        name: Borrowed(team, learners[name].policy, modes[name]) for name, team in teams.items()
    }  # with the league's own specs, in the mode that it is judged in
    return Member(label, dict(policies), modes)


def draw(standings: Standings) -> Figure:
    """The cross-play matrix as a picture: one panel a team, or one of scores where the sides are equal."""
    from matplotlib.figure import Figure

    if standings.equal:
        score = standings.score_of() / (2 * standings.games)
        panels = [("share won by the row, from either side", score.fill_diagonal_(math.nan))]
    else:
        panels = [(f"mean return of {team}", values) for team, values in standings.returns.items()]
    size = len(standings.members)
    figure = Figure(figsize=((1.1 * size + 2.4) * len(panels), 0.75 * size + 2.0), layout="constrained")
    for k, (title, values) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), k + 1)
        low, high = (0.0, 1.0) if standings.equal else (None, None)
        image = axes.imshow(values.numpy(), cmap="RdYlGn" if standings.equal else "viridis", vmin=low, vmax=high)
        shades = np.asarray(image.to_rgba(values.numpy()))
        axes.set_xticks(range(size), standings.members, rotation=30, ha="right")
        axes.set_yticks(range(size), standings.members)
        first, second = standings.teams
        axes.set_ylabel("" if standings.equal else f"plays {first}")
        axes.set_xlabel("" if standings.equal else f"plays {second}")
        axes.set_title(title, fontsize=10)
        for i in range(size):
            for j in range(size):
                value = float(values[i, j])
                if math.isfinite(value):
                    red, green, blue, _ = shades[i, j]
                    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
                    axes.text(
                        j, i, f"{value:.3g}", ha="center", va="center", fontsize=9, color="white" if dark else "black"
                    )
    figure.suptitle(f"{standings.env}, {standings.games} episodes a pair", fontsize=11)
    return figure


def words(standings: Standings) -> list[tuple[str, list[str], list[list[Any]]]]:
    """Tables of the standings: title, columns, rows."""
    tables: list[tuple[str, list[str], list[list[Any]]]] = []
    first, second = standings.teams
    if standings.equal:
        score = standings.score_of() / (2 * standings.games)
        rows = [
            [name, *("-" if i == j else f"{value:.2f}" for j, value in enumerate(line))]
            for i, (name, line) in enumerate(zip(standings.members, score.tolist(), strict=True))
        ]
        title = f"share won by the row, from either side ({standings.counted} tells who has won)"
        tables.append((title, ["", *standings.members], rows))
        rated = standings.ratings()
        assert rated is not None
        order = rated[0].argsort(descending=True).tolist()
        rows = [[standings.members[i], f"{rated[0][i]:.0f}", f"± {rated[1][i]:.0f}"] for i in order]
        tables.append((f"Elo, {standings.members[0]} being 0", ["member", "rating", "standard error"], rows))
        return tables
    for team, values in standings.returns.items():
        lines = zip(standings.members, values.tolist(), standings.error[team].tolist(), strict=True)
        rows = [
            [name, *(f"{value:.4g} ± {error:.2g}" for value, error in zip(line, errors, strict=True))]
            for name, line, errors in lines
        ]
        tables.append((f"mean return of {team}; rows play {first}, columns {second}", ["", *standings.members], rows))
    return tables
