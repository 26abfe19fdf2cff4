"""Whether a run logs the metric that a lesson or a turn waits for, before the run begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coterie import metrics
from coterie.errors import UserError, nearest

ALWAYS = ("progress", "steps")
"""What can be waited for beside the metrics of a row."""
_RETURNS = ("return_mean", "return_std")


def check(who: str, name: str, teams: Sequence[str], reported: Collection[str], evaluates: bool) -> None:
    """UserError for a metric that this run will never log.

    who: waits for it, e.g. "curriculum.lessons: lesson 'far'"; teams: all of the run; reported: the environment's own
    metrics; evaluates: evaluations are made.
    """

    def fault(why: str) -> UserError:
        return UserError(f"{who} waits for the metric '{name}', which {why}")

    if name in ALWAYS:
        return
    area, *rest = name.split("/")
    if metrics.lookup(name) is None or not rest:
        raise fault(f"is never logged: {nearest(name, _known(teams))}")
    if area == "eval" and not evaluates:
        raise fault(
            "is never logged, for there are no evaluations (eval.every=0): give eval.every, or wait for another"
        )
    if area in {"rollout", "eval"} and rest[0] == "metric":
        own = "/".join(rest[1:])
        if own not in reported:
            there = nearest(own, reported) if reported else "it reports none"
            raise fault(f"the environment does not report: {there}")
        return
    several = len(teams) > 1
    if several and rest[0] in _RETURNS:
        choice = " or ".join(f"'{area}/{team}/{'/'.join(rest)}'" for team in teams)
        raise fault(f"several teams have: write {choice}")
    whole = {metric.partition("/")[2] for metric in metrics.declared() if metric.startswith(f"{area}/")}
    if "/".join(rest) in whole or "/".join(rest[:-1]) in whole:
        return
    if not several:
        raise fault(f"is never logged, for the run has one team: write '{area}/{'/'.join(rest[1:])}'")
    if rest[0] not in teams:
        raise fault(f"is of no team here: {nearest(rest[0], teams)}")


def _known(teams: Sequence[str]) -> list[str]:
    """Names that a user may have meant, with teams where there are several."""
    found = [name for name in metrics.declared() if "/" in name]
    if len(teams) > 1:
        split = [name.partition("/") for name in found]
        found += [f"{area}/{team}/{rest}" for area, _, rest in split for team in teams]
    return [*ALWAYS, *found]
