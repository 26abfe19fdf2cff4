"""Exploitability of a trained team: the return of a best response, trained within a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coterie.algos import registry
from coterie.algos.algorithm import Algorithm
from coterie.assembly.environment import (
    lessons_of,
    load_teams,
    make_environment,
    recorded_agents,
    select_device,
    with_agent_order,
)
from coterie.assembly.learners import eval_modes, load_run, teams_sharing_policy
from coterie.assembly.resolve import Resolved, based_on, load_resolved
from coterie.commands import train as training
from coterie.config.schema import RunConfig
from coterie.core.errors import UserError, nearest
from coterie.core.markup import Markup, join, paragraphs, table
from coterie.core.seeds import seed_of
from coterie.core.specs import TeamSpec
from coterie.envs.contract.vector import VectorEnv, closed
from coterie.functional.intervals import interval_95, standard_error
from coterie.policies.base import Policy
from coterie.policies.remapped import RemappedPolicy
from coterie.runs.folder import RunFolder
from coterie.training.evaluation import evaluate
from coterie.training.opponents import win_scores


@dataclass(frozen=True)
class Exploitability:
    """Return of a best response against a run's team, compared with the run's own other team.

    Attributes:
        team: The team that is exploited and does not change.
        response: The team that was trained against it.
        run: Folder of the response's run.
        steps: Environment steps of the response's training.
        response_return: Mean return of the response.
        response_error: Its standard error.
        own_return: Mean return of the run's own other team.
        own_error: Its standard error.
        response_won: Win rate of the response.
        own_won: Win rate of the run's own other team.
        warnings: Why another checkpoint of the run than the preferred one was loaded.
        checkpoint: The run's checkpoint and how it was chosen.
    """

    team: str
    response: str
    run: str
    steps: int
    response_return: float
    response_error: float
    own_return: float
    own_error: float
    response_won: float
    own_won: float
    warnings: tuple[str, ...] = ()
    checkpoint: dict[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> Markup:
        """Returns what notebooks show: the returns against the exploited team, and the gap."""
        rows = [
            [f"best response ({self.response})", f"{self.response_return:.4g} ± {self.response_error:.2g}"],
            ["own opponent", f"{self.own_return:.4g} ± {self.own_error:.2g}"],
            ["gap", f"{self.gap:.4g} ± {self.error:.2g}"],
        ]
        return join((table([f"against {self.team}", "return"], rows), paragraphs(self.warnings)))

    @property
    def gap(self) -> float:
        """Difference of the two mean returns; at most 0 if no better response was found."""
        return self.response_return - self.own_return

    @property
    def error(self) -> float:
        """Standard error of the gap."""
        return math.hypot(self.response_error, self.own_error)

    def report(self) -> dict[str, Any]:
        """Returns the result as plain numbers and strings."""
        intervals = {
            f"{name}_interval": list(interval_95(mean, error))
            for name, mean, error in (
                ("response", self.response_return, self.response_error),
                ("own", self.own_return, self.own_error),
                ("gap", self.gap, self.error),
            )
        }
        return asdict(self) | {"gap": self.gap, "gap_error": self.error} | intervals


def exploit(
    run: Path,
    overrides: Sequence[str] = (),
    *,
    team: str | None = None,
    steps: int | None = None,
    episodes: int = 400,
    checkpoint: str = "auto",
) -> Exploitability:
    """Trains a best response to one team of a run and compares it with the run's own other team.

    Args:
        run: Folder of the run.
        overrides: Settings of the response, such as `algo=...`; by default those of the run.
        team: The team to exploit; by default the second.
        steps: Environment steps of the response's training; by default a fifth of the run's.
        episodes: Episodes of the comparison.
        checkpoint: Checkpoint of the run: auto, best, best:TEAM, last or a number of steps.
    """
    folder = RunFolder.open(run)
    config = with_agent_order(load_resolved(folder.config_path).config, recorded_agents(folder.read_manifest()))
    device = select_device("cpu" if config.device == "auto" else config.device)
    names = list(load_teams(config, device))
    fixed, response = _sides(folder.path, names, team)
    loaded = load_run(run, checkpoint, device, team=fixed)
    algorithms = loaded.algorithms
    teams = {name: algorithm.policy.team for name, algorithm in algorithms.items()}
    shared = teams_sharing_policy(config.selfplay, config.teams, teams)
    source = names[0] if shared else fixed  # whose policy the fixed team acts with
    frozen = {"name": "frozen", "run": str(folder.path), "team": source, "checkpoint": checkpoint}
    tree: dict[str, Any] = {**_response_tree(config, response, steps), "out": None}
    tree["teams"] = tree["teams"] | {fixed: {"algo": frozen}}
    has_out = any(word.startswith("out=") for word in overrides)
    out = [] if has_out else [f"out={_response_folder(folder.path, fixed)}"]
    resolved = based_on(tree, [*out, *overrides])
    _require_learner(resolved, response)
    result = training.train(resolved)
    trained = load_run(result.run, "auto", device).algorithms
    comparison = _Comparison(teams, response, episodes, seed_of(config.seed, "exploit"))
    with closed(make_environment(config, "evaluate", num_envs=min(episodes, 100), device=device)) as env:
        new = comparison.play(
            env, {fixed: _policy(algorithms, teams, fixed), response: _policy(trained, teams, response)}
        )
        own = comparison.play(env, {name: _policy(algorithms, teams, name) for name in (fixed, response)})
    return Exploitability(
        team=fixed,
        response=response,
        run=str(result.run),
        steps=result.summary.steps,
        response_return=new.mean,
        response_error=new.error,
        own_return=own.mean,
        own_error=own.error,
        response_won=new.win_rate,
        own_won=own.win_rate,
        warnings=tuple(loaded.warnings),
        checkpoint={} if loaded.choice is None else loaded.choice.report(),
    )


def _sides(run: Path, names: list[str], team: str | None) -> tuple[str, str]:
    """Returns the team to exploit, by default the second, and the other one. UserError if there are not two."""
    if len(names) != 2:
        raise UserError(f"{run} has the teams {', '.join(names)}, but a best response needs exactly two teams")
    if team is not None and team not in names:
        raise UserError(f"{run} has no team '{team}'. {nearest(team, names)}")
    fixed = team or names[1]
    return fixed, next(name for name in names if name != fixed)


def _response_tree(config: RunConfig, response: str, steps: int | None) -> dict[str, Any]:
    """Returns the settings of the response's run without the fixed team."""
    tree: dict[str, Any] = config.tree()
    lessons = lessons_of(config)
    if lessons is not None:  # both are compared in the last lesson
        parameters = lessons.samplers(lessons.last)
        tree["randomize"] = {name: sampler.model_dump(mode="json") for name, sampler in parameters.items()}
    own = tree["teams"].get(response)
    if own is not None:  # settings of the response become those of the run, so that overrides replace them
        tree["algo"] = own["algo"]
    for section in ("selfplay", "alternate", "curriculum", "imitation", "rewards", "init"):
        tree.pop(section, None)
    for section in ("eval", "checkpoint"):
        tree[section].pop("every", None)
    tree["teams"] = {response: {"roles": own["roles"]}} if own is not None and own["roles"] else {}
    tree["steps"] = steps or max(1, config.steps // 5)
    return tree


def _response_folder(run: Path, fixed: str) -> Path:
    return run / "responses" / f"{fixed}-{len(list((run / 'responses').glob('*')))}"


def _require_learner(resolved: Resolved, response: str) -> None:
    algo = resolved.config.algo_of(response).name
    if not registry.algorithm(algo).capabilities.learns:
        raise UserError(f"team '{response}' cannot respond with algo={algo}, which does not learn. Use algo=NAME.")


def _policy(algorithms: dict[str, Algorithm], teams: dict[str, TeamSpec], name: str) -> Policy:
    """Returns a team's policy with the action selection of its method."""
    mode = eval_modes("auto", algorithms)[name]
    return RemappedPolicy(teams[name], algorithms[name].policy, mode)


@dataclass(frozen=True)
class _Score:
    """Mean return of the response, its standard error, and its win rate."""

    mean: float
    error: float
    win_rate: float


@dataclass(frozen=True)
class _Comparison:
    """Games that the response and the run's own other team both play."""

    teams: dict[str, TeamSpec]
    response: str
    episodes: int
    seed: int

    def play(self, env: VectorEnv, policies: dict[str, Policy]) -> _Score:
        ordered = {name: policies[name] for name in self.teams}
        found = evaluate(
            env, ordered, episodes=self.episodes, modes=dict.fromkeys(ordered, "sample"), seed=self.seed
        ).episodes
        team = self.teams[self.response]
        total = found.team_return(team)
        opponent = next(spec for name, spec in self.teams.items() if name != self.response)
        return _Score(
            mean=float(total.mean()),
            error=standard_error(total),
            win_rate=float(win_scores(found, team, opponent).mean()),
        )
