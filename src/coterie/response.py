"""How much a trained team leaves to whoever plays against it: the return of a best response, trained on a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie import registry
from coterie import run as running
from coterie.borrowed import Borrowed
from coterie.build import environment, eval_modes, load_learners, pick_device
from coterie.config import based_on, load_resolved
from coterie.errors import UserError, nearest
from coterie.evaluation import evaluate
from coterie.guided import course_of, mirrored
from coterie.policy import Policy
from coterie.rundir import RunDir
from coterie.seeds import seed_of
from coterie.selfplay.ladder import outcome
from coterie.types import TeamSpec


@dataclass(frozen=True)
class Gap:
    """What a best response earns against a run's team, and what the run's own other team earns against it.

    team: the one that stays as it is; response: the one that was trained against it; mean returns of the response with
    standard errors, the same of the run's own, and the shares won; run: the response's folder.
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

    @property
    def gap(self) -> float:
        """How much more the response earns: 0 or less where none was found that does better."""
        return self.response_return - self.own_return

    @property
    def error(self) -> float:
        """Standard error of the gap."""
        return math.hypot(self.response_error, self.own_error)

    def report(self) -> dict[str, Any]:
        """Plain numbers and words."""
        return asdict(self) | {"gap": self.gap, "gap_error": self.error}


def exploit(
    run: Path,
    overrides: Sequence[str] = (),
    team: str | None = None,
    steps: int | None = None,
    episodes: int = 400,
    checkpoint: str = "best",
) -> Gap:
    """Trains a best response to one team of a run and compares it with the run's own other team.

    team: the one to exploit, by default the second; steps: the response's budget, by default a fifth of the run's;
    overrides: other settings of the response, such as `algo=...`; checkpoint: of the run.
    """
    folder = RunDir.open(run)
    config = load_resolved(folder.config_path).config
    device = pick_device("cpu" if config.device == "auto" else config.device)
    _, learners = load_learners(run, checkpoint, device)
    names = list(learners)
    if len(names) != 2:
        raise UserError(f"{folder.path} has the teams {', '.join(names)}: only one of two can be exploited")
    if team is not None and team not in names:
        raise UserError(f"{folder.path} has no team '{team}': {nearest(team, names)}")
    fixed = team or names[1]
    other = next(name for name in names if name != fixed)
    teams = {name: learner.policy.team for name, learner in learners.items()}
    source = names[0] if mirrored(config, teams) else fixed  # whose policy the fixed team acts with
    tree = config.tree()
    course = course_of(config)
    if course is not None:  # the last lesson is what both are judged on
        last = course.samplers(len(course.lessons) - 1)
        tree["randomise"] = {name: sampler.model_dump(mode="json") for name, sampler in last.items()}
    own = tree["teams"].get(other)
    if own is not None:  # the response's settings are the run's top ones, so that those given here replace them
        tree["algo"] = own["algo"]
    kept = {other: {"roles": own["roles"]}} if own is not None and own["roles"] else {}
    for section in ("selfplay", "turns", "curriculum", "imitation", "rewards"):
        tree.pop(section, None)
    frozen = {"algo": {"name": "frozen", "run": str(folder.path), "team": source, "checkpoint": checkpoint}}
    tree |= {"teams": kept | {fixed: frozen}, "steps": steps or max(1, config.steps // 5), "out": None}
    for section in ("eval", "checkpoint"):
        tree[section].pop("every", None)
    out = folder.path / "responses" / f"{fixed}-{len(list((folder.path / 'responses').glob('*')))}"
    resolved = based_on(tree, [f"out={out}", *overrides])
    responds = resolved.config.algo_of(other).name
    if not registry.algorithm(responds).capabilities.learns:
        raise UserError(
            f"team '{other}' would respond by algo={responds}, which learns nothing: give algo=NAME of a learner"
        )
    result = running.train(resolved)
    _, found = load_learners(result.run, "best", device)
    with closing(environment(config, min(episodes, 100), "evaluate", device)) as env:
        seed = seed_of(config.seed, "exploit")
        answered, own = (
            _judged(
                env, {**_acting(learners, teams, fixed), **_acting(who, teams, other)}, teams, other, episodes, seed
            )
            for who in (found, learners)
        )
    return Gap(fixed, other, str(result.run), result.summary.steps, *answered[:2], *own[:2], answered[2], own[2])


def _acting(learners: dict[str, Any], teams: dict[str, TeamSpec], name: str) -> dict[str, Policy]:
    """A team's policy in the mode that its method is evaluated in."""
    mode = eval_modes("auto", learners)[name]
    return {name: Borrowed(teams[name], learners[name].policy, mode)}


def _judged(
    env: Any, policies: dict[str, Policy], teams: dict[str, TeamSpec], team: str, episodes: int, seed: int
) -> tuple[float, float, float]:
    """Mean return of a team, its standard error, and the share it wins."""
    ordered = {name: policies[name] for name in teams}
    found = evaluate(env, ordered, episodes, dict.fromkeys(ordered, "sample"), seed).episodes
    total = found.team_return(teams[team])
    other = next(spec for name, spec in teams.items() if name != team)
    won = float(outcome(found, teams[team], other).mean())
    return float(total.mean()), float(total.std(correction=1)) / math.sqrt(len(total)), won
