"""Checks of the end of a run against the random policy, the start of the run and its best evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from coterie.checks.diagnosis.experience_checks import evaluation_mode, exploration, replay, reward_scale
from coterie.checks.diagnosis.network_checks import dead_units, observation_scale, saturated_tanh
from coterie.checks.diagnosis.run_view import FEW_MEDIUM, RunView, TeamView, show
from coterie.checks.diagnosis.update_checks import (
    clip_fraction,
    effective_samples,
    entropy_collapse,
    gradient_norm,
    kl_range,
    more_steps,
)
from coterie.checks.diagnosis.value_checks import value_range, values_at_limits
from coterie.checks.findings import Finding, Skipped, found_by, worst_first
from coterie.runs import outcome

MANY = 5_000
"""Gradient steps of a run that has learned nothing, from which on more of them are not the first thing to try."""
USUAL_LR = 5e-4
"""Default learning rate."""
_OF_THE_END = (evaluation_mode, values_at_limits, value_range)
"""Causes for which a run ends worse than it could have."""
_CAUSES = (
    *(reward_scale, *_OF_THE_END, gradient_norm, dead_units, saturated_tanh, observation_scale, exploration),
    *(entropy_collapse, replay, kl_range, clip_fraction, effective_samples),
)
"""Causes for which a run learns nothing."""
_CONTESTED = "the return depends on opponents that learn"


def below_random(run: RunView, team: TeamView) -> Finding | None:
    """Finds runs that end below the random policy; with several teams that learn, those in which every team does.

    One of several teams may lose to the others, but not all of them.
    """
    contested = not team.alone and run.settings.get("selfplay.opponents", "off") == "off" and len(run.teams) > 1
    course = _course(team, contested=contested)
    if not course.is_random:
        raise Skipped("the return of the random policy is unknown: no evaluations, or no episode of it ended")
    if course.problem != "below random":
        return None
    if contested and any(other.outcome is None or not other.outcome.is_below for other in run.teams):
        raise Skipped(_CONTESTED)
    return Finding("high", _evidence(team, course), _fix(run, team, course))


def fell(run: RunView, team: TeamView) -> Finding | None:
    """Finds runs that lose most of what they have learned."""
    course = _course(team)
    if course.problem != "fell":
        return None
    return Finding(
        "high",
        f"{_evidence(team, course)}; it had reached {show(course.best.mean)}",
        _fix(run, team, course),
    )


def nothing_learned(run: RunView, team: TeamView) -> Finding | None:
    """Finds runs that end no better than the random policy or than they started, in spite of enough gradient steps."""
    course, steps = _course(team), team.gradient_steps
    if steps < FEW_MEDIUM:
        raise Skipped(f"{steps:,.0f} gradient steps, fewer than {FEW_MEDIUM}")
    if course.is_below or course.has_fallen or (course.is_above and course.has_risen):
        return None
    if course.is_above:
        evidence = f"{_evidence(team, course)}, but not above the start ({show(course.start.mean)})"
        return Finding("medium", f"{evidence}, after {steps:,.0f} gradient steps", _longer(run, team))
    causes = _findings(_CAUSES, run, team)
    lr = team.number("lr")
    if causes:
        fix = causes[0].fix
    elif lr is not None and lr < USUAL_LR:
        fix = f"Larger steps: {team.key('lr', min(USUAL_LR, 10 * lr))}."
    elif steps < MANY:
        fix = _longer(run, team)
    else:
        fix = "Check with coterie check-env that observations contain what actions depend on, and whether rewards vary."
    return Finding("high", f"{_evidence(team, course)}, after {steps:,.0f} gradient steps", fix)


def _course(team: TeamView, *, contested: bool = False) -> outcome.Outcome:
    """Returns the course of the return. Skipped if it is unknown, or depends on opponents and is not `contested`."""
    if not team.alone and not contested:
        raise Skipped(_CONTESTED)
    found = team.outcome
    if found is None:
        raise Skipped("lessons changed the task" if len(team.series("lesson/index")) else "there are no returns")
    if not found.count:
        raise Skipped("there are no returns after the start")
    if math.isnan(found.end.errors_above(found.reference)):
        raise Skipped("the standard errors of returns are unknown")
    return found


def _evidence(team: TeamView, course: outcome.Outcome) -> str:
    kind = "evaluation" if len(team.series("eval/return_mean")) else "training return"
    last = f"last {kind} is" if course.count == 1 else f"last {course.count} {kind}s are"
    return f"the {last} {show(course.end.mean)} ± {show(course.end.error)}, {course.describe(show)}"


def _fix(run: RunView, team: TeamView, course: outcome.Outcome) -> str:
    """Returns the setting to change in a run that ended worse than it could have."""
    if causes := _findings(_OF_THE_END, run, team):
        return causes[0].fix
    if course.best.errors_above(course.end) > outcome.DIFFERS:
        return f"Smaller updates: {team.smaller_lr()}."
    return _longer(run, team)  # the untrained policy was below the random policy as well


def _findings(
    checks: Sequence[Callable[[RunView, TeamView], Finding | None]], run: RunView, team: TeamView
) -> tuple[Finding, ...]:
    """Returns what the checks find, the worst first."""
    return worst_first(finding for check in checks if (finding := found_by(check, run, team)))


def _longer(run: RunView, team: TeamView) -> str:
    """Returns the setting for more gradient steps."""
    steps = team.gradient_steps
    return more_steps(run, team, steps) if steps < FEW_MEDIUM else f"Train longer: steps={3 * run.total}."
