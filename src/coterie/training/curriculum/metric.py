"""Check that a run logs the metric that a lesson or a phase of alternating training waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coterie.core import metrics
from coterie.core.errors import UserError, nearest

ALWAYS = ("progress", "steps")
"""Values that can be waited for besides logged metrics."""
_RETURNS = ("return_mean", "return_std", "return_error", "group_return_mean")


def check_metric(
    waiting: str,
    name: str,
    *,
    teams: Sequence[str],
    env_metrics: Collection[str],
    has_group_reward: bool,
    evaluates: bool,
) -> None:
    """Checks that a run logs a metric.

    Args:
        waiting: The setting that waits for the metric, e.g. "curriculum.lessons: lesson 'far'".
        name: Name of the metric.
        teams: Names of all teams of the run.
        env_metrics: The environment's own metrics.
        has_group_reward: True if the environment gives group rewards.
        evaluates: True if the run has evaluations.

    Raises:
        UserError: If the run never logs the metric.
    """

    def error(why: str) -> UserError:
        return UserError(f"{waiting} waits for the metric '{name}', which {why}")

    if name in ALWAYS:
        return
    area, *rest = name.split("/")
    if metrics.lookup(name) is None or not rest:
        raise error(f"is never logged. {nearest(name, _known(teams))}")
    if area == "eval" and not evaluates:
        raise error("is never logged without evaluations (eval.every=0). Set eval.every, or use another metric.")
    if area in {"rollout", "eval"} and rest[0] == "metric":
        own = "/".join(rest[1:])
        if own not in env_metrics:
            known = nearest(own, env_metrics) if env_metrics else "It reports none."
            raise error(f"the environment does not report. {known}")
        return
    if "group_return_mean" in rest and not has_group_reward:
        raise error("is never logged, because the environment gives no group rewards. Use return_mean.")
    several = len(teams) > 1
    if several and rest[0] in _RETURNS:
        choice = " or ".join(f"'{area}/{team}/{'/'.join(rest)}'" for team in teams)
        raise error(f"is logged per team. Use {choice}.")
    known_names = {metric.partition("/")[2] for metric in metrics.declared() if metric.startswith(f"{area}/")}
    if "/".join(rest) in known_names or "/".join(rest[:-1]) in known_names:
        return
    if not several:
        raise error(f"is never logged, because the run has one team. Use '{area}/{'/'.join(rest[1:])}'.")
    if rest[0] not in teams:
        raise error(f"does not belong to a team of the run. {nearest(rest[0], teams)}")


def _known(teams: Sequence[str]) -> list[str]:
    """Returns the names that a user may have meant, with those of the teams if there are several."""
    found = [name for name in metrics.declared() if "/" in name]
    if len(teams) > 1:
        split = [name.partition("/") for name in found]
        found += [f"{area}/{team}/{rest}" for area, _, rest in split for team in teams]
    return [*ALWAYS, *found]
